"""The files of a cache: which files belong to it, which segment a process writes to, and which segments are deleted."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpload import PartialCache
from mpload.index.opening import open_index
from mpload.samples.cache.choice import open_cache
from mpload.samples.cache.entries import make_entry
from mpload.samples.cache.opened import OpenCache
from mpload.units import KIB, MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks of Linux")

NUM_SAMPLES = 400
OFFSET_BITS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "all.txt").write_text("".join(f"{number}.bin 0\n" for number in range(NUM_SAMPLES)))
    return tmp_path


def opened(folder: Path, *, max_bytes: int = 64 * MIB, check_source: bool = False) -> OpenCache:
    choice = PartialCache(folder / "cache", max_bytes=max_bytes, fraction=1.0, check_source=check_source)
    return open_cache(choice, open_index(folder / "all.txt"), read=lambda _: [b""])


def data_of(sample_id: int, num_bytes: int = 1000) -> bytes:
    return sample_id.to_bytes(8, "little") * (num_bytes // 8)


def fill(cache: OpenCache, *sample_ids: int, num_bytes: int = 1000) -> None:
    for sample_id in sample_ids:
        data = data_of(sample_id, num_bytes)
        assert cache.read(sample_id, [f"{sample_id}.bin"], lambda data=data: [data]) == [data]  # type: ignore[misc]


def num_hits(folder: Path, *sample_ids: int, num_bytes: int = 1000) -> int:
    """Read samples with another cache object, as another process would, and return the number of hits."""
    reader = opened(folder)
    fill(reader, *sample_ids, num_bytes=num_bytes)
    reader.close()
    return reader.counts.hits


def segment(cache: OpenCache, number: int) -> Path:
    return cache.folder.path / f"segment-{number:06}"


def write_segments(cache: OpenCache, *numbers: int) -> int:
    """Write segments with one entry each, for the sample with the same number; return the size of one segment."""
    for number in numbers:
        entry = b"".join(make_entry([data_of(number)], sample_id=number, stamp=0, key=cache.folder.key))
        segment(cache, number).write_bytes(entry)
        cache.folder.publish(number, (number << OFFSET_BITS).to_bytes(8, "little"))
    return len(entry)


def in_forked_process(act: Callable[[], object]) -> None:
    pid = os.fork()
    if not pid:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


# --- which files belong to the cache


def replace_by_another_data_sets(table: Path) -> None:
    page = bytearray(table.read_bytes())
    page[8] ^= 1  # a byte of the key
    table.write_bytes(page)


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda table: os.truncate(table, 4200), replace_by_another_data_sets],
    ids=["deleted", "truncated", "another data set's"],
)
def test_an_invalid_table_is_created_again_and_its_segments_are_deleted(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    first = opened(folder)
    fill(first, *range(10))
    first.close()
    damage(first.folder.path / "table")
    again = opened(folder)
    assert (again.folder.path / "table").stat().st_size == again.folder.table_bytes == again.used_bytes()
    assert not any(map(again.has, range(10)))
    again.close()


def test_folders_and_links_named_like_segments_are_ignored(folder: Path) -> None:
    cache = opened(folder)
    fill(cache, 1)
    before = cache.folder.segments()
    (folder / "mine.txt").write_text("mine")
    segment(cache, 77).mkdir()
    segment(cache, 78).symlink_to(folder / "mine.txt")
    assert cache.folder.segments() == before
    cache.shrink(0)
    assert cache.folder.segments() == {}
    assert (folder / "mine.txt").read_text() == "mine"
    assert segment(cache, 77).is_dir()
    cache.close()


def test_a_reader_keeps_at_most_256_segments_open(folder: Path) -> None:
    cache = opened(folder)
    write_segments(cache, *range(1, 301))
    before = len(list(Path("/proc/self/fd").iterdir()))
    fill(cache, *range(1, 301))
    assert cache.counts.hits == 300
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 256
    cache.close()


# --- which segment a process writes to


def test_a_segment_with_a_torn_entry_is_continued_after_its_last_complete_one(folder: Path) -> None:
    first = opened(folder)
    fill(first, 1, 2, 3)
    place = first.folder.place_of(3)
    first.close()
    path = segment(first, first.folder.segment_of(place))
    os.truncate(path, path.stat().st_size - 10)
    second = opened(folder)
    fill(second, 4)
    assert second.folder.place_of(4) == place
    second.close()
    assert num_hits(folder, 1, 2, 4) == 3


def test_a_segment_that_a_process_is_writing_to_is_not_dropped(folder: Path) -> None:
    writing, other = opened(folder), opened(folder)
    fill(writing, 1)
    (number,) = writing.folder.segments()
    other.folder.drop(number)
    assert number in other.folder.segments()
    writing.close()
    other.folder.drop(number)
    assert other.folder.segments() == {}
    other.close()


def test_a_writer_whose_segment_was_deleted_starts_another_one(folder: Path) -> None:
    cache = opened(folder)
    fill(cache, 1)
    segment(cache, *cache.folder.segments()).unlink()
    fill(cache, 2)
    cache.close()
    assert num_hits(folder, 2) == 1


@pytest.mark.processes
def test_a_forked_process_writes_to_its_own_segment(folder: Path) -> None:
    cache = opened(folder)
    fill(cache, 1)

    def fill_and_close() -> None:
        fill(cache, 2)
        cache.close()

    in_forked_process(fill_and_close)
    fill(cache, 3)
    assert len(cache.folder.segments()) == 2
    cache.close()
    assert num_hits(folder, 1, 2, 3) == 3


@pytest.mark.processes
def test_a_forked_process_that_closes_its_cache_leaves_the_parents_segment_unchanged(folder: Path) -> None:
    cache = opened(folder)
    fill(cache, 1)
    before = cache.folder.segments()
    in_forked_process(cache.close)
    assert cache.folder.segments() == before
    cache.close()
    assert cache.folder.segments() != before  # unused space was released


def test_the_second_process_to_store_a_sample_writes_nothing(folder: Path) -> None:
    first, second = opened(folder), opened(folder)

    def read_after_the_first_one_stored_it() -> list[bytes]:
        fill(first, 7)
        return [data_of(7)]

    assert second.read(7, ["7.bin"], read_after_the_first_one_stored_it) == [data_of(7)]
    assert second.folder.segment_of(second.folder.place_of(7)) in first.folder.segments()
    assert len(second.folder.segments()) == 1
    first.close()
    second.close()


# --- size


def test_an_entry_that_would_exceed_the_limit_is_not_written(folder: Path) -> None:
    cache = opened(folder, max_bytes=MIB)
    for sample_id in range(6):
        fill(cache, sample_id, num_bytes=300 * KIB)
        assert cache.used_bytes() <= MIB
    cache.close()
    assert num_hits(folder, *range(6), num_bytes=300 * KIB) == 3


def test_shrinking_frees_the_oldest_segments_at_once_even_while_they_are_open(folder: Path) -> None:
    cache, reader = opened(folder), opened(folder)
    num_bytes = write_segments(cache, 1, 2, 3)
    fill(reader, 1, 2, 3)
    with segment(cache, 1).open("rb") as held:
        cache.shrink(cache.folder.table_bytes + num_bytes)
        assert os.fstat(held.fileno()).st_size == 0
    assert list(cache.folder.segments()) == [3]
    cache.close()
    reader.close()


def test_a_limit_set_by_shrinking_holds_until_all_writers_have_ended(folder: Path) -> None:
    writing = opened(folder)
    fill(writing, 1)
    writing.shrink(4 * MIB)
    fill(writing, 2)
    beside = opened(folder)
    assert beside.folder.limit_bytes() == 4 * MIB
    beside.close()
    writing.close()
    later = opened(folder)
    assert later.folder.limit_bytes() == 0
    later.close()


def test_segments_have_a_maximum_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(folder)
    fill(cache, 0, num_bytes=300 * KIB)
    monkeypatch.setattr(sys.modules[type(cache._writer).__module__], "_SEGMENT_BYTES", MIB)
    fill(cache, *range(1, 10), num_bytes=300 * KIB)
    cache.close()
    assert max(cache.folder.segments().values()) <= MIB
    assert len(cache.folder.segments()) == 4
    assert num_hits(folder, *range(10), num_bytes=300 * KIB) == 10


# --- changed sources


def test_a_source_that_cannot_be_checked_is_not_cached_and_not_counted_as_damaged(folder: Path) -> None:
    cache = opened(folder, check_source=True)
    fill(cache, 1)
    assert not cache.has(1)
    (folder / "1.bin").write_bytes(data_of(1))
    fill(cache, 1)
    assert cache.has(1)
    (folder / "1.bin").unlink()
    fill(cache, 1)
    assert (cache.counts.hits, cache.counts.damaged) == (0, 0)
    cache.close()


@pytest.mark.parametrize("changed", [0, 1])
@pytest.mark.parametrize("what", ["size", "time"])
def test_a_change_of_any_source_of_a_sample_is_detected(folder: Path, changed: int, what: str) -> None:
    names = ["1.bin", "2.bin"]
    for name in names:
        (folder / name).write_bytes(b"before")
        os.utime(folder / name, ns=(1, 1))
    cache = opened(folder, check_source=True)

    def read() -> list[bytes]:
        return cache.read(1, names, lambda: [(folder / name).read_bytes() for name in names])

    before = read()
    assert read() == before
    assert cache.counts.hits == 1
    (folder / names[changed]).write_bytes(b"longer" * 9 if what == "size" else b"after!")
    os.utime(folder / names[changed], ns=(1, 1 if what == "size" else 2))
    assert read() == [(folder / name).read_bytes() for name in names] != before
    cache.close()
