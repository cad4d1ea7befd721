"""The files of one data set's cache: table, segments and lock."""

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from mpload.samples.cache.entries import HEAD_BYTES, Head, payload_fits, read_head
from mpload.samples.cache.trusted import open_file, open_folder, try_lock, write_file

__all__ = ["FORMAT", "OFFSET_BITS", "CacheFolder", "caches_in", "key_of", "segment_name"]

FORMAT = "mpload-cache-1"
_MAGIC = b"mpcache1"
_PAGE_BYTES = 4096
_KEY_AT, _LIMIT_AT, _RUN_AT = 8, 16, 24  # offsets in the table's header page
OFFSET_BITS = 40
_SEGMENT = re.compile(r"segment-\d{6}")
_SCANNED_ROWS = 1 << 20
_ABOUT_BYTES = 1 << 20
_LOCK_SECONDS = 30.0
_POLL_SECONDS = 0.002
_NUM_FIRST = 64
_Payload = bytes | memoryview


class CacheFolder:
    """Table, segments and lock of one data set's cache.

    Process: may be forked, since descriptors are read and written by position only. The owner must close it.
    """

    def __init__(self, path: Path, *, num_samples: int, key: int) -> None:
        self.path = path
        self.num_samples = num_samples
        self.key = key
        self.table = -1
        self.is_writable = False
        self._folder = -1
        self._segments: dict[int, int] = {}

    @property
    def table_bytes(self) -> int:
        """The table's apparent size, including holes."""
        return _PAGE_BYTES + 8 * self.num_samples

    def prepare(self, about: dict[str, Any]) -> None:
        """Make the folder and its table if they are missing or invalid.

        Raises:
            OSError: the folder cannot be written to.
        """
        self.path.mkdir(mode=0o775, parents=True, exist_ok=True)
        self._enter()
        with self.locked():
            if not self._table_fits():
                self._remove_segments(0)
                page = _MAGIC + self.key.to_bytes(8, "little") + bytes(_PAGE_BYTES - 16)
                write_file("about.json", json.dumps(about, indent=2).encode(), folder=self._folder)
                write_file("table", page, folder=self._folder, num_bytes=self.table_bytes)
            elif not any(self._is_locked(number) for number in self.segments()):
                self._write_number(_LIMIT_AT, 0)  # the limit was set by an earlier run that was short of memory

    def _table_fits(self) -> bool:
        try:
            with self._opened("table", os.O_RDONLY) as table:
                start = _MAGIC + self.key.to_bytes(8, "little")
                return os.pread(table, 16, 0) == start and os.fstat(table).st_size == self.table_bytes
        except OSError:
            return False

    def open(self) -> None:
        """Open the table, for writing too if that is permitted.

        Raises:
            OSError: There is no valid table of this data set.
        """
        self._enter()
        if not self._table_fits():
            raise FileNotFoundError(errno.ENOENT, "no table of this data set", str(self.path / "table"))
        try:
            self.table = self.open_file("table", os.O_RDWR)
            self.is_writable = True
        except OSError:
            self.table = self.open_file("table", os.O_RDONLY)

    def close(self) -> None:
        """Close all files."""
        for descriptor in (*self._segments.values(), self.table, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._segments.clear()
        self._folder, self.table, self.is_writable = -1, -1, False

    def _enter(self) -> None:
        if self._folder < 0:
            self._folder = open_folder(self.path)

    def open_file(self, name: str, flags: int) -> int:
        """Return a descriptor of a file in the cache's folder, checked by `mpload.samples.cache.trusted`."""
        return open_file(name, flags, folder=self._folder)

    @contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        descriptor = self.open_file(name, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock. The kernel releases it if the process dies.

        Raises:
            TimeoutError: Another process, which may be stopped, does not release it.
        """
        with self._opened("lock", os.O_RDWR | os.O_CREAT) as lock:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not try_lock(lock):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        errno.ETIMEDOUT, f"another process has held the lock for {_LOCK_SECONDS:g} seconds"
                    )
                time.sleep(_POLL_SECONDS)  # flock has no timeout
            yield

    @staticmethod
    def segment_of(place: bytes) -> int:
        """Return the number of the segment that a place points into."""
        return int.from_bytes(place[OFFSET_BITS // 8 :], "little")

    def place_of(self, sample_id: int) -> bytes:
        """Return the place where a sample's entry starts, 8 bytes; all are 0 if it has no entry."""
        return os.pread(self.table, 8, _PAGE_BYTES + 8 * sample_id)

    def publish(self, sample_id: int, place: bytes) -> None:
        """Record the place where a sample's entry starts."""
        os.pwrite(self.table, place, _PAGE_BYTES + 8 * sample_id)

    def read(self, sample_id: int, place: bytes) -> tuple[Head, bytes] | None:
        """Return the sample's entry at `place`, or None if it is damaged, deleted or another sample's."""
        found = self._entry(sample_id, place, lambda fd, head, start: os.pread(fd, head.payload_bytes, start))
        return None if found is None else (found[0], bytes(found[1]))

    def read_at_once(self, sample_id: int, place: bytes) -> memoryview | None:
        """Return the payload of the sample's entry at `place`, of one source; None if it is not in the page cache."""
        number, offset = divmod(int.from_bytes(place, "little"), 1 << OFFSET_BITS)
        found = None
        try:
            descriptor = self._segments.get(number)
            if descriptor is None:
                descriptor = self._open_segment(number)
            head = read_head(_in_page_cache(descriptor, HEAD_BYTES, offset), key=self.key)
            if head is not None and head.sample_id == sample_id and head.num_parts == 1:
                payload = _in_page_cache(descriptor, head.payload_bytes, offset + HEAD_BYTES)
                found = payload if payload_fits(head, payload, key=self.key) else None
        except (OSError, OverflowError):  # also a BlockingIOError
            pass
        if found is None and (stale := self._segments.pop(number, None)) is not None:
            os.close(stale)
        return found

    def copy(self, sample_id: int, place: bytes, room: memoryview, *, stamp: int | None) -> int:
        """Copy the payload of the sample's entry at `place` to the beginning of `room`.

        Return its number of bytes. If that is more than `room` has, nothing is copied. It is -1 if the entry is
        damaged, deleted, another sample's, of several sources, or has another stamp. A stamp of None fits all.
        """

        def fits(head: Head) -> bool:
            return head.num_parts == 1 and stamp in {None, head.stamp}

        def load(descriptor: int, head: Head, start: int) -> _Payload | None:
            if not fits(head) or head.payload_bytes > len(room):
                return None
            return room[: os.preadv(descriptor, [room[: head.payload_bytes]], start)]

        found = self._entry(sample_id, place, load)
        return found[0].payload_bytes if found is not None and fits(found[0]) else -1

    def _entry(
        self, sample_id: int, place: bytes, load: Callable[[int, Head, int], _Payload | None]
    ) -> tuple[Head, _Payload] | None:
        """Return an entry whose payload `load` returns, given a descriptor, the head and where the payload starts.

        A payload of None is not wanted, and returned as no bytes.
        """
        number, offset = divmod(int.from_bytes(place, "little"), 1 << OFFSET_BITS)
        descriptor = self._segments.get(number)
        try:
            if descriptor is None:
                descriptor = self._open_segment(number)
            head = read_head(os.pread(descriptor, HEAD_BYTES, offset), key=self.key)
            if head is not None and head.sample_id == sample_id:
                payload = load(descriptor, head, offset + HEAD_BYTES)
                if payload is None or payload_fits(head, payload, key=self.key):
                    return head, b"" if payload is None else payload
        except (OSError, OverflowError):
            pass
        if (stale := self._segments.pop(number, None)) is not None:  # the file may have been deleted and created again
            os.close(stale)
        return None

    def _open_segment(self, number: int) -> int:
        if len(self._segments) >= 256:
            while self._segments:
                os.close(self._segments.popitem()[1])
        descriptor = self.open_file(segment_name(number), os.O_RDONLY)
        self._segments[number] = descriptor
        return descriptor

    def segments(self) -> dict[int, int]:
        """Return the size of each segment in bytes, by number, ascending; none if somebody has deleted the folder."""
        found = {}
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path) as files:
            for file in files:
                if _SEGMENT.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found[int(file.name[-6:])] = file.stat(follow_symlinks=False).st_size
        return dict(sorted(found.items()))

    def first_samples_of(self, number: int) -> list[int]:
        """Return the sample_ids of the first entries in a segment."""
        found: list[int] = []
        with suppress(OSError), self._opened(segment_name(number), os.O_RDONLY) as segment:
            offset = 0
            while len(found) < _NUM_FIRST:
                head = read_head(os.pread(segment, HEAD_BYTES, offset), key=self.key)
                if head is None:
                    break
                found.append(head.sample_id)
                offset += HEAD_BYTES + head.payload_bytes
        return found

    def used_bytes(self) -> int:
        """Return the size of the cache in bytes: its table and its segments, including reserved space."""
        return self.table_bytes + sum(self.segments().values())

    def limit_bytes(self) -> int:
        """Return the limit that `shrink` has set for all processes; 0 if there is none."""
        return self._number(_LIMIT_AT)

    def shrink(self, to_bytes: int) -> None:
        """Delete the oldest segments until the cache takes at most `to_bytes`, and make that every process's limit."""
        with self.locked():
            self._write_number(_LIMIT_AT, max(1, to_bytes))
            self._remove_segments(to_bytes - self.table_bytes)

    def drop(self, number: int) -> None:
        """Delete a segment, unless a process is writing to it."""
        with self.locked(), suppress(FileNotFoundError):
            if not self._is_locked(number):
                self._remove_segment(number)

    def claim_warning(self, run: int) -> bool:
        """Return whether this process is the first one of its run that asks to show a warning."""
        try:
            with self.locked():
                is_first = self._number(_RUN_AT) != run
                self._write_number(_RUN_AT, run)
                return is_first
        except OSError:
            return True

    def places(self) -> Iterator[tuple[int, bytes]]:
        """Yield (sample_id, place) of every entry, in constant memory."""
        for start in range(0, self.num_samples, _SCANNED_ROWS):
            rows = os.pread(self.table, 8 * min(_SCANNED_ROWS, self.num_samples - start), _PAGE_BYTES + 8 * start)
            found = np.frombuffer(rows, np.uint64)
            for row in np.flatnonzero(found).tolist():
                yield start + row, rows[8 * row : 8 * row + 8]

    def remove(self) -> None:
        """Delete the cache's files. Other files in its folder are kept."""
        with self.locked():
            self._remove_segments(0)
            for name in ("table", "about.json", "lock", ".table.unfinished", ".about.json.unfinished"):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._folder)
        with suppress(OSError):  # the folder has other files
            self.path.rmdir()

    def _remove_segments(self, keep_bytes: int) -> None:
        sizes = self.segments()
        total = sum(sizes.values())
        for number, num_bytes in sizes.items():
            if total <= keep_bytes:
                break
            self._remove_segment(number)
            total -= num_bytes

    def _remove_segment(self, number: int) -> None:
        with suppress(OSError), self._opened(segment_name(number), os.O_RDWR) as segment:
            os.ftruncate(segment, 0)  # frees the space even while other processes have the file open
        os.unlink(segment_name(number), dir_fd=self._folder)

    def _is_locked(self, number: int) -> bool:
        try:
            with self._opened(segment_name(number), os.O_RDONLY) as segment:
                return not try_lock(segment)
        except OSError:  # deleted, or not a file of the cache
            return False

    def _number(self, at: int) -> int:
        return int.from_bytes(os.pread(self.table, 8, at), "little")

    def _write_number(self, at: int, value: int) -> None:
        with self._opened("table", os.O_RDWR) as table:
            os.pwrite(table, value.to_bytes(8, "little"), at)


def _in_page_cache(descriptor: int, num_bytes: int, offset: int) -> memoryview:
    """Return bytes of a file. Raises `OSError` if some are not in the page cache, or the system cannot tell."""
    room = memoryview(bytearray(num_bytes))
    if not hasattr(os, "RWF_NOWAIT"):
        raise BlockingIOError
    return room[: os.preadv(descriptor, [room], offset, os.RWF_NOWAIT)]


def segment_name(number: int) -> str:
    """Return the name of segment `number`."""
    return f"segment-{number:06}"


def caches_in(folder: Path) -> list[tuple[CacheFolder, dict[str, Any]]]:
    """Return the caches directly below `folder`, each with its `about.json`; links and other files are ignored.

    Raises:
        PermissionError: there are none that this user may read, but others.
        OSError: `folder` cannot be read.
    """
    found = []
    refused: PermissionError | None = None
    for path in sorted(folder.iterdir()):
        try:
            about = _about(path)
            if about["format"] == FORMAT:
                found.append((CacheFolder(path, num_samples=int(about["num_samples"]), key=key_of(about)), about))
        except PermissionError as error:
            refused = refused or PermissionError(error.errno, error.strerror, str(path))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    if refused is not None and not found:
        raise refused
    return found


def _about(path: Path) -> dict[str, Any]:
    folder = open_folder(path)
    try:
        with os.fdopen(open_file("about.json", os.O_RDONLY, folder=folder), "rb") as file:
            about: dict[str, Any] = json.loads(file.read(_ABOUT_BYTES))
            return about
    finally:
        os.close(folder)


def key_of(about: dict[str, Any]) -> int:
    """Return the key of a data set's checksums: a hash of cache format, index fingerprint, root, form and storage."""
    words = [str(about[name]) for name in ("format", "fingerprint", "root", "form", "storage") if name in about]
    return xxh3_64_intdigest("\0".join(words).encode("utf-8", "surrogateescape"))
