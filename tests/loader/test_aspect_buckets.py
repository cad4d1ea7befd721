"""Images decoded to the shape of their bucket, in every way of loading."""

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    ArgumentError,
    Buckets,
    ErrorPolicy,
    ImageDecoder,
    Mask,
    MPDataset,
    MPLoader,
    PartialCache,
    RandomResizedCrop,
    RawBytes,
    ResizeCenterCrop,
    Topology,
)
from mpload.plan.sample_rng import SampleRng
from mpload.samples.transforms import DECODE_STREAM

SHAPES = [(32, 64), (48, 48), (64, 32)]
BUCKETS = Buckets(by="aspect", shapes=SHAPES)
NUM_IMAGES = 60
SIZES = [((60, 130), (90, 100), (150, 70), (44, 90))[number % 4] for number in range(NUM_IMAGES)]


def bucket_of(number: int) -> int:
    height, width = SIZES[number]
    return int(np.argmin([abs(np.log(width / height * h / w)) for h, w in SHAPES]))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aspect")
    random, lines = np.random.default_rng(0), []
    for number, (height, width) in enumerate(SIZES):
        small = random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        pixels = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
        name = f"{number}.{'png' if number % 7 == 3 else 'jpg'}"
        cv2.imwrite(str(folder / name), pixels)
        cv2.imwrite(str(folder / f"mask{number}.png"), pixels[:, :, 0] // 64)
        lines.append(f"{name}\tmask{number}.png\t{number}\t{width}\t{height}\n")
    head = "#mpload 1\n#columns image:path mask:path number:int width:int height:int\n"
    (folder / "pairs.txt").write_text(head + "".join(lines))
    singles = ("\t".join(line.split("\t")[:1] + line.split("\t")[2:]) for line in lines)
    (folder / "images.txt").write_text(
        "#mpload 1\n#columns image:path number:int width:int height:int\n" + "".join(singles)
    )
    return folder


def aspect(images: Path, name: str = "images.txt", **options: Any) -> MPDataset[Any]:
    chosen: dict[str, Any] = {"decode": RandomResizedCrop(8), "batch_size": 6, "shuffle": True, "tail": "ragged"}
    return MPDataset(images / name, buckets=BUCKETS, topology=Topology(), **(chosen | options))


def copies(batches: Any) -> list[tuple[torch.Tensor, list[int]]]:
    return [(batch[0].clone(), batch[1].tolist()) for batch in batches]


def assert_same(found: Any, expected: Any) -> None:
    assert [numbers for _, numbers in found] == [numbers for _, numbers in expected]
    for (pixels, _), (right, _) in zip(found, expected, strict=True):
        assert torch.equal(pixels, right)


@pytest.mark.parametrize("decode", [RandomResizedCrop(8, scale=(0.5, 1)), ResizeCenterCrop(8, antialias=True)])
def test_pixels_are_those_of_the_same_decoder_called_directly(images: Path, decode: Any) -> None:
    for pixels, numbers in copies(aspect(images, decode=decode)):
        shape = SHAPES[bucket_of(numbers[0])]
        assert {bucket_of(number) for number in numbers} == {bucket_of(numbers[0])}
        assert tuple(pixels.shape) == (len(numbers), 3, *shape)
        for image, number in zip(pixels, numbers, strict=True):
            (file,) = images.glob(f"{number}.*")
            ratio = shape[1] / shape[0]
            if isinstance(decode, RandomResizedCrop):
                direct = RandomResizedCrop(shape, scale=(0.5, 1), ratio=(3 / 4 * ratio, 4 / 3 * ratio))
                rng = SampleRng(seed=0, epoch=0).for_sample(number, stream=DECODE_STREAM)
                expected = direct(file.read_bytes(), rng=rng)
            else:
                expected = middle_of(file.read_bytes(), shape)
            assert (image.permute(1, 2, 0).numpy() == expected).all()


def middle_of(data: bytes, shape: tuple[int, int]) -> Any:
    """Return the largest part of an image with a shape's ratio, in its middle, resized to this shape."""
    rng = np.random.default_rng(5)  # draws nothing that matters
    ratio = shape[1] / shape[0]
    crop = RandomResizedCrop(shape, scale=(1, 1), ratio=(ratio, ratio), flip=0, antialias=True)
    height, width = ImageDecoder()(data).shape[:2]
    box = crop.draw_geometry(height, width, rng).view.box
    assert box.height == height or box.width == width
    assert abs(box.width - box.height * ratio) <= 1
    assert abs(2 * box.top + box.height - height) <= 1
    assert abs(2 * box.left + box.width - width) <= 1
    return crop(data, rng=rng)


@pytest.mark.processes
@pytest.mark.parametrize("tail", ["drop", "pad", "ragged"])
def test_workers_and_stock_data_loaders_make_the_same_pixels(images: Path, tail: str) -> None:
    expected = copies(aspect(images, tail=tail))
    for num_workers in (0, 2):
        with MPLoader(aspect(images, tail=tail), num_workers=num_workers) as loader:
            assert_same(copies(loader), expected)
    assert_same(copies(DataLoader(aspect(images, tail=tail), batch_size=None, num_workers=2)), expected)


@pytest.mark.processes
def test_a_dataset_that_was_iterated_before_makes_the_same_pixels_in_a_loader(images: Path) -> None:
    dataset = aspect(images)
    expected = copies(dataset)
    dataset.set_epoch(0)
    next(batch for batch in dataset if tuple(batch[0].shape[2:]) == SHAPES[-1])
    dataset.set_epoch(0)
    with MPLoader(dataset, num_workers=1) as loader:
        assert_same(copies(loader), expected)


@pytest.mark.processes
def test_batches_share_the_memory_of_their_slot_and_stay_as_they_are(images: Path) -> None:
    expected = copies(aspect(images))
    with MPLoader(aspect(images), num_workers=2) as loader:
        kept = list(loader)  # more batches than slots
        assert_same([(batch[0], batch[1].tolist()) for batch in kept], expected)
        first = kept[0][0]
        assert first.permute(0, 2, 3, 1).is_contiguous()
        assert not first.untyped_storage().resizable()  # memory that torch has not allocated


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_decoders_in_a_dict_decode_to_the_shape_and_masks_follow(images: Path, num_workers: int) -> None:
    options: Any = {"decode": {"image": RandomResizedCrop(8), "mask": Mask()}}
    alone = {
        number: pixels
        for batch, numbers in copies(aspect(images))
        for pixels, number in zip(batch, numbers, strict=True)
    }
    with MPLoader(aspect(images, "pairs.txt", **options), num_workers=num_workers) as loader:
        for batch in loader:
            numbers = batch["number"].tolist()
            shape = SHAPES[bucket_of(numbers[0])]
            assert tuple(batch["mask"].shape) == (len(numbers), *shape)
            assert all(
                torch.equal(pixels, alone[number]) for pixels, number in zip(batch["image"], numbers, strict=True)
            )


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_transforms_and_callables_get_the_shape_of_the_bucket(images: Path, num_workers: int) -> None:
    expected = copies(aspect(images))
    inverted = aspect(images, transform=inverse)
    with MPLoader(inverted, num_workers=num_workers) as loader:
        assert_same([(255 - pixels, numbers) for pixels, numbers in copies(loader)], expected)
    with MPLoader(aspect(images, collate=listed), num_workers=num_workers) as loader:
        assert_same(list(loader), expected)


def inverse(pixels: Any) -> Any:
    return 255 - pixels


def listed(samples: Any) -> Any:
    return torch.stack([sample[0] for sample in samples]), [sample[1] for sample in samples]


@pytest.fixture
def damaged(images: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder in which some images are damaged."""
    for file in images.iterdir():
        if file.suffix in {".jpg", ".png"}:
            os.link(file, tmp_path / file.name)
    (tmp_path / "images.txt").write_text((images / "images.txt").read_text())
    for number in (0, 1, 2, 13):
        (tmp_path / f"{number}.jpg").unlink()
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8\xff damaged")
    return tmp_path


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("action", ["skip", "substitute"])
def test_bad_samples_leave_batches_of_one_shape(damaged: Path, action: Any, num_workers: int) -> None:
    policy = ErrorPolicy(action=action, report=damaged / "errors.jsonl", max_error_fraction=1)
    found: list[int] = []
    loader = MPLoader(aspect(damaged, on_error=policy), num_workers=num_workers)
    with loader, pytest.warns(match="bad sample"):
        batches = copies(loader)
    for pixels, numbers in batches:
        [bucket] = {bucket_of(number) for number in numbers}
        assert tuple(pixels.shape) == (len(numbers), 3, *SHAPES[bucket])
        found += numbers
    assert {0, 1, 2, 13}.isdisjoint(found)
    assert len(found) == (NUM_IMAGES if action == "substitute" else NUM_IMAGES - 4)


class Killing:
    """Kills the worker that makes a certain sample."""

    def __init__(self, killer: int) -> None:
        self.killer = killer

    def __call__(self, pixels: Any, rng: Any = None) -> Any:
        del rng
        if int(pixels.sum()) == self.killer:
            os._exit(9)
        return pixels


@pytest.mark.processes
def test_substitute_of_a_sample_that_kills_workers_is_of_its_bucket(images: Path) -> None:
    expected = copies(aspect(images))
    batch, numbers = expected[3]
    killer = int(batch[2].sum())
    policy = ErrorPolicy(action="substitute", report=images / "killed.jsonl", max_error_fraction=1)
    dataset = aspect(images, transform=Killing(killer), on_error=policy)
    with MPLoader(dataset, num_workers=2) as loader, pytest.warns(match="bad sample"):
        found = [batch[1].tolist() for batch in loader]
    assert [*found[3][:2], *found[3][3:]] == [*numbers[:2], *numbers[3:]]
    assert found[3][2] != numbers[2]
    assert bucket_of(found[3][2]) == bucket_of(numbers[2])
    assert [each for number, each in enumerate(found) if number != 3] == [
        each for number, (_, each) in enumerate(expected) if number != 3
    ]


@pytest.mark.processes
def test_a_cache_changes_nothing(images: Path, tmp_path: Path) -> None:
    expected = copies(aspect(images))
    cached = aspect(images, cache=PartialCache(tmp_path / "cache", max_bytes=10**8))
    with MPLoader(cached, num_workers=2) as loader:
        assert_same(copies(loader), expected)
        loader.set_epoch(0)
        assert_same(copies(loader), expected)


@pytest.mark.parametrize(
    "decode", [None, RawBytes(), ResizeCenterCrop(8, resize=9), {"image": RawBytes()}, lambda data: data]
)
def test_decoders_that_cannot_decode_to_a_shape_are_refused(images: Path, decode: Any) -> None:
    with pytest.raises(ArgumentError, match="takes RandomResizedCrop"):
        aspect(images, decode=decode)


def test_images_without_a_size_are_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "zero.txt").write_text("#mpload 1\n#columns image:path width:int height:int\na.jpg\t0\t5\n")
    with pytest.raises(ArgumentError, match=r"zero.txt:3: width and height must be positive"):
        MPDataset(tmp_path / "zero.txt", buckets=BUCKETS, batch_size=2)


@pytest.mark.processes
def test_largest_bucket_fits_although_batches_differ(images: Path) -> None:
    buckets = Buckets(by="aspect", shapes=[(8, 16), (64, 64), (200, 100)], max_cost=64 * 64 * 3)
    options: dict[str, Any] = {
        "decode": ResizeCenterCrop(8),
        "buckets": buckets,
        "tail": "ragged",
        "topology": Topology(),
    }
    expected = copies(MPDataset(images / "images.txt", **options))
    assert {tuple(pixels.shape[2:]) for pixels, _ in expected} == {(8, 16), (64, 64), (200, 100)}
    assert max(len(numbers) for pixels, numbers in expected if pixels.shape[2] == 64) == 3
    assert max(len(numbers) for pixels, numbers in expected if pixels.shape[2] == 200) == 1
    with MPLoader(MPDataset(images / "images.txt", **options), num_workers=2) as loader:
        assert_same(copies(loader), expected)
