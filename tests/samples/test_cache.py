"""PartialCache: hits for a fixed share of samples, the same batches cold and warm, its commands and arguments."""

import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import (
    Letterbox,
    MPDataset,
    MPLoader,
    PartialCache,
    RandomCrop,
    RandomResizedCrop,
    RawBytes,
    ResizeCenterCrop,
    Shuffle,
    Topology,
    build_index,
)
from mpload.errors import ArgumentError, MploadWarning
from mpload.samples.cache.choice import CachedForm
from tests.support.batches import numbers_index, same
from tests.support.caches import NUM_FILES, num_held, opened, overwrite, raw, read_epoch, segments, sources
from tests.support.programs import cache_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and tmpfs of Linux")


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("cache.txt"))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_from_the_second_epoch_on_exactly_the_subset_hits(files: Path, tmp_path: Path, fraction: float) -> None:
    dataset = raw(files, PartialCache(tmp_path / "cache", max_bytes="1GiB", fraction=fraction))
    cache = opened(dataset)
    held = num_held(cache, NUM_FILES)
    for epoch in range(3):
        assert read_epoch(dataset) == sources(files)
        assert cache.counts.hits == epoch * held
        assert cache.counts.misses == held
    assert cache.counts.outside == 3 * (NUM_FILES - held)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.7])
def test_any_part_of_any_shuffle_holds_the_same_share_of_the_subset(
    files: Path, tmp_path: Path, fraction: float
) -> None:
    cache = opened(raw(files, PartialCache(tmp_path / "cache", fraction=fraction)))
    num_samples = 40_000
    for epoch in range(2):
        order = Shuffle().order(num_samples=num_samples, seed=3, epoch=epoch)
        for start in range(0, num_samples, 10_000):
            ids = order.sample_ids(np.arange(start, start + 10_000))
            share = sum(map(cache.holds, ids.tolist())) / 10_000
            assert abs(share - fraction) < 0.02  # four standard deviations
    assert abs(num_held(cache, num_samples) / num_samples - fraction) < 0.01


def test_a_larger_fraction_hits_the_entries_of_a_smaller_one(files: Path, tmp_path: Path) -> None:
    small = raw(files, PartialCache(tmp_path / "cache", fraction=0.4))
    read_epoch(small)
    opened(small).close()
    large = raw(files, PartialCache(tmp_path / "cache", fraction=0.8))
    read_epoch(large)
    assert opened(large).counts.hits == opened(small).counts.misses


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("what", CachedForm)
def test_batches_are_the_same_cold_and_warm_with_and_without_workers(
    photos: Path, tmp_path: Path, what: CachedForm, num_workers: int
) -> None:
    def dataset(cache: PartialCache | None) -> MPDataset:
        return MPDataset(
            photos, decode=RandomResizedCrop(64), batch_size=5, shuffle=True, topology=Topology(), cache=cache
        )

    cache = PartialCache(tmp_path / "cache", fraction=0.6, what=what)
    other = PartialCache(tmp_path / "other", fraction=0.6, what=what)
    expected = list(dataset(None if what == "bytes" else other))
    for _ in range(2):
        with MPLoader(dataset(cache), num_workers=num_workers) as loader:
            assert same(list(loader), expected)
    warm = dataset(cache)
    assert same(list(warm), expected)
    assert opened(warm).counts.misses == 0
    assert opened(warm).counts.hits > 5


def test_resized_images_are_smaller_and_look_the_same(photos: Path, tmp_path: Path) -> None:
    plain, resized = (
        raw(photos, PartialCache(tmp_path / "cache", fraction=1.0, what=what)) for what in ("bytes", "resized")
    )
    whole, small = ([data for batch in dataset for data in batch[0]] for dataset in (plain, resized))
    assert all(len(after) <= len(before) for before, after in zip(whole, small, strict=True))
    assert sum(map(len, small)) < 0.7 * sum(map(len, whole))
    crop = RandomResizedCrop(64, scale=(1.0, 1.0))

    def pixels(data: bytes) -> NDArray[np.float64]:
        return np.asarray(crop(data, np.random.default_rng(0)), np.float64)

    for before, after in zip(whole, small, strict=True):
        assert abs(pixels(before).mean() - pixels(after).mean()) < 3


def test_spans_of_a_shard_are_cached_separately(tmp_path: Path) -> None:
    index = numbers_index(tmp_path, 500)
    dataset = raw(index, PartialCache(tmp_path / "cache", fraction=1.0))
    for _ in range(2):
        assert read_epoch(dataset) == [number.to_bytes(8, "little") for number in range(500)]
    assert opened(dataset).counts.hits == 500


def test_all_sources_of_a_sample_are_cached_together(files: Path, tmp_path: Path) -> None:
    lines = [f"data/{number}.bin\tdata/{number // 2}.bin\n" for number in range(NUM_FILES)]
    files.write_text("#mpload 1\n#columns left:path right:path\n" + "".join(lines))
    expected = [(left, sources(files)[number // 2]) for number, left in enumerate(sources(files))]
    dataset = MPDataset(
        files, decode=RawBytes(), topology=Topology(), cache=PartialCache(tmp_path / "cache", fraction=1.0)
    )
    for _ in range(2):
        assert [tuple(sample) for sample in dataset] == expected
    assert opened(dataset).counts.hits == NUM_FILES


@pytest.mark.processes
def test_the_command_line_shows_verifies_and_clears(files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    dataset = raw(files, PartialCache(folder, fraction=0.5))
    read_epoch(dataset)
    cache = opened(dataset)
    cache.close()
    (folder / "mine.txt").write_text("not the cache's")
    code, (facts,), _ = cache_command("info", folder, "--json")
    assert code == 0
    assert facts["num_entries"] == num_held(cache, NUM_FILES)
    assert (facts["num_samples"], facts["used_bytes"]) == (NUM_FILES, cache.used_bytes())
    assert cache_command("verify", folder)[0] == 0
    overwrite(segments(cache)[0], random.Random(0))
    code, (facts,), _ = cache_command("verify", folder, "--json")
    assert code == 1
    assert facts["num_damaged"] > 3
    code, printed, _ = cache_command("clear", folder)
    assert code == 0
    assert "deleted" in printed
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert cache_command("info", folder)[1] == f"{folder}: no caches here. Name the folder given to PartialCache\n"
    assert cache_command("verify", folder)[0] == 1
    assert cache_command("info", tmp_path / "nowhere")[0] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        *({"fraction": value} for value in (0.0, 1.1, "0.5", float("nan"))),
        *({"max_bytes": value} for value in ("1KB", "x", None, float("nan"))),
        *({"dir": value} for value in ("", None, 3)),
        {"what": "pixels"},
    ],
    ids=str,
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        PartialCache(**({"dir": "cache"} | wrong))


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (RandomResizedCrop(257), "RandomResizedCrop enlarges images to 257 pixels"),
        (ResizeCenterCrop(256), "ResizeCenterCrop enlarges images to 293 pixels"),
        (ResizeCenterCrop(224, resize=260), "enlarges images to 260 pixels"),
        (Letterbox((640, 480)), "Letterbox enlarges images to 480 pixels"),
        (RandomCrop(64), "RandomCrop makes patches of smaller images"),
        (RandomResizedCrop((256, 400)), None),
        (ResizeCenterCrop(224), None),
        (RawBytes(), None),
    ],
)
def test_decoders_for_which_smaller_images_are_too_small_are_told_so(
    photos: Path, tmp_path: Path, decode: Any, message: str | None
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MPDataset(photos, decode=decode, cache=PartialCache(tmp_path, what="resized", fraction=0.5))
    found = [str(each.message) for each in caught if issubclass(each.category, MploadWarning)]
    assert len(found) == (message is not None)
    assert message is None or message in found[0]
