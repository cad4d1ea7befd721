"""A cache never exceeds its size limit, and uses most of it."""

import os
import random
import shutil
import sys
import warnings
from pathlib import Path

import pytest

from mpload import MPLoader, PartialCache
from mpload.errors import ArgumentError, MploadWarning
from mpload.samples.cache.entries import HEAD_BYTES
from mpload.units import MIB
from tests.support.batches import numbers_index
from tests.support.caches import NUM_FILES, num_held, opened, raw, read_epoch, segments, sources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and tmpfs of Linux")


def test_a_size_limit_determines_the_fraction(files: Path, tmp_path: Path) -> None:
    dataset = raw(files, PartialCache(tmp_path / "cache", max_bytes=MIB))
    cache = opened(dataset)
    total = sum(map(len, sources(files)))
    assert abs(cache.fraction - MIB / total) < 0.05
    read_epoch(dataset)
    before = cache.counts.misses
    assert read_epoch(dataset) == sources(files)
    assert cache.counts.hits >= 0.8 * before
    assert 0.6 * MIB < cache.used_bytes() <= MIB
    assert opened(raw(files, PartialCache(tmp_path / "other"))).fraction == 1.0


def test_the_fraction_allows_for_the_table_and_the_heads_of_entries(tmp_path: Path) -> None:
    num_samples = 40_000
    cache = opened(raw(numbers_index(tmp_path, num_samples), PartialCache(tmp_path / "cache", max_bytes=MIB)))
    taken = cache.folder.table_bytes + cache.fraction * num_samples * (HEAD_BYTES + 8)
    assert 0.96 * MIB < taken < 0.98 * MIB


@pytest.mark.processes
def test_the_limit_holds_across_processes_and_runs(files: Path, tmp_path: Path) -> None:
    for run in range(3):
        dataset = raw(files, PartialCache(tmp_path / "cache", max_bytes=2 * MIB, fraction=1.0), seed=run)
        with MPLoader(dataset, num_workers=3) as loader:
            assert sum(len(labels) for _, labels in loader) == NUM_FILES
        folder = opened(dataset).folder.path
        assert sum(path.stat().st_size for path in folder.iterdir() if path.name != "about.json") <= 2 * MIB
    assert opened(dataset).used_bytes() > 1.8 * MIB
    assert len(segments(opened(dataset))) <= 4


def test_space_reserved_by_a_dead_writer_is_used_by_the_next_one(files: Path, tmp_path: Path) -> None:
    choice = PartialCache(tmp_path / "cache", fraction=1.0)
    first = opened(raw(files, choice))
    data = sources(files)
    for number in range(10):
        first.read(number, [f"data/{number}.bin"], lambda: [data[0]])
    reserved = first.used_bytes()
    with segments(first)[0].open("r+b") as file:
        file.seek(first._writer._end)
        file.write(b"torn")
    first._writer._release()  # as the kernel does when a process dies
    second = opened(raw(files, choice))
    for number in range(10, 20):
        second.read(number, [f"data/{number}.bin"], lambda: [data[0]])
    assert second.used_bytes() == reserved
    assert len(segments(second)) == 1
    second.close()
    assert second.used_bytes() < reserved


def test_shrinking_frees_space_at_once_and_the_new_limit_holds(files: Path, tmp_path: Path) -> None:
    folder = Path("/dev/shm") / f"mpload-test-{os.getpid()}"
    try:
        dataset = raw(files, PartialCache(folder, max_bytes="64MiB", fraction=1.0))
        cache = opened(dataset)
        assert cache.is_tmpfs()
        read_epoch(dataset)
        assert cache.used_bytes() > 3 * MIB
        cache.shrink(MIB)
        assert cache.used_bytes() <= MIB
        for _ in range(2):
            assert read_epoch(dataset) == sources(files)
            assert cache.used_bytes() <= MIB
        cache.close()
        assert opened(raw(files, PartialCache(folder, fraction=1.0))).folder.limit_bytes() == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not opened(raw(files, PartialCache(tmp_path / "cache"))).is_tmpfs() or str(tmp_path).startswith("/dev/shm")


@pytest.mark.filterwarnings("ignore:.*The cache is not filled any further")
@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_somebody_deletes_takes_no_space(files: Path, tmp_path: Path, is_file: bool) -> None:
    dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    read_epoch(dataset)
    cache = opened(dataset)
    shutil.rmtree(cache.folder.path)
    if is_file:
        Path(cache.folder.path).touch()
    assert cache.used_bytes() == cache.folder.table_bytes
    cache.shrink(0)
    assert read_epoch(dataset) == sources(files)


@pytest.mark.processes
def test_a_cache_in_memory_counts_towards_the_budget_and_shrinks(files: Path) -> None:
    folder = Path("/dev/shm") / f"mpload-test-{os.getpid()}"
    data = files.parent / "data"
    for number in range(NUM_FILES):  # 60 MB
        (data / f"{number}.bin").write_bytes(random.Random(number).randbytes(500_000))
    try:
        dataset = raw(files, PartialCache(folder, max_bytes="1GiB", fraction=1.0))
        cache = opened(dataset)
        with MPLoader(dataset, num_workers=2, memory_budget="400MiB") as loader:
            assert loader._engine is not None
            governor = loader._engine.governor
            assert sum(len(labels) for _, labels in loader) == NUM_FILES
            before = cache.used_bytes()
            assert before > 55 * MIB
            governor._budget_bytes = 60 * MIB
            governor._checked -= 2  # seconds
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                governor.check()
            assert "the cache in memory gives up" in str(caught[0].message)
            assert cache.used_bytes() < 40 * MIB
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MploadWarning)  # fewer batches ahead
                found = {
                    label: data for batch in loader for data, label in zip(batch[0], batch[1].tolist(), strict=True)
                }
            assert [found[number] for number in range(NUM_FILES)] == sources(files)
            assert cache.used_bytes() < 40 * MIB
        cache.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_full_cache_is_refilled_after_its_sources_changed(files: Path, tmp_path: Path) -> None:
    dataset = raw(files, PartialCache(tmp_path / "cache", max_bytes=3 * MIB, fraction=0.6))
    cache = opened(dataset)
    read_epoch(dataset)
    for number in range(NUM_FILES):
        os.utime(files.parent / "data" / f"{number}.bin", ns=(1, 1))
    for _ in range(3):
        read_epoch(dataset)
    before = cache.counts.hits
    assert read_epoch(dataset) == sources(files)
    assert cache.counts.hits - before >= 0.9 * num_held(cache, NUM_FILES)


def test_a_limit_that_the_table_alone_would_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="at least twice as much"):
        raw(numbers_index(tmp_path, 100_000), PartialCache(tmp_path / "cache", max_bytes=MIB))
