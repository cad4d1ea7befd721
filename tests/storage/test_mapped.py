"""Shards that are mapped into memory: the same bytes as reads, even if the file, the disk or the process fails."""

import mmap
import os
import resource
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload.storage.local import LocalStorage
from mpload.storage.many import ManyRanges
from mpload.storage.mapped import can_load, map_of
from mpload.storage.native import NATIVE
from mpload.storage.read_ahead import ReadAhead
from tests.support.slow_disk import SlowDisk, can_mount, mounted

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native module is not built")

BLOCK_BYTES = 1 << 16


def test_bytes_that_a_mapped_shard_loses_during_a_call_are_declined_and_never_zeros(tmp_path: Path) -> None:
    row_bytes, num_rows = 1 << 15, 1000
    at = memoryview(bytearray(8)).cast("q")
    ranges = ManyRanges(
        names=b"row",
        paths=np.tile(np.array([[0, 3]], np.int64), (num_rows, 1)),
        offsets=np.zeros(num_rows, np.int64),
        lengths=np.full(num_rows, row_bytes, np.int64),
        at=at,
    )
    area = np.empty(num_rows * row_bytes, np.uint8)
    is_over = threading.Event()

    def truncate() -> None:
        while at[0] < 50 and not is_over.is_set():
            pass
        os.truncate(tmp_path / "row", row_bytes - 10)

    for _ in range(10):  # the call may end before the file is truncated
        (tmp_path / "row").write_bytes(b"\xff" * row_bytes)
        at[0] = 0
        is_over.clear()
        with LocalStorage(tmp_path) as storage:
            reader = storage.many_reader(ranges, maps_shards=True)
            assert reader is not None
            thread = threading.Thread(target=truncate)
            thread.start()
            read = reader.read(area, step_bytes=row_bytes)
            is_over.set()
            thread.join()
        rows = area.reshape(num_rows, row_bytes)[: len(read.lengths)]
        assert (rows[read.lengths >= 0] == 255).all()


def read_four_bytes(descriptor: int, data: Any, changed_ns: int, are_loaded: bytearray, offset: int = 0) -> bytes:
    """Read bytes of a shard whose map is `data`."""
    assert NATIVE is not None
    area, sizes = np.zeros(64, np.uint8), np.zeros(1, np.int64)
    shards = ((descriptor, data, changed_ns, are_loaded),)
    places = np.array([offset], np.int64), np.full(1, 4, np.int64), np.zeros(1, np.int64)
    NATIVE.read_many(
        b"a", np.array([0, 1], np.int64), *places, shards, area, np.zeros(1, np.int64), sizes,
        None, 0, 1 << 20, 0, 1 << 60, 1, 0, 0, 1,
    )  # fmt: skip
    assert sizes[0] == 4
    return area[:4].tobytes()


def test_a_mapped_shard_that_has_changed_is_read_because_an_overlay_maps_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"new!" * 100)
    as_it_was = b"old." * 100
    with path.open("rb") as file:
        changed_ns = os.stat(path).st_ctime_ns  # noqa: PTH116
        assert read_four_bytes(file.fileno(), as_it_was, changed_ns, bytearray(1)) == b"old."
        assert read_four_bytes(file.fileno(), as_it_was, changed_ns - 1, bytearray(1)) == b"new!"
        assert read_four_bytes(file.fileno(), as_it_was[4:], changed_ns, bytearray(1)) == b"new!"


@pytest.mark.parametrize("offset", [0, BLOCK_BYTES - 2, BLOCK_BYTES, 3 * BLOCK_BYTES - 4])
def test_pages_that_cannot_be_loaded_are_read_and_do_not_end_the_process(tmp_path: Path, offset: int) -> None:
    num_bytes = 3 * BLOCK_BYTES
    for name in ("gone", "rows"):
        (tmp_path / name).write_bytes(b"data" * (num_bytes // 4))
    with (tmp_path / "gone").open("rb") as gone, (tmp_path / "rows").open("rb") as rows:
        changed_ns = os.fstat(rows.fileno()).st_ctime_ns
        with mmap.mmap(gone.fileno(), num_bytes, access=mmap.ACCESS_READ) as data:
            os.truncate(tmp_path / "gone", 0)  # as if the disk failed: access to a page is SIGBUS
            are_loaded = bytearray(3)
            assert sorted(read_four_bytes(rows.fileno(), data, changed_ns, are_loaded, offset)) == sorted(b"data")
            assert not any(are_loaded)


def test_a_file_whose_pages_cannot_all_be_loaded_is_known_before_they_are_accessed(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(3 * BLOCK_BYTES))
    with (tmp_path / "rows").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert can_load(data)
        os.truncate(tmp_path / "rows", 2 * BLOCK_BYTES)  # as if the disk failed
        assert not can_load(data)


def test_a_map_without_a_byte_for_each_block_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"0123")
    with (tmp_path / "rows").open("rb") as file, pytest.raises(ValueError, match="each block"):
        read_four_bytes(file.fileno(), bytes(BLOCK_BYTES + 1), 0, bytearray(1))


@pytest.mark.parametrize(("limit", "soft"), [(resource.RLIMIT_AS, 1 << 45), (resource.RLIMIT_NOFILE, 512)])
def test_nothing_is_mapped_where_maps_would_take_what_other_code_needs(tmp_path: Path, limit: int, soft: int) -> None:
    (tmp_path / "rows").write_bytes(b"0123")
    before = resource.getrlimit(limit)
    with (tmp_path / "rows").open("rb") as file:
        assert map_of(file.fileno(), max_bytes=4) is not None
        resource.setrlimit(limit, (soft, before[1]))
        try:
            assert map_of(file.fileno(), max_bytes=4) is None
        finally:
            resource.setrlimit(limit, before)


@pytest.mark.processes
@pytest.mark.skipif(not can_mount(), reason="mounts a file system")
def test_a_slow_disk_is_noticed_when_rows_are_copied_from_a_map_too(tmp_path: Path) -> None:
    row_bytes, num_rows = 4096, 4096
    (tmp_path / "contents").mkdir()
    (tmp_path / "contents" / "rows").write_bytes(bytes(row_bytes * num_rows))
    disk = SlowDisk(contents=tmp_path / "contents", num_files=1, read_seconds=0.002, is_cached=True)
    chosen = np.random.default_rng(0).permutation(num_rows)[:64]
    ranges = ManyRanges(
        names=b"0",
        paths=np.tile(np.array([[0, 1]], np.int64), (64, 1)),
        offsets=chosen * row_bytes,
        lengths=np.full(64, row_bytes, np.int64),
    )
    with mounted(disk, tmp_path / "slow") as folder, LocalStorage(folder) as storage:
        ahead, area, done = ReadAhead(storage), np.empty(64 * row_bytes, np.uint8), 0
        reader = storage.many_reader(ranges, maps_shards=True)
        assert reader is not None
        while done < 64 and not ahead.is_active:
            done += len(ahead.measured_many(partial(reader.read, area, first=done, step_bytes=row_bytes)).lengths)
        assert ahead.is_active
        del reader
