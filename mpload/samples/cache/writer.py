"""A process's own segment of a cache: which one it may write to, and how much of the limit is left."""

import errno
import os
from contextlib import suppress
from itertools import count

from mpload.samples.cache.entries import HEAD_BYTES, read_head
from mpload.samples.cache.folder import OFFSET_BITS, CacheFolder, segment_name
from mpload.samples.cache.trusted import try_lock
from mpload.units import KIB, MIB

__all__ = ["SegmentWriter"]

_SEGMENT_BYTES = 256 * MIB


class SegmentWriter:
    """Appends entries to a segment that no other process writes to. Opens one when the first entry comes.

    Process: may be forked: the child leaves the segment to its parent, and appends to one of its own. The kernel frees
    the segment of a process that dies.
    """

    def __init__(self, folder: CacheFolder, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._step_bytes = min(4 * MIB, max(64 * KIB, max_bytes // 256))
        self._number = 0
        self._descriptor = -1
        self._end = self._reserved = 0
        self._refused_bytes: int | None = None
        self._pid = os.getpid()

    def append(self, head: bytes, payload: bytes) -> bytes | None:
        """Write an entry and return its place, or None where it does not fit under the limit.

        Raises:
            OSError: the disk is full, or fails otherwise.
        """
        if self._pid != os.getpid():
            self._leave()
            self._pid, self._refused_bytes = os.getpid(), None
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
        place = (self._number << OFFSET_BITS) + self._end
        self._end += num_bytes
        return place.to_bytes(8, "little")

    def leave(self, number: int) -> None:
        """Write to segment `number` no more, if that is the one, and try again what did not fit before."""
        if number == self._number:
            self._leave()
        self._refused_bytes = None

    def close(self) -> None:
        """Give back what was reserved and not used."""
        if self._descriptor >= 0 and self._pid == os.getpid():
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
                self._begin()
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

    def _begin(self) -> None:
        """Start a segment, under the first number whose name is free."""
        for number in count(1):
            with suppress(FileExistsError):
                self._descriptor = self._folder.open_file(segment_name(number), os.O_RDWR | os.O_CREAT | os.O_EXCL)
                break
        try_lock(self._descriptor)
        self._number, self._end, self._reserved = number, 0, 0

    def _adopt(self, sizes: dict[int, int], num_bytes: int) -> bool:
        """Go on with a segment whose writer has ended, behind its last entry."""
        for number, size in sizes.items():
            if size >= _SEGMENT_BYTES * 0.9:
                continue
            try:
                descriptor = self._folder.open_file(segment_name(number), os.O_RDWR)
            except OSError:  # another user's, or none of the cache's
                continue
            if not try_lock(descriptor):
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
