"""Images from an MPDataset: their layout, and augmentations that follow sample, epoch and seed."""

import itertools
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    RawBytes,
    ResizeCenterCrop,
    Topology,
)
from tests.support.batches import crops


@pytest.mark.processes
def test_images_are_channels_last_uint8_and_bit_identical_everywhere(photos: Path) -> None:
    expected = list(crops(photos))
    images, labels = expected[0]
    assert (images.shape, images.dtype, labels.dtype) == ((4, 3, 64, 64), torch.uint8, torch.int64)
    assert images.is_contiguous(memory_format=torch.channels_last)
    for got in (
        list(DataLoader(crops(photos), batch_size=None, num_workers=2)),
        list(DataLoader(crops(photos), batch_size=None, num_workers=1, multiprocessing_context="spawn")),
    ):
        for (a, x), (b, y) in zip(expected, got, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(x, y)
    again = list(crops(photos))[-1][0]
    assert torch.equal(again, expected[-1][0])


def test_augmentation_follows_sample_epoch_and_seed(photos: Path) -> None:
    def image_of_sample_zero(*, epoch: int = 0, **options: Any) -> Any:
        dataset = crops(photos, shuffle=False, **options)
        dataset.set_epoch(epoch)
        return next(iter(dataset))[0][0]

    base = image_of_sample_zero()
    assert torch.equal(base, image_of_sample_zero(batch_size=7))
    assert not torch.equal(base, image_of_sample_zero(seed=1))
    assert not torch.equal(base, image_of_sample_zero(epoch=1))


def test_images_of_different_sizes_form_a_list_and_raw_bytes_stay_unchanged(photos: Path) -> None:
    images, labels = next(iter(MPDataset(photos, batch_size=4, topology=Topology())))
    assert [image.shape[0] for image in images] == [3] * 4
    assert labels.shape == (4,)
    data, _ = next(iter(MPDataset(photos, decode=RawBytes(), batch_size=2, topology=Topology())))
    assert [piece[:2] for piece in data] == [b"\xff\xd8"] * 2


def _red(image: Any) -> Any:
    return image[..., 0]


@pytest.mark.processes
@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_images_with_one_channel_keep_their_axes(photos: Path, num_workers: int, collate: Any) -> None:
    options: dict[str, Any] = {"decode": ResizeCenterCrop((40, 60)), "batch_size": 4, "collate": collate}
    colored = [batch[0][0] if collate else batch[0] for batch in MPDataset(photos, **options)]
    with MPLoader(MPDataset(photos, transform=_red, **options), num_workers=num_workers) as loader:
        for images, expected in zip(loader, colored, strict=True):
            gray = images[0][0] if collate else images[0]
            assert torch.equal(gray, expected[..., 0, :, :])


def test_several_images_of_a_sample_are_cropped_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    large = cv2.resize(rng.integers(0, 255, (12, 16, 3), np.uint8), (320, 240), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(tmp_path / "high.png"), large)
    cv2.imwrite(str(tmp_path / "low.png"), cv2.resize(large, (160, 120), interpolation=cv2.INTER_AREA))
    (tmp_path / "pairs.txt").write_text("#mpload 1\n#columns low:path high:path\nlow.png\thigh.png\n")
    dataset = MPDataset(tmp_path / "pairs.txt", decode=RandomResizedCrop(64), batch_size=1, topology=Topology())
    for low, high in itertools.islice(itertools.chain.from_iterable(dataset for _ in range(8)), 8):
        assert (low.float() - high.float()).abs().mean() < 12  # different crops of such noise differ by 60 or more
