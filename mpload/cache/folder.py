"""The files of one data set's cache: table, segments and lock; who may write where, and how much."""

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from mpload.cache.entries import HEAD_BYTES, Head, payload_fits, read_head
from mpload.units import KIB, MIB

__all__ = ["FORMAT", "CacheFolder", "SegmentWriter", "caches_in", "key_of"]

FORMAT = "mpload-cache-1"
_MAGIC = b"mpcache1"
_PAGE_BYTES = 4096
_KEY_AT, _LIMIT_AT, _RUN_AT = 8, 16, 24  # in the table's first page
_OFFSET_BITS = 40
_SEGMENT = re.compile(r"segment-\d{6}")
_SEGMENT_BYTES = 256 * MIB
_SCANNED_ROWS = 1 << 20


class CacheFolder:
    """Table, segments and lock of one data set's cache.

    Process: may be forked; descriptors are used by position only. Closing is the owner's business.
    """

    def __init__(self, path: Path, *, num_samples: int, key: int) -> None:
        self.path = path
        self.num_samples = num_samples
        self.key = key
        self.table = -1
        self.is_writable = False
        self._segments: dict[int, int] = {}

    @property
    def table_bytes(self) -> int:
        """Size of the table, holes counted in."""
        return _PAGE_BYTES + 8 * self.num_samples

    def prepare(self, about: dict[str, Any]) -> None:
        """Make the folder and its table where they are missing or not what they should be.

        Raises:
            OSError: the folder cannot be written to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self.locked():
            if not self._table_fits():
                self._remove_segments(0)
                fresh = self.path / f".table-{os.getpid()}"
                with fresh.open("wb") as file:
                    file.write(_MAGIC + self.key.to_bytes(8, "little") + bytes(_PAGE_BYTES - 16))
                    file.truncate(self.table_bytes)
                fresh.replace(self.path / "table")
                (self.path / "about.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
            elif not any(self._is_held(number) for number in self.segments()):
                self._write_fact(_LIMIT_AT, 0)  # an earlier run's shortage of memory is over

    def _table_fits(self) -> bool:
        try:
            with (self.path / "table").open("rb") as file:
                start = file.read(16)
                return start == _MAGIC + self.key.to_bytes(8, "little") and os.fstat(file.fileno()).st_size == (
                    self.table_bytes
                )
        except OSError:
            return False

    def open(self) -> None:
        """Open the table, for writing too where that is allowed; raises `OSError` where there is none that fits."""
        if not self._table_fits():
            raise FileNotFoundError(errno.ENOENT, "no table of this data set", str(self.path / "table"))
        try:
            self.table = os.open(self.path / "table", os.O_RDWR | os.O_CLOEXEC)
            self.is_writable = True
        except OSError:
            self.table = os.open(self.path / "table", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close all files."""
        for descriptor in (*self._segments.values(), self.table):
            if descriptor >= 0:
                os.close(descriptor)
        self._segments.clear()
        self.table, self.is_writable = -1, False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, which the kernel takes from a process that dies."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def segment_of(place: bytes) -> int:
        """Return the number of the segment that a place lies in."""
        return int.from_bytes(place[_OFFSET_BITS // 8 :], "little")

    def place_of(self, sample_id: int) -> bytes:
        """Return where a sample's entry starts: 8 bytes, all 0 where it has none."""
        return os.pread(self.table, 8, _PAGE_BYTES + 8 * sample_id)

    def publish(self, sample_id: int, place: bytes) -> None:
        """Say where a sample's entry starts."""
        os.pwrite(self.table, place, _PAGE_BYTES + 8 * sample_id)

    def read(self, sample_id: int, place: bytes) -> tuple[Head, bytes] | None:
        """Return the entry of a sample that `place` points to, or None where it is damaged, gone or another's."""
        number, offset = divmod(int.from_bytes(place, "little"), 1 << _OFFSET_BITS)
        descriptor = self._segments.get(number)
        try:
            if descriptor is None:
                descriptor = self._open_segment(number)
            head = read_head(os.pread(descriptor, HEAD_BYTES, offset), key=self.key)
            if head is not None and head.sample_id == sample_id:
                payload = os.pread(descriptor, head.payload_bytes, offset + HEAD_BYTES)
                if payload_fits(head, payload, key=self.key):
                    return head, payload
        except (OSError, OverflowError):
            pass
        if (stale := self._segments.pop(number, None)) is not None:  # the file may have been cleared, and made anew
            os.close(stale)
        return None

    def _open_segment(self, number: int) -> int:
        if len(self._segments) >= 256:
            while self._segments:
                os.close(self._segments.popitem()[1])
        descriptor = os.open(self.segment_path(number), os.O_RDONLY | os.O_CLOEXEC)
        self._segments[number] = descriptor
        return descriptor

    def segment_path(self, number: int) -> Path:
        """Return the file of segment `number`."""
        return self.path / f"segment-{number:06}"

    def segments(self) -> dict[int, int]:
        """Return the size of each segment in bytes, by number, ascending."""
        found = {}
        with os.scandir(self.path) as files:
            for file in files:
                if _SEGMENT.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # cleared meanwhile
                        found[int(file.name[-6:])] = file.stat(follow_symlinks=False).st_size
        return dict(sorted(found.items()))

    def used_bytes(self) -> int:
        """Return the bytes that the cache takes: its table, and what segments hold or have reserved."""
        return self.table_bytes + sum(self.segments().values())

    def limit_bytes(self) -> int:
        """Return the limit that `shrink` has set for all processes; 0: none."""
        return self._fact(_LIMIT_AT)

    def shrink(self, to_bytes: int) -> None:
        """Give up the oldest segments until `to_bytes` are enough, and let no process take more again."""
        with self.locked():
            self._write_fact(_LIMIT_AT, max(1, to_bytes))
            self._remove_segments(to_bytes - self.table_bytes)

    def drop(self, number: int) -> None:
        """Give up a segment, unless a process is writing to it."""
        with self.locked(), suppress(FileNotFoundError):
            if not self._is_held(number):
                self._remove_segment(number)

    def claim_warning(self, run: int) -> bool:
        """Whether this process is the first of a run that has something to warn of."""
        try:
            with self.locked():
                is_first = self._fact(_RUN_AT) != run
                self._write_fact(_RUN_AT, run)
                return is_first
        except OSError:
            return True

    def places(self) -> Iterator[tuple[int, bytes]]:
        """Yield (sample_id, place) of all entries, in constant memory."""
        for start in range(0, self.num_samples, _SCANNED_ROWS):
            rows = os.pread(self.table, 8 * min(_SCANNED_ROWS, self.num_samples - start), _PAGE_BYTES + 8 * start)
            found = np.frombuffer(rows, np.uint64)
            for row in np.flatnonzero(found).tolist():
                yield start + row, rows[8 * row : 8 * row + 8]

    def remove(self) -> None:
        """Delete the cache, and nothing else that lies in its folder."""
        with self.locked():
            self._remove_segments(0)
            for name in ("table", "about.json", "lock"):
                (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # foreign files lie in it
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
        os.truncate(self.segment_path(number), 0)  # gives space back even while others have it open
        self.segment_path(number).unlink()

    def _is_held(self, number: int) -> bool:
        with self.segment_path(number).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _fact(self, at: int) -> int:
        return int.from_bytes(os.pread(self.table, 8, at), "little")

    def _write_fact(self, at: int, value: int) -> None:
        with (self.path / "table").open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), value.to_bytes(8, "little"), at)


class SegmentWriter:
    """Appends entries to a segment that no other process writes to.

    Process: belongs to the process that made it; the kernel frees its segment when that dies.
    """

    def __init__(self, folder: CacheFolder, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._step_bytes = min(4 * MIB, max(64 * KIB, max_bytes // 256))
        self._number = 0
        self._descriptor = -1
        self._end = self._reserved = 0
        self._refused_bytes: int | None = None
        self.pid = os.getpid()

    def append(self, head: bytes, payload: bytes) -> bytes | None:
        """Write an entry and return its place, or None where it does not fit under the limit.

        Raises:
            OSError: the disk is full, or fails otherwise.
        """
        num_bytes = len(head) + len(payload)
        if self._refused_bytes is not None and num_bytes >= self._refused_bytes:
            return None
        if self._descriptor >= 0 and not os.fstat(self._descriptor).st_nlink:  # the cache was shrunk or cleared
            self._leave()
        if self._end + num_bytes > self._reserved and not self._reserve(num_bytes):
            self._refused_bytes = num_bytes
            return None
        if os.pwritev(self._descriptor, [head, payload], self._end) != num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        place = (self._number << _OFFSET_BITS) + self._end
        self._end += num_bytes
        return place.to_bytes(8, "little")

    def leave(self, number: int) -> None:
        """Write to segment `number` no more, if that is the one, and try again what did not fit before."""
        if number == self._number:
            self._leave()
        self._refused_bytes = None

    def close(self) -> None:
        """Give back what was reserved and not used."""
        if self._descriptor >= 0 and self.pid == os.getpid():
            os.ftruncate(self._descriptor, self._end)
        self._leave()

    def _leave(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._end, self._reserved = -1, 0, 0

    def _reserve(self, num_bytes: int) -> bool:
        with self._folder.locked():
            if self._descriptor >= 0 and self._end and self._end + num_bytes > _SEGMENT_BYTES:
                os.ftruncate(self._descriptor, self._end)
                self._leave()
            sizes = self._folder.segments()
            if self._descriptor < 0 and not self._adopt(sizes, num_bytes):
                self._number = next(number for number in count(1) if not self._folder.segment_path(number).exists())
                path = self._folder.segment_path(self._number)
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._end = self._reserved = 0
            limit = min(self._max_bytes, self._folder.limit_bytes() or self._max_bytes)
            spare = limit - self._folder.used_bytes()
            wanted = self._end + num_bytes - self._reserved
            if wanted > spare:
                return False
            reserved = self._reserved + max(wanted, min(self._step_bytes, spare))
            if wanted > 0:
                os.ftruncate(self._descriptor, reserved)
                self._reserved = reserved
            return True

    def _adopt(self, sizes: dict[int, int], num_bytes: int) -> bool:
        """Go on with a segment whose writer has ended, behind its last entry."""
        for number, size in sizes.items():
            if size >= _SEGMENT_BYTES * 0.9:
                continue
            path = self._folder.segment_path(number)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:  # another user's, or no regular file
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self._number, self._descriptor, self._reserved = number, descriptor, size
            self._end = self._end_of(descriptor, size)
            if self._end + num_bytes <= _SEGMENT_BYTES:
                return True
            self._leave()
        return False

    def _end_of(self, descriptor: int, size: int) -> int:
        end = 0
        while head := read_head(os.pread(descriptor, HEAD_BYTES, end), key=self._folder.key):
            following = end + HEAD_BYTES + head.payload_bytes
            if following > size:
                break
            end = following
        return end


def caches_in(folder: Path) -> list[tuple[CacheFolder, dict[str, Any]]]:
    """Return the caches below `folder` and what is said about each; what is none is passed over."""
    found = []
    for path in sorted(folder.iterdir()):
        try:
            about = json.loads((path / "about.json").read_text(encoding="utf-8"))
            if about["format"] == FORMAT:
                found.append((CacheFolder(path, num_samples=int(about["num_samples"]), key=key_of(about)), about))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def key_of(about: dict[str, Any]) -> int:
    """Return the key of a data set's checksums: over its lines, its root and the form that is kept."""
    words = [str(about[name]) for name in ("format", "fingerprint", "root", "form")]
    return xxh3_64_intdigest("\0".join(words).encode("utf-8", "surrogateescape"))
