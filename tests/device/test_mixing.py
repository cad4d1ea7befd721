"""MixUp and CutMix are transforms of whole batches on the device, with random numbers that belong to the batch."""

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mpload import DevicePrefetcher, MPDataset, MPLoader, RandomResizedCrop, Topology, build_index

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
]


def mixup(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = batch
    share = torch.distributions.Beta(0.4, 0.4).sample().item()
    targets = torch.nn.functional.one_hot(labels, num_classes=3).float()
    return images.lerp(images.roll(1, 0), share), targets.lerp(targets.roll(1, 0), share)


def mixers() -> dict[str, Any]:
    return {
        "our own": lambda: mixup,
        "MixUp": lambda: of_torchvision("MixUp"),
        "CutMix": lambda: of_torchvision("CutMix"),
    }


def of_torchvision(name: str) -> Any:
    return getattr(pytest.importorskip("torchvision.transforms.v2"), name)(num_classes=3)


@pytest.mark.parametrize("name", mixers())
def test_mixed_batches_depend_on_the_batch_alone(tmp_path: Path, photo_tree: Path, name: str) -> None:
    index = build_index(photo_tree, tmp_path / "all.txt")
    mixer = mixers()[name]()

    def batches(num_workers: int, state: Any = None) -> tuple[list[Any], Any]:
        """Return two batches, and the state after them."""
        dataset = MPDataset(index, decode=RandomResizedCrop(16), batch_size=6, shuffle=True, topology=Topology())
        with MPLoader(dataset, num_workers=num_workers) as loader:
            prefetcher = DevicePrefetcher(loader, device="cpu", device_transform=mixer)
            if state is not None:
                prefetcher.load_state_dict(state)
            return [*itertools.islice(prefetcher, 2)], prefetcher.state_dict()

    expected, after_two = batches(0)
    torch.manual_seed(5)
    found, same_state = batches(2)
    following, _ = batches(0, after_two)
    resumed, _ = batches(1, same_state)
    for (images, targets), (same_images, same_targets) in zip(expected + following, found + resumed, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(targets, same_targets)
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(6))
    assert len({float(images.mean()) for images, _ in expected + following}) == 4
