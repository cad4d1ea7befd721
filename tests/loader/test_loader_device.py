"""MPLoader(device=...): a shortcut for wrapping the loader in a DevicePrefetcher."""

from pathlib import Path

import pytest
import torch

from mpload import MPDataset, MPLoader, RandomResizedCrop, Topology, build_index
from mpload.errors import ArgumentError
from tests.support.batches import ids, numbers
from tests.support.transport_works import is_alive, wait_until


@pytest.mark.processes
def test_a_loader_with_a_device_behaves_like_any_loader(folder: Path) -> None:
    expected = ids(numbers(folder, 103))
    with MPLoader(numbers(folder, 103), num_workers=2, device="cpu") as loader:
        assert len(loader) == len(expected)
        batches = iter(loader)
        received = [next(batches) for _ in range(7)]
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(ArgumentError, match="restored or released"):
            next(batches)
        assert loader.state_dict() == state
        assert ids([*received, *loader]) == expected
        loader.set_epoch(0)
        loader.release()
        assert ids(loader) == expected


@pytest.mark.processes
def test_a_loader_with_a_device_ends_with_its_last_reference(folder: Path) -> None:
    loader = MPLoader(numbers(folder, 103), num_workers=1, device="cpu")
    pids = loader.pids.values()
    batches = iter(loader)
    next(batches)
    del loader
    assert len(list(batches)) == 25  # an iteration keeps the loader alive
    del batches
    assert wait_until(lambda: not any(map(is_alive, pids)))


def test_a_loader_with_a_device_yields_float_images_in_0_to_1(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("short.txt"))
    dataset = MPDataset(index, decode=RandomResizedCrop(32), batch_size=5, topology=Topology(rank=1, world_size=2))
    with MPLoader(dataset, num_workers=0, device="cpu") as loader:
        assert loader._first_place == 5
        for images, _ in loader:
            assert images.dtype == torch.float32
            assert 0 <= images.min() < 0.5 < images.max() <= 1
