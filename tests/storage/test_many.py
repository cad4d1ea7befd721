"""Reading many ranges with one native call: the same bytes as one by one, or declined, and never an error."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.errors import MploadError
from mpload.storage.local import LocalStorage
from mpload.storage.many import ManyRanges, ManyRead, ManyReader
from mpload.storage.mapped import MAX_MAPPED_BYTES
from mpload.storage.native import NATIVE
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.read_ahead import ReadAhead

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native module is not built")

SIZES = (0, 1, 63, 64, 65, 5000)
PLAIN = [f"files/{size}" for size in SIZES]
ODD = ["missing", "files", "fifo", "outside", "inside", "../secret", "/etc/passwd", "a\0b", "x" * 5000, "files/64/"]
BIG = 1 << 62


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("many")
    root = top / "root"
    (root / "files").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for size in SIZES:
        (root / "files" / str(size)).write_bytes(rng.bytes(size))
    (top / "secret").write_bytes(b"secret")
    (root / "outside").symlink_to("../secret")
    (root / "inside").symlink_to("files/65")
    os.mkfifo(root / "fifo")
    return root


def many(
    storage: LocalStorage, ranges: Sequence[ByteRange], *, maps_shards: bool = False, **options: Any
) -> ManyReader:
    names, paths = b"|", []
    for item in ranges:
        path = os.fsencode(item.path)
        paths.append((len(names), len(names) + len(path)))
        names += path + b"|"
    reader = storage.many_reader(
        ManyRanges(
            names=names,
            paths=np.array(paths, np.int64).reshape(-1, 2),
            offsets=np.array([item.offset_bytes for item in ranges], np.int64),
            lengths=np.array([-1 if item.length_bytes is None else item.length_bytes for item in ranges], np.int64),
            **options,
        ),
        maps_shards=maps_shards,
    )
    assert reader is not None
    return reader


def read_all(reader: ManyReader, num_ranges: int, area: Any, **options: Any) -> Iterator[bytes | None]:
    done = 0
    while done < num_ranges:
        read = reader.read(area, first=done, **options)
        for start, length in zip(read.starts.tolist(), read.lengths.tolist(), strict=True):
            assert length < 0 or 0 <= start <= start + length <= len(area)
            yield None if length < 0 else area[start : start + length].tobytes()
        assert len(read.lengths), "a call with an empty area must make progress"
        done += len(read.lengths)


def alone(storage: LocalStorage, item: ByteRange) -> bytes | None:
    try:
        return storage.read([item])[0]
    except MploadError:
        return None


def files(names: Sequence[str]) -> st.SearchStrategy[ByteRange]:
    whole = st.sampled_from(names).map(ByteRange)
    numbers = st.one_of(st.integers(0, 70), st.sampled_from([4999, 5000, 5001, BIG, 2 * BIG - 1]))
    return st.one_of(whole, st.builds(Span, st.sampled_from(names), numbers, numbers))


@settings(max_examples=300, deadline=None)
@given(
    ranges=st.lists(files(PLAIN + ODD), max_size=20),
    area_bytes=st.sampled_from([0, 64, 100, 6000, 1 << 16]),
    max_bytes=st.sampled_from([None, 0, 64, 4999]),
    max_shards=st.integers(1, 8),
    maps_shards=st.booleans(),
)
def test_what_is_read_equals_what_is_read_alone(
    root: Path, ranges: list[ByteRange], area_bytes: int, max_bytes: int | None, max_shards: int, maps_shards: bool
) -> None:
    with LocalStorage(root, max_open_files=max_shards, max_bytes=max_bytes) as storage:
        area = np.empty(area_bytes, np.uint8)
        reader = many(storage, ranges, maps_shards=maps_shards)
        for item, data in zip(ranges, read_all(reader, len(ranges), area), strict=True):
            assert data is None or data == alone(storage, item), (item, data)


@settings(max_examples=100, deadline=None)
@given(ranges=st.lists(files(PLAIN), max_size=20), maps_shards=st.booleans())
def test_nothing_plain_is_declined(root: Path, ranges: list[ByteRange], maps_shards: bool) -> None:
    with LocalStorage(root) as storage:
        wanted = [None if item.length_bytes == 0 else alone(storage, item) for item in ranges]
        reader = many(storage, ranges, maps_shards=maps_shards)
        assert list(read_all(reader, len(ranges), np.empty(8192, np.uint8))) == wanted


def test_a_mapped_shard_that_is_truncated_declines_what_is_gone_and_does_not_end_the_process(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(range(256)) * 256)
    ranges = [Span("rows", offset, 4) for offset in (0, 65_000)]
    with LocalStorage(tmp_path) as storage:
        area = np.empty(1 << 12, np.uint8)
        assert None not in list(read_all(many(storage, ranges, maps_shards=True), 2, area))
        os.truncate(tmp_path / "rows", 100)
        assert list(read_all(many(storage, ranges, maps_shards=True), 2, area)) == [b"\0\1\2\3", None]


def test_maps_stay_within_their_limit_and_are_closed_with_their_shards(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(MAX_MAPPED_BYTES // 2)
    with LocalStorage(tmp_path, max_open_files=2) as storage:
        area = np.empty(1 << 12, np.uint8)
        for names in ("ab", "c", "abc"):
            ranges = [Span(name, 0, 4) for name in names]
            found = list(read_all(many(storage, ranges, maps_shards=True), len(names), area))
            assert found == [b"\0" * 4] * min(len(names), 2) + [None] * (len(names) - 2)
            assert mapped_bytes(tmp_path) <= MAX_MAPPED_BYTES


def mapped_bytes(folder: Path) -> int:
    bounds = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if f"{folder}/" in line
    ]
    return sum(int(end, 16) - int(start, 16) for start, end in bounds)


def test_ranges_of_equal_size_are_read_into_rows(root: Path) -> None:
    with LocalStorage(root) as storage:
        shard = storage.read([ByteRange("files/5000")])[0]
        ranges = [Span("files/5000", 7 * place, 7) for place in range(5)]
        ranges[2] = Span("files/5000", 4996, 7)
        rows = np.zeros((5, 7), np.uint8)
        read = many(storage, ranges).read(rows.reshape(-1), step_bytes=7)
        assert read.lengths.tolist() == [7, 7, -1, 7, 7]
        for place in (0, 1, 3, 4):
            assert rows[place].tobytes() == shard[7 * place : 7 * place + 7]


def test_a_range_larger_than_its_row_is_declined(root: Path) -> None:
    with LocalStorage(root) as storage:
        rows = np.zeros((3, 64), np.uint8)
        ranges = [ByteRange("files/63"), ByteRange("files/65"), ByteRange("files/64")]
        read = many(storage, ranges).read(rows.reshape(-1), step_bytes=64)
        assert read.lengths.tolist() == [63, -1, 64]
        assert not rows[1].any()


def test_the_number_of_the_range_that_is_next_is_written_down(root: Path) -> None:
    cell = memoryview(bytearray(8)).cast("q")
    with LocalStorage(root) as storage:
        reader = many(storage, [ByteRange(name) for name in PLAIN], at=cell, first=40)
        reader.read(np.empty(130, np.uint8))
        assert cell[0] == 40 + PLAIN.index("files/64"), "the first one for which there is no room"
        reader.read(np.empty(1 << 16, np.uint8), first=4)
        assert cell[0] == 40 + len(PLAIN) - 1


def test_ranges_of_one_sample_have_its_number(root: Path) -> None:
    cell = memoryview(bytearray(8)).cast("q")
    with LocalStorage(root) as storage:
        reader = many(storage, [ByteRange("files/64")] * 6, at=cell, first=40, num_samples=4)
        for first, room, number in ((0, 1, 41), (0, 3, 43), (0, 4, 40), (0, 5, 41), (2, 1, 43), (3, 1, 40), (4, 1, 41)):
            assert len(reader.read(np.empty(64 * room, np.uint8), first=first).lengths) == room
            assert cell[0] == number, (first, room)


def test_the_number_of_the_first_range_of_a_shard_is_written_down_before_the_shard_is_opened(root: Path) -> None:
    cell = memoryview(bytearray(8)).cast("q")
    opened: list[tuple[str, int]] = []

    class Noting(LocalStorage):
        def _shard(self, path: str) -> Any:
            opened.append((path, cell[0]))
            return super()._shard(path)

    paths = ["files/64", "files/64", "missing", "files/65", "files/64"]
    many(Noting(root), [Span(path, 0, 1) for path in paths], at=cell, first=40)
    assert opened == [("files/64", 40), ("missing", 42), ("files/65", 43)]
    opened.clear()
    many(Noting(root), [Span(path, 0, 1) for path in paths], at=cell, first=40, num_samples=3)
    assert opened == [("files/64", 40), ("missing", 42), ("files/65", 40)]


def test_shards_that_are_in_use_stay_open_and_files_do_not(root: Path) -> None:
    with LocalStorage(root, max_open_files=2) as storage:
        ranges = [Span(f"files/{size}", 0, 1) for size in (1, 63, 64, 65)]
        area = np.empty(1 << 12, np.uint8)
        assert [data is not None for data in read_all(many(storage, ranges), 4, area)] == [True, True, False, False]
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        assert None not in read_all(many(storage, [ByteRange("files/64")] * 100), 100, area)
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_pages_that_must_be_dropped_are_left_to_the_other_way(root: Path) -> None:
    ranges = ManyRanges(
        names=b"a",
        paths=np.array([[0, 1]], np.int64),
        offsets=np.zeros(1, np.int64),
        lengths=np.full(1, -1, np.int64),
    )
    dropping = LocalStorage(root, page_cache="drop")
    assert dropping.many_reader(ranges) is None
    spans = ManyRanges(names=b"a", paths=ranges.paths, offsets=ranges.offsets, lengths=np.full(1, 3, np.int64))
    assert dropping.many_reader(spans) is None
    dropping.prefetch(ByteRange("files/64", 0, 3))
    assert dropping.many_reader(spans) is not None, "pages of spans are freed block by block from now on"
    assert dropping.many_reader(ranges) is None
    assert LocalStorage(root / "missing").many_reader(ranges) is None
    assert LocalStorage(root).many_reader(ranges) is not None


def test_the_native_module_refuses_arrays_that_do_not_fit_together(root: Path) -> None:
    assert NATIVE is not None
    one, two, area = np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(64, np.uint8)
    right: list[Any] = [b"a", two, one, one, one, (), area, one.copy(), one.copy(), None, 0, 1, 0, 1, 1, 0, 0, 1]
    assert NATIVE.read_many(*right)[0] == 1
    for place in (1, 2, 3, 4, 7, 8):
        wrong = [*right]
        wrong[place] = np.zeros(3, np.int64)
        with pytest.raises(ValueError, match="must be int64"):
            NATIVE.read_many(*wrong)
    for wrong in (
        [*right[:9], np.zeros(1, np.int32), *right[10:]],
        [*right[:12], 65, *right[13:]],
        [*right[:-1], 0],
        [*right[:-2], -1, 1],
    ):
        with pytest.raises(ValueError, match="must be int64"):
            NATIVE.read_many(*wrong)
    with pytest.raises(ValueError, match="must be int64"):
        NATIVE.distinct(b"a", one, one, one)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_spans_that_follow_each_other_are_read_as_if_alone(root: Path, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, 5100), max_size=30))
    starts = data.draw(st.sampled_from([sorted(starts), starts]))
    names = st.sampled_from(["files/5000", "files/5000", "files/5000", "files/65"])
    ranges = [Span(data.draw(names), start, data.draw(st.integers(1, 300))) for start in starts]
    with LocalStorage(root) as storage:
        wanted = [alone(storage, item) for item in ranges]
        assert list(read_all(many(storage, ranges), len(ranges), np.empty(1 << 14, np.uint8))) == wanted


@pytest.mark.parametrize(
    ("num_slow", "num_waits", "begins"),
    [(8, 8, True), (8, 0, False), (0, 8, False), (1, 1, False), (100, 100, True), (20, 20, False)],
)
def test_read_ahead_begins_if_many_of_the_reads_were_slow_and_waited(
    root: Path, num_slow: int, num_waits: int, begins: bool
) -> None:
    num_reads = 8 if num_slow == 8 else 256
    waits = iter([5, 5 + num_waits])
    with LocalStorage(root) as storage:
        ahead = ReadAhead(storage, count_waits=waits.__next__)
        lengths = np.zeros(num_reads, np.int64)
        read = ManyRead(starts=lengths, lengths=lengths, num_slow=num_slow, used_bytes=0)
        assert ahead.measured_many(lambda: read) is read
        assert ahead.is_active == ahead.was_active == begins


def test_options_that_are_as_good_as_unlimited_are_no_obstacle(root: Path) -> None:
    item = Span("files/64", 1, 9)
    for options in ({"max_open_files": sys.maxsize}, {"max_bytes": 1e9}, {"max_bytes": float("inf")}):
        storage = LocalStorage(root, **options)
        assert list(read_all(many(storage, [item]), 1, np.empty(64, np.uint8))) == [alone(storage, item)]
