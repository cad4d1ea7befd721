"""Chunks from a cache: the same values and counts as samples made one by one, whatever the cache holds."""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mpload import (
    ErrorPolicy,
    Mixture,
    MPDataset,
    MPLoader,
    NumpyDecoder,
    PartialCache,
    RandomResizedCrop,
    RawBytes,
    Topology,
    Views,
)
from mpload.index.index import lines_of
from mpload.index.opening import open_index
from mpload.plan.batch_number import BatchNumber
from mpload.samples.cache.choice import open_cache
from mpload.samples.cache.opened import OpenCache
from mpload.samples.cached_reads import CachedReader
from mpload.samples.counts import CACHE_HITS, CACHE_MISSES
from tests.support.caches import opened, overwrite
from tests.support.chunks import OneWorker
from tests.support.fuzz_seeds import write_images_of_all_kinds
from tests.support.native import needs_native
from tests.support.photos import encode, make_photo_tree, photo

pytestmark = needs_native

NUM_FILES = 40
CROP = RandomResizedCrop(24)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An index of files of 0 to 60 kB."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for number in range(NUM_FILES):
        (tmp_path / "data" / f"{number}.bin").write_bytes(rng.bytes(int(rng.integers(1, 60_000)) if number else 0))
    return index_of(tmp_path, [f"data/{number}.bin" for number in range(NUM_FILES)])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of images, of which the native call declines some, and broken ones."""
    folder = tmp_path_factory.mktemp("photos")
    write_images_of_all_kinds(folder)
    return index_of(folder, sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")))


def index_of(folder: Path, names: list[str]) -> Path:
    lines = "".join(f"{name}\t{number}\n" for number, name in enumerate(names))
    (folder / "index.txt").write_text(f"#mpload 1\n#columns image:path label:int\n{lines}")
    return folder / "index.txt"


def dataset(index: Path | Mixture, cache: PartialCache | None, **options: Any) -> MPDataset:
    size = NUM_FILES if isinstance(index, Mixture) else len(open_index(index))
    chosen = {"decode": RawBytes(), "on_error": "skip", **options}
    return MPDataset(index, cache=cache, batch_size=size, shuffle=True, topology=Topology(), **chosen)


def batch(worker: OneWorker, *, chunk_samples: int = 11) -> tuple[Any, Any, list[int]]:
    """Return a batch, its failures, and the hits and misses that were counted."""
    size, failures, counts = worker.source.batch_size, [], [0, 0]
    for first in range(0, size, chunk_samples):
        report = worker.fill(0, first, min(first + chunk_samples, size))
        failures += report.failures
        counts = [count + report.tally.counts[at] for count, at in zip(counts, (CACHE_HITS, CACHE_MISSES), strict=True)]
    kept = np.setdiff1d(np.arange(size), [failure.sample for failure in failures])
    values = [[np.asarray(array[place]).tobytes() for place in kept] for array in worker.arrays.values()]
    return values, [(failure.sample, failure.cause) for failure in failures], counts


def same_batches(index: Path | Mixture, cache: PartialCache, **options: Any) -> list[list[int]]:
    """Check three batches made in bulk and one by one, with and without the cache. Return the counts of each."""
    plain = batch(OneWorker(dataset(index, None, **options)).without_bulk())
    bulk = dataset(index, cache, **options)
    alone = dataset(index, PartialCache(Path(cache.dir).with_name("alone"), fraction=cache.fraction), **options)
    counts = []
    for _ in range(3):
        worker = OneWorker(bulk)  # a new one, since a worker leaves chunks out after one that was mostly declined
        assert worker.work._bulk is not None
        found, same = batch(worker), batch(OneWorker(alone).without_bulk())
        assert found[:2] == same[:2] == plain[:2]
        assert found[2] == same[2]
        counts.append(found[2])
    return counts


@pytest.mark.processes
@pytest.mark.parametrize("fraction", [0.0001, 0.5, 1.0])
@pytest.mark.parametrize("as_array", [False, True])
def test_bytes_are_the_same(files: Path, tmp_path: Path, fraction: float, *, as_array: bool) -> None:
    cache = PartialCache(tmp_path / "cache", fraction=fraction)
    counts = same_batches(files, cache, decode=RawBytes(as_array=as_array))
    held = sum(map(opened(dataset(files, cache)).holds, range(NUM_FILES)))
    assert counts == [[0, NUM_FILES], [held, NUM_FILES - held], [held, NUM_FILES - held]]


@pytest.mark.processes
@pytest.mark.parametrize("repeats", [False, True])
def test_samples_of_a_mixture_are_the_same(files: Path, tmp_path: Path, *, repeats: bool) -> None:
    lines = files.read_text().splitlines(keepends=True)
    for name, part in (("a.txt", lines[2:27]), ("b.txt", lines[27:])):
        (tmp_path / name).write_text("".join(lines[:2] + part))
    mixture = Mixture({tmp_path / "a.txt": 1, tmp_path / "b.txt": 2}, repeats=repeats, source_column="source")
    counts = same_batches(mixture, PartialCache(tmp_path / "cache", fraction=1.0))
    assert counts[1] == counts[2] == [NUM_FILES, 0]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("decode", [CROP, {"views": Views(of="image", a=(2, CROP))}])
def test_images_of_all_kinds_and_broken_ones_are_the_same(photos: Path, tmp_path: Path, decode: Any) -> None:
    for fraction in (0.5, 1.0):
        same_batches(photos, PartialCache(tmp_path / f"{fraction}" / "cache", fraction=fraction), decode=decode)


@pytest.mark.processes
def test_arrays_are_the_same(tmp_path: Path) -> None:
    for number in range(NUM_FILES):
        np.save(tmp_path / f"{number}.npy", np.full((3, 5 + number % 2), number, np.float32))
    index = index_of(tmp_path, [f"{number}.npy" for number in range(NUM_FILES)])
    same_batches(index, PartialCache(tmp_path / "cache", fraction=0.7), decode=NumpyDecoder())


@pytest.mark.processes
@pytest.mark.parametrize("row_index", [None, True])
def test_resized_photos_give_the_crops_that_they_give_one_by_one(tmp_path: Path, row_index: bool | None) -> None:
    for number in range(12):
        image = Image.fromarray(photo(400 + 20 * number, 560, np.random.default_rng(number)))
        (tmp_path / f"{number}.jpg").write_bytes(encode(image, "JPEG", quality=95))
    index = index_of(tmp_path, [f"{number}.jpg" for number in range(12)])
    if row_index:
        for _ in range(2):  # entries of the originals, which do not fit the resized ones
            batch(OneWorker(dataset(index, None, decode=CROP, row_index=True)))
    cache = PartialCache(tmp_path / "cache", fraction=0.8, what="resized")
    first, second = [batch(OneWorker(dataset(index, cache, decode=CROP, row_index=row_index))) for _ in range(2)]
    alone = batch(OneWorker(dataset(index, cache, decode=CROP)).without_bulk())
    assert first[:2] == second[:2] == alone[:2]
    assert second[2] == alone[2]
    assert second[:2] != batch(OneWorker(dataset(index, None, decode=CROP)))[:2], "the resized ones are used"


@pytest.mark.processes
@pytest.mark.parametrize("decode", [RawBytes(), CROP])
def test_no_sample_of_a_full_cache_is_made_one_by_one(tmp_path: Path, decode: Any) -> None:
    make_photo_tree(tmp_path / "photos", num_images=NUM_FILES, num_classes=1, seed=0)
    names = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "photos").rglob("*.*"))
    made = dataset(index_of(tmp_path, names), PartialCache(tmp_path / "cache", fraction=0.6), decode=decode)
    batch(OneWorker(made))
    worker = OneWorker(made)
    worker.work._fill_one_by_one = None  # type: ignore[method-assign,assignment]
    reached: list[int] = []
    assert not worker.fill(0, 0, NUM_FILES, at=reached.append).failures
    assert reached == [0], "the chunk itself only"


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "overwritten": ("segment-*", lambda path: overwrite(path, random.Random(3))),
    "cut short": ("segment-*", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "deleted": ("segment-*", Path.unlink),
    "table overwritten": ("table", lambda path: overwrite(path, random.Random(2))),
}


@pytest.mark.processes
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_changes_no_byte(files: Path, tmp_path: Path, damage: str) -> None:
    chosen = dataset(files, PartialCache(tmp_path / "cache", fraction=1.0))
    plain = batch(OneWorker(dataset(files, None)))
    assert batch(OneWorker(chosen))[:2] == plain[:2]
    running = OneWorker(chosen)
    assert batch(running) == (*plain[:2], [NUM_FILES, 0])
    pattern, harm = DAMAGES[damage]
    for path in opened(chosen).folder.path.glob(pattern):
        harm(path)
    for _ in range(2):
        assert batch(running)[:2] == plain[:2]
        assert batch(OneWorker(chosen))[:2] == plain[:2]


@pytest.mark.processes
def test_a_file_that_changes_is_read_anew(files: Path, tmp_path: Path) -> None:
    made = dataset(files, PartialCache(tmp_path / "cache", fraction=1.0))
    batch(OneWorker(made))
    worker = OneWorker(made)
    batch(worker)
    for number in (3, 7):
        (files.parent / "data" / f"{number}.bin").write_bytes(b"new")
    found = batch(worker)
    assert found[:2] == batch(OneWorker(dataset(files, None)))[:2]
    assert found[2] == [NUM_FILES - 2, 2]
    assert batch(worker)[2] == [NUM_FILES, 0], "the new bytes are kept"


@pytest.mark.processes
def test_of_far_files_only_those_that_the_cache_lacks_are_read_each_once(files: Path, tmp_path: Path) -> None:
    cache = PartialCache(tmp_path / "cache", fraction=0.5, check_source=False)
    held = set(filter(opened(dataset(files, cache)).holds, range(NUM_FILES)))
    plain = batch(OneWorker(dataset(files, None)))
    for wanted in (range(NUM_FILES), set(range(NUM_FILES)) - held, set(range(NUM_FILES)) - held):
        worker = OneWorker(dataset(files, cache), is_far=True)
        assert batch(worker)[:2] == plain[:2]
        assert sorted(int(Path(item.path).stem) for item in worker.far.reads) == sorted(wanted)
        planned = worker.work.pipeline.ahead._planned
        assert (planned.held_bytes, planned.num_ahead, planned.pieces) == (0, 0, {})


@pytest.mark.processes
def test_the_sample_whose_entry_is_read_is_the_one_that_the_worker_says_it_is_at(files: Path, tmp_path: Path) -> None:
    made = dataset(files, PartialCache(tmp_path / "cache", fraction=1.0))
    batch(OneWorker(made))
    worker = OneWorker(made)
    cache = worker.work.pipeline.cache
    assert isinstance(cache, OpenCache)
    at: list[tuple[int, int]] = []
    copy = cache.copy
    cell = memoryview(bytearray(8)).cast("q")

    def watched(sample_id: int, path: str, room: memoryview) -> int:
        at.append((sample_id, cell[0]))
        return copy(sample_id, path, room)

    cache.copy = watched  # type: ignore[method-assign]
    number = BatchNumber(seed=0, epoch=0, start=0, batch=0, topology=Topology())
    ids = worker.work.sample_ids(number, 0, NUM_FILES).tolist()
    worker.fill(0, 0, NUM_FILES, cell=cell)
    assert list(dict.fromkeys(at)) == [(row, place) for place, row in enumerate(ids)], "some are asked for twice"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_all_that_fits_an_area_is_copied_into_it_once(tmp_path: Path, draw: st.DataObject) -> None:
    sizes = draw.draw(st.lists(st.integers(0, 300), min_size=1, max_size=12))
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    for number, size in enumerate(sizes):
        (folder / f"{number}.bin").write_bytes(bytes([number + 1]) * size)
    index = open_index(index_of(folder, [f"{number}.bin" for number in range(len(sizes))]))
    cache = open_cache(PartialCache(folder / "cache", fraction=1.0), index, read=lambda _: [])
    for number in range(len(sizes)):
        data = (folder / f"{number}.bin").read_bytes()
        cache.read(number, [f"{number}.bin"], lambda: [data])  # noqa: B023  called at once
    lines = lines_of(index, np.arange(len(sizes)))
    reader = CachedReader(cache, lines, 0, at=lambda _: None)
    area = np.zeros(draw.draw(st.integers(0, 700)), np.uint8)
    max_bytes = draw.draw(st.none() | st.integers(1, 400))
    done, most = 0, min(len(area), max_bytes or len(area))
    while done < len(sizes):
        found = reader.read(area, first=done, max_bytes=max_bytes)
        assert len(found.lengths)
        for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True):
            assert length == (sizes[done] if sizes[done] <= most else -1)
            if length >= 0:
                assert area[start : start + length].tobytes() == bytes([done + 1]) * length
            done += 1
    assert reader.is_hit.tolist() == [size <= most for size in sizes]
    cache.close()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:a bad sample")
def test_workers_make_the_same_batches_in_each_epoch(photos: Path, tmp_path: Path) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "errors.jsonl", max_error_fraction=1.0)

    def batches(cache: PartialCache | None) -> list[list[bytes]]:
        chosen = MPDataset(
            photos, decode=CROP, batch_size=16, shuffle=True, topology=Topology(), cache=cache, on_error=policy
        )
        with MPLoader(chosen, num_workers=2) as loader:
            found = []
            for epoch in range(3):
                loader.set_epoch(epoch)
                found.append([images.numpy().tobytes() for images, _ in loader])
            return found

    assert batches(PartialCache(tmp_path / "cache", fraction=0.7)) == batches(None)
