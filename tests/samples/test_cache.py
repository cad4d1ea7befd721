"""PartialCache hits for a fixed share of samples, never returns a wrong byte and never exceeds its limit."""

import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import MPDataset, MPLoader, PartialCache, RandomResizedCrop, RawBytes, Shuffle, Topology, build_index
from mpload.errors import ArgumentError, MploadWarning, SampleError
from mpload.index.opening import open_index
from mpload.samples.cache.choice import CachedForm, open_cache
from mpload.samples.cache.entries import HEAD_BYTES, make_entry, payload_fits, read_head, split_parts
from mpload.samples.cache.folder import segment_name
from mpload.samples.cache.opened import OpenCache
from mpload.storage.ranges import ByteRange
from mpload.transport.batches import PoolOptions
from mpload.units import KIB, MIB
from tests.support.batches import numbers_index, same
from tests.support.programs import cache_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and tmpfs of Linux")

NUM_FILES = 120


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An index of files of 1 to 60 kB, about 3.5 MB in all."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for number in range(NUM_FILES):
        (tmp_path / "data" / f"{number}.bin").write_bytes(rng.bytes(int(rng.integers(1_000, 60_000))))
    path = tmp_path / "all.txt"
    path.write_text("".join(f"data/{number}.bin {number}\n" for number in range(NUM_FILES)))
    return path


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("cache.txt"))


def raw(index: Path, cache: PartialCache | None, **options: Any) -> MPDataset:
    return MPDataset(
        index, decode=RawBytes(), batch_size=8, tail="ragged", shuffle=True, topology=Topology(), cache=cache, **options
    )


def opened(dataset: MPDataset) -> OpenCache:
    assert dataset._run.cache is not None
    return dataset._run.cache


def sources(index: Path) -> list[bytes]:
    return [(index.parent / "data" / f"{number}.bin").read_bytes() for number in range(NUM_FILES)]


def read_epoch(dataset: MPDataset) -> list[bytes]:
    """Read an epoch and return the samples' bytes, ordered by sample number."""
    found: dict[int, bytes] = {}
    for data, labels in dataset:
        found.update(zip(labels.tolist(), data, strict=True))
    return [found[number] for number in sorted(found)]


def check_epochs(dataset: MPDataset, files: Path, *, num_epochs: int) -> None:
    for _ in range(num_epochs):
        assert read_epoch(dataset) == sources(files)


def num_held(cache: OpenCache, num_samples: int) -> int:
    return sum(map(cache.holds, range(num_samples)))


def segments(cache: OpenCache) -> list[Path]:
    return [cache.folder.path / segment_name(number) for number in cache.folder.segments()]


# --- hits and their bytes


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


# --- size


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


def test_each_form_has_its_own_checksum_key(files: Path, tmp_path: Path) -> None:
    keys = {opened(raw(files, PartialCache(tmp_path, what=what))).folder.key for what in ("bytes", "resized")}
    assert len(keys) == 2


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


# --- damaged, deleted and foreign files


def overwrite(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        for _ in range(40):
            file.seek(rng.randrange(path.stat().st_size))
            file.write(rng.randbytes(rng.randrange(1, 64)))


def swap_places(cache: OpenCache) -> None:
    table = cache.folder.path / "table"
    page, places = table.read_bytes()[:4096], np.frombuffer(table.read_bytes()[4096:], np.uint64)
    table.write_bytes(page + places[::-1].tobytes())


def to_segments(act: Callable[[Path], object]) -> Callable[[OpenCache], None]:
    def to_each(cache: OpenCache) -> None:
        for path in segments(cache):
            act(path)

    return to_each


def to_table(act: Callable[[Path], object]) -> Callable[[OpenCache], None]:
    def to_it(cache: OpenCache) -> None:
        act(cache.folder.path / "table")

    return to_it


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def add_foreign_files(cache: OpenCache) -> None:
    for name in ("notes.txt", "segment-x", "segment-777777"):
        (cache.folder.path / name).write_bytes(b"hello")


DAMAGES: dict[str, Callable[[OpenCache], None]] = {
    "segments overwritten": to_segments(lambda path: overwrite(path, random.Random(1))),
    "segments truncated": to_segments(lambda path: os.truncate(path, path.stat().st_size // 3)),
    "segments deleted": to_segments(Path.unlink),
    "segments replaced by folders": to_segments(replace_by_folder),
    "segments of another program": to_segments(lambda path: path.write_bytes(b"x" * 99_999)),
    "table overwritten": to_table(lambda path: overwrite(path, random.Random(2))),
    "table truncated": to_table(lambda path: os.truncate(path, 4200)),
    "table deleted": to_table(Path.unlink),
    "places swapped": swap_places,
    "foreign files": add_foreign_files,
}


@pytest.mark.parametrize("check_source", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_misses_and_never_wrong_data(
    files: Path, tmp_path: Path, damage: str, check_source: bool
) -> None:
    choice = PartialCache(tmp_path / "cache", fraction=1.0, max_bytes="64MiB", check_source=check_source)
    running = raw(files, choice)
    read_epoch(running)
    DAMAGES[damage](opened(running))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)
        assert read_epoch(running) == sources(files)
        opened(running).close()
        later = raw(files, choice)
        for _ in range(3):
            assert read_epoch(later) == sources(files)
    assert opened(later).counts.hits >= 2 * NUM_FILES  # the cache has recovered


@pytest.mark.parametrize("position", range(0, HEAD_BYTES + 20, 3))
def test_a_change_of_any_byte_of_an_entry_is_detected(position: int) -> None:
    head, payload = make_entry([b"some bytes", b"and more of them"], sample_id=7, stamp=9, key=5)
    entry = bytearray(head + payload)

    def read(entry: bytes, key: int = 5) -> list[bytes] | None:
        found = read_head(entry[:HEAD_BYTES], key=key)
        is_whole = found is not None and payload_fits(found, entry[HEAD_BYTES:], key=key)
        return split_parts(entry[HEAD_BYTES:], found.num_parts) if found and is_whole else None

    assert read(bytes(entry)) == [b"some bytes", b"and more of them"]
    assert read(bytes(entry), key=6) is None
    entry[position] ^= 1
    assert read(bytes(entry)) is None


def test_a_changed_source_is_read_again_unless_the_index_is_trusted(files: Path, tmp_path: Path) -> None:
    careful, trusting = (
        raw(files, PartialCache(tmp_path / str(check), fraction=1.0, check_source=check)) for check in (True, False)
    )
    before = sources(files)
    for dataset in (careful, trusting):
        assert read_epoch(dataset) == before
    changed = files.parent / "data" / "17.bin"
    changed.write_bytes(bytes(len(before[17])))
    os.utime(changed, ns=(1, 1))
    assert read_epoch(trusting) == before
    for _ in range(2):
        assert read_epoch(careful) == sources(files) != before
    assert opened(careful).counts.damaged == 1


class RemoteFiles:
    """A storage whose sources are not files of this machine."""

    def __init__(self, files: Path) -> None:
        self.data = {f"data/{number}.bin": data for number, data in enumerate(sources(files))}

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        return [self.data[item.path.removeprefix("s3://far/")] for item in ranges]


@pytest.mark.parametrize("prefix", ["", "s3://far/"])
def test_sources_that_are_not_local_files_are_cached_too(files: Path, tmp_path: Path, prefix: str) -> None:
    storage, expected = RemoteFiles(files), sources(files)
    files.write_text("".join(f"{prefix}data/{number}.bin {number}\n" for number in range(NUM_FILES)))
    shutil.rmtree(files.parent / "data")
    dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0), storage=storage)
    for _ in range(2):
        assert read_epoch(dataset) == expected
    assert opened(dataset).counts.hits == NUM_FILES


def test_a_url_among_local_files_is_cached_and_never_checked(files: Path, tmp_path: Path) -> None:
    cache = open_cache(PartialCache(tmp_path / "cache", fraction=1.0), open_index(files), read=lambda _: [b""])
    for data in (b"one", b"two"):
        assert cache.read(3, ["s3://bucket/key"], lambda data=data: [data]) == [b"one"]  # type: ignore[misc]
    cache.close()


def test_a_deleted_source_is_an_error_even_if_it_was_cached(files: Path, tmp_path: Path) -> None:
    dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    read_epoch(dataset)
    (files.parent / "data" / "17.bin").unlink()
    with pytest.raises(SampleError, match=r"data/17\.bin"):
        read_epoch(dataset)


def test_data_sets_with_the_same_lines_never_mix_in_one_folder(files: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "data", tmp_path / "copy" / "data")
    other = tmp_path / "copy" / "all.txt"
    other.write_bytes(files.read_bytes())
    for number, data in enumerate(sources(files)):
        path = tmp_path / "copy" / "data" / f"{number}.bin"
        path.write_bytes(data[::-1])
        os.utime(path, ns=(1, (tmp_path / "data" / path.name).stat().st_mtime_ns))
    datasets = [raw(index, PartialCache(tmp_path / "cache", fraction=1.0)) for index in (files, other)]
    for _ in range(2):
        for index, dataset in zip((files, other), datasets, strict=True):
            assert read_epoch(dataset) == sources(index)
    a, b = (opened(dataset).folder for dataset in datasets)
    for name in ("table", "segment-000001"):  # not even if one's files replace the other's
        shutil.copy(a.path / name, b.path / name)
    assert read_epoch(datasets[1]) == sources(other)
    assert read_epoch(raw(other, PartialCache(tmp_path / "cache", fraction=1.0))) == sources(other)


def test_another_version_of_the_format_has_its_own_files(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_epoch(raw(files, PartialCache(tmp_path / "cache", fraction=1.0)))
    monkeypatch.setattr("mpload.samples.cache.choice.FORMAT", "mpload-cache-2")
    later = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    assert read_epoch(later) == sources(files)
    assert opened(later).counts.hits == 0
    assert len(list((tmp_path / "cache").iterdir())) == 2


@contextmanager
def tmpfs(folder: Path, num_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "none", folder], check=False)
    if made.returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def assert_continues_with_one_warning(files: Path, folder: Path) -> None:
    dataset = raw(files, PartialCache(folder, fraction=1.0))
    with pytest.warns(MploadWarning, match="not filled any further") as caught:
        check_epochs(dataset, files, num_epochs=3)
    assert len(caught) == 1
    counts = opened(dataset).counts
    assert 0.2 * NUM_FILES < counts.hits / 2 < 0.8 * NUM_FILES
    assert counts.damaged == 0, "an entry that was cut off by the full disk was published"
    opened(dataset).close()


@pytest.mark.processes
def test_a_full_disk_ends_filling_with_one_warning(files: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 2 * MIB) as disk:
        assert_continues_with_one_warning(files, disk)


def test_a_limit_on_file_sizes_ends_filling_with_one_warning(files: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, before[1]))
    try:
        dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
        with pytest.warns(MploadWarning, match="File too large") as caught:
            check_epochs(dataset, files, num_epochs=2)
        assert len(caught) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.processes
def test_workers_warn_of_a_full_disk_once(files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with tmpfs(tmp_path / "disk", MIB) as disk:
        dataset = raw(files, PartialCache(disk, fraction=1.0))
        with MPLoader(dataset, num_workers=3) as loader:
            for _ in range(2):
                found = {
                    label: data for batch in loader for data, label in zip(batch[0], batch[1].tolist(), strict=True)
                }
                assert [found[number] for number in range(NUM_FILES)] == sources(files)
        opened(dataset).close()
    assert capfd.readouterr().err.count("not filled any further") == 1


@pytest.mark.processes
def test_a_read_only_folder_is_read_and_gives_one_warning(files: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 8 * MIB) as disk:
        choice = PartialCache(disk, fraction=1.0)
        first = raw(files, choice)
        for data, _ in first:
            if opened(first).counts.misses >= NUM_FILES // 2:
                assert data
                break
        num_kept = opened(first).counts.misses
        opened(first).close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.warns(MploadWarning, match="Read-only file system") as caught:
            dataset = raw(files, choice)
        check_epochs(dataset, files, num_epochs=1)
        with MPLoader(dataset, num_workers=2) as loader:
            assert sum(len(labels) for _, labels in loader) == NUM_FILES
        assert len(caught) == 1
        assert opened(dataset).counts.hits == num_kept
        opened(dataset).close()


def test_a_folder_that_cannot_be_created_gives_one_warning(files: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(MploadWarning, match="Not a directory") as caught:
        dataset = raw(files, PartialCache(tmp_path / "file" / "cache", fraction=1.0))
    check_epochs(dataset, files, num_epochs=2)
    assert len(caught) == 1


@pytest.mark.processes
@pytest.mark.parametrize("num_kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_processes_killed_while_filling_leave_no_wrong_byte(tmp_path: Path, num_kills: int) -> None:
    command = [sys.executable, "-m", "tests.support.cache_kills", str(tmp_path), str(num_kills)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    found = json.loads(ran.stdout)
    assert (found["wrong"], found["exited"], found["over_limit"]) == (0, 0, 0)
    assert found["kills"] == num_kills
    assert found["hits_in_the_end"] > 0
    assert found["most_segments"] <= 8
    assert found["folder_bytes"] <= found["max_bytes"] + 64 * KIB


@pytest.mark.processes
def test_workers_killed_while_filling_a_cache_change_no_batch(files: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    with MPLoader(dataset, num_workers=3, options=PoolOptions(max_restarts=1000)) as loader:
        for epoch in itertools.count():
            found: dict[int, bytes] = {}
            for data, labels in loader:
                found.update(zip(labels.tolist(), data, strict=True))
                workers = [pid for name, pid in loader.pids.items() if "worker" in name]
                if workers and chance.random() < 0.3:
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(workers), signal.SIGKILL)
            assert [found[number] for number in sorted(found)] == sources(files)
            if epoch >= 3 and loader.stats().num_deaths > 3:
                break
    later = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    for _ in range(2):
        assert read_epoch(later) == sources(files)
    assert opened(later).counts.hits >= 1.9 * NUM_FILES
    assert len(segments(opened(later))) <= 4  # space that dead workers had reserved is reused


RANK = """
import random, sys
from pathlib import Path
from mpload.samples.cache.choice import PartialCache, open_cache
from mpload.index.opening import open_index
index, rank = open_index(sys.argv[1]), int(sys.argv[3])
root = Path(index.root)
cache = open_cache(PartialCache(sys.argv[2], max_bytes="64MiB", fraction=0.7), index, read=None)
order = random.Random(0)
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(3):
    for record in order.sample(list(index), len(index))[rank::3]:
        data = (root / record.cells[0]).read_bytes()
        assert cache.read(record.sample_id, [record.cells[0]], lambda: [data]) == [data]
print(cache.counts.hits, cache.counts.misses, cache.counts.damaged)
cache.close()
"""


@pytest.mark.processes
def test_ranks_fill_one_cache_together(files: Path, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, files, tmp_path / "cache", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    counts = np.array([[int(word) for word in rank.communicate(timeout=60)[0].split()] for rank in ranks])
    assert all(rank.returncode == 0 for rank in ranks)
    cache = opened(raw(files, PartialCache(tmp_path / "cache", max_bytes="64MiB", fraction=0.7)))
    held = [number for number in range(NUM_FILES) if cache.holds(number)]
    hits, misses, damaged = counts.sum(axis=0).tolist()
    assert damaged == 0
    assert hits + misses == 3 * len(held)
    # A sample that one rank missed is a hit for the others. Ranks are not in step, so two may miss one at once.
    assert len(held) <= misses < 1.5 * len(held)
    kept = sum(len(data) for number, data in enumerate(sources(files)) if number in held)
    assert kept < cache.used_bytes() - cache.folder.table_bytes < 1.5 * kept
    assert read_epoch(raw(files, PartialCache(tmp_path / "cache", max_bytes="64MiB", fraction=0.7))) == sources(files)


# --- command line and wrong values


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
    assert cache_command("info", tmp_path / "nowhere")[0] == 1


@pytest.mark.parametrize(
    "wrong", [{"fraction": 0.0}, {"fraction": 1.1}, {"max_bytes": "1KB"}, {"what": "pixels"}, {"max_bytes": "x"}]
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        PartialCache("cache", **wrong)


def test_a_limit_that_the_table_alone_would_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="at least twice as much"):
        raw(numbers_index(tmp_path, 100_000), PartialCache(tmp_path / "cache", max_bytes=MIB))
