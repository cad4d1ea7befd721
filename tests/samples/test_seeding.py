"""Transforms on the device draw the same random numbers for each batch or sample, however ranks split the batches."""

import itertools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from mpload import DevicePrefetcher, MPDataset, MPLoader, PerSample, RandomResizedCrop, Topology, build_index
from mpload.device.seeding import BatchKey, transformed
from mpload.errors import ArgumentError
from tests.support.device_batches import NORMALISED, SHAPE, Batches, flip, images_of, noisy, reference


@pytest.mark.parametrize("transform", [noisy, PerSample(flip)])
def test_a_device_transform_is_repeatable_and_leaves_the_global_generator_unchanged(transform: Any) -> None:
    def run(seed: int) -> list[torch.Tensor]:
        loader = DevicePrefetcher(Batches(), device_transform=transform, seed=seed, **NORMALISED)
        return [images.clone() for images, _ in loader]

    before = torch.get_rng_state()
    first, again, other = run(1), run(1), run(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(itertools.starmap(torch.equal, zip(first, again, strict=True)))
    assert not all(itertools.starmap(torch.equal, zip(first, other, strict=True)))


def test_each_sample_draws_its_own_numbers_however_ranks_split_the_batch() -> None:
    images = images_of(0).repeat(4, 1, 1, 1).float()
    key = BatchKey(seed=0, epoch=0, position=16, place=0)
    cpu = torch.device("cpu")
    together, pair = transformed(PerSample(flip), (images, images), key=key, device=cpu)
    halves = [
        transformed(PerSample(flip), images[start : start + 8], key=key.of_sample(start), device=cpu)
        for start in (0, 8)
    ]
    assert torch.equal(torch.cat(halves), together)
    assert torch.equal(pair, together)
    is_flipped = (together == images.flip(-1)).flatten(1).all(1)
    assert 0 < is_flipped.sum() < 16


def torchvision_augmentation(v2: Any) -> Any:
    return v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(8), v2.ColorJitter(0.3, 0.3)])


def kornia_augmentation(kornia: Any) -> Any:
    return kornia.AugmentationSequential(kornia.RandomHorizontalFlip(), kornia.RandomGaussianNoise())


def test_device_transforms_do_not_depend_on_how_ranks_split_the_global_batch(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("ranks.txt"))

    def images(rank: int, world_size: int) -> list[torch.Tensor]:
        topology = Topology(rank=rank, world_size=world_size)
        dataset = MPDataset(
            index, decode=RandomResizedCrop(16), batch_size=8 // world_size, shuffle=True, topology=topology
        )
        loader = DevicePrefetcher(
            MPLoader(dataset, num_workers=0), device="cpu", device_transform=PerSample(with_noise)
        )
        return [images.clone() for images, _ in loader]

    whole = images(0, 1)
    shared = [torch.cat(pair) for pair in zip(images(0, 2), images(1, 2), strict=True)]
    assert all(itertools.starmap(torch.equal, zip(whole, shared, strict=True)))


def with_noise(image: torch.Tensor) -> torch.Tensor:
    return image + torch.randn(1, 1, *image.shape[2:])


@pytest.mark.parametrize(
    ("module", "make"),
    [("torchvision.transforms.v2", torchvision_augmentation), ("kornia.augmentation", kornia_augmentation)],
)
def test_known_augmentations_work_unchanged(module: str, make: Callable[[Any], Any]) -> None:
    try:
        transform = make(import_module(module))
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision was built for another torch
        pytest.skip(f"{module} cannot be imported: {error}")

    def run() -> list[torch.Tensor]:
        loader = DevicePrefetcher(Batches(3), device="cpu", device_transform=PerSample(transform))
        return [images.clone() for images, _ in loader]

    first = run()
    assert first[0].shape == SHAPE
    assert not torch.equal(first[0], reference(images_of(0), (0, 0, 0), (1, 1, 1)).float())
    assert all(itertools.starmap(torch.equal, zip(first, run(), strict=True)))


def test_a_transform_that_is_not_callable_is_refused() -> None:
    with pytest.raises(ArgumentError, match="transform must be a callable"):
        PerSample(3)  # type: ignore[arg-type]
