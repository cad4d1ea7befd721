"""Caches of other storages, limits and orientations are other caches, so that samples never depend on a cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload import (
    BySource,
    GpuDecode,
    ImageDecoder,
    Limits,
    Mixture,
    MPDataset,
    PartialCache,
    PilTransform,
    RandomCrop,
    RandomResizedCrop,
    ResizeCenterCrop,
)
from mpload.errors import ArgumentError, MploadError, MploadWarning
from mpload.samples.cache.compact import Compact, compact_for, warn_of_other_pixels
from mpload.samples.policy import ErrorPolicy
from mpload.storage.ranges import ByteRange
from tests.support.caches import NUM_FILES, opened, raw, read_epoch, sources

ORIENTATION = 0x0112


@dataclass
class Adding:
    """A storage that adds an amount to each byte of what it reads."""

    folder: Path
    amount: int

    @property
    def cache_key(self) -> str:
        return f"adds {self.amount}"

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        found = (np.frombuffer((self.folder / each.path).read_bytes(), np.uint8) for each in ranges)
        return [(each + np.uint8(self.amount)).tobytes() for each in found]


def test_storages_with_other_keys_do_not_see_what_others_have_cached(files: Path, tmp_path: Path) -> None:
    cache = PartialCache(tmp_path / "cache", fraction=1.0)
    folders = set()
    storages = [None, *(Adding(files.parent, amount) for amount in (1, 2))]
    for storage in storages * 2:
        dataset = raw(files, cache, storage=storage)
        amount = np.uint8(0 if storage is None else storage.amount)
        expected = [(np.frombuffer(each, np.uint8) + amount).tobytes() for each in sources(files)]
        assert read_epoch(dataset) == expected
        folders.add(opened(dataset).folder.path)
    assert len(folders) == len(storages)
    assert opened(dataset).counts.hits == NUM_FILES, "the same key has the same cache again"


@pytest.mark.parametrize("key", [None, 3, b"key"])
def test_a_cache_of_a_storage_without_a_key_is_refused(files: Path, tmp_path: Path, key: Any) -> None:
    class Keyless(Adding):
        cache_key = key

    with pytest.raises(ArgumentError, match="Keyless needs an attribute cache_key"):
        raw(files, PartialCache(tmp_path / "cache"), storage=Keyless(files.parent, 1))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four photos of 600 x 400 pixels that are stored turned, as EXIF data says."""
    rng = np.random.default_rng(0)
    for number in range(4):
        pixels = np.kron(rng.integers(256, size=(10, 15, 3)), np.ones((40, 40, 1))).astype(np.uint8)
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        Image.fromarray(pixels).save(tmp_path / f"{number}.jpg", quality=95, exif=exif)
    index = tmp_path / "photos.txt"
    index.write_text("".join(f"{number}.jpg {number}\n" for number in range(4)))
    return index


@pytest.mark.filterwarnings("ignore:a bad sample")
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_a_cache_of_smaller_images_does_not_let_larger_ones_pass(photos: Path, tmp_path: Path, fraction: float) -> None:
    cache = PartialCache(tmp_path / "cache", what="resized", fraction=fraction)
    read(photos, RandomResizedCrop(64), cache)
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl")
    with pytest.raises(MploadError, match=r"all 4 samples of a batch failed, .* pixels exceed max_pixels=200,000"):
        read(photos, RandomResizedCrop(64, max_pixels=200_000), cache, on_error=policy)


@pytest.mark.parametrize("upright", [True, False])
def test_a_cache_of_smaller_images_turns_them_as_the_decoder_does(photos: Path, tmp_path: Path, upright: bool) -> None:
    cache = PartialCache(tmp_path / "cache", what="resized", fraction=1.0)
    read(photos, ResizeCenterCrop(64, exif_orientation=not upright), cache)
    decode = ResizeCenterCrop(64, exif_orientation=upright)
    expected, first, second = (read(photos, decode, each) for each in (None, cache, cache))
    assert np.abs(expected - first).mean() < 4
    np.testing.assert_array_equal(first, second)


def read(index: Path, decode: Any, cache: PartialCache | None, **options: Any) -> np.ndarray[Any, Any]:
    (batch,) = MPDataset(index, decode=decode, batch_size=4, tail="ragged", cache=cache, **options)
    return np.asarray(batch[0], np.float64)


def test_the_form_follows_decoders_of_all_kinds() -> None:
    limits = Limits(max_pixels=1000)
    crop = RandomResizedCrop(64, limits=limits, exif_orientation=False)
    wanted = Compact(limits=limits, upright=False)
    whole = ImageDecoder(limits=limits, exif_orientation=False)
    for decode in (crop, whole, PilTransform(np.asarray, whole), GpuDecode(crop), BySource({"a.txt": crop})):
        assert compact_for(decode) == wanted
    assert compact_for(lambda data: data) == compact_for(BySource({"a.txt": None})) == Compact()
    assert wanted.form != Compact().form


def test_sources_that_open_images_differently_are_refused(photos: Path, tmp_path: Path) -> None:
    other = photos.with_name("other.txt")
    other.write_text(photos.read_text())
    decode = BySource({photos: RandomResizedCrop(64), other: RandomResizedCrop(64, max_pixels=1000)})
    cache = PartialCache(tmp_path / "cache", what="resized")
    with pytest.raises(ArgumentError, match="needs the same limits and exif_orientation for all sources"):
        MPDataset(Mixture({photos: 1, other: 1}), decode=decode, cache=cache)


class Odd:
    """A decoder of the user's own with attributes that have other meanings elsewhere."""

    groups = 2
    crop = 224

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def decode(self, data: bytes) -> bytes:
        return data


def test_decoders_of_the_user_are_not_looked_into() -> None:
    limits = Limits(max_pixels=1000)
    assert compact_for(Odd(limits)) == Compact(limits=limits)


@pytest.mark.parametrize(
    "decode",
    [
        GpuDecode(RandomResizedCrop(384)),
        BySource({"a.txt": RandomResizedCrop(64), "b.txt": RandomResizedCrop(384)}),
        BySource({"a.txt": RandomCrop(64)}),
    ],
)
def test_warnings_of_other_pixels_look_into_decoders(decode: Any) -> None:
    with pytest.warns(MploadWarning, match=r"enlarges images to 384 pixels|makes patches"):
        warn_of_other_pixels(decode)
