"""Appends entries to a process's own segment of a cache, within the size limit."""

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
    """Appends entries to a segment that no other process writes to. Opens it when the first entry is appended.

    Process: may be forked. The child does not write to its parent's segment, but appends to its own. When a process
    dies, the kernel releases the lock on its segment.
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
        """Append an entry and return its place, or None if it would exceed the limit.

        Raises:
            OSError: The disk is full, or writing failed for another reason.
        """
        if self._pid != os.getpid():
            self._release()
            self._pid, self._refused_bytes = os.getpid(), None
        num_bytes = len(head) + len(payload)
        if self._refused_bytes is not None and num_bytes >= self._refused_bytes:
            return None
        if self._descriptor >= 0 and not os.fstat(self._descriptor).st_nlink:  # the cache was shrunk or deleted
            self._release()
        if self._end + num_bytes > self._reserved and not self._reserve(num_bytes):
            self._refused_bytes = num_bytes
            return None
        if os.pwritev(self._descriptor, [head, payload], self._end) != num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        place = (self._number << OFFSET_BITS) + self._end
        self._end += num_bytes
        return place.to_bytes(8, "little")

    def abandon(self, number: int) -> None:
        """Stop writing to segment `number`, if it is this writer's; entries that exceeded the limit are tried again."""
        if number == self._number:
            self._release()
        self._refused_bytes = None

    def close(self) -> None:
        """Close the segment and release reserved space that was not used."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            os.ftruncate(self._descriptor, self._end)
        self._release()

    def _release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._end, self._reserved = -1, 0, 0

    def _reserve(self, num_bytes: int) -> bool:
        with self._folder.locked():
            if self._descriptor >= 0 and self._end and self._end + num_bytes > _SEGMENT_BYTES:
                os.ftruncate(self._descriptor, self._end)
                self._release()
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
        """Create a segment with the first unused number."""
        for number in count(1):
            with suppress(FileExistsError):
                self._descriptor = self._folder.open_file(segment_name(number), os.O_RDWR | os.O_CREAT | os.O_EXCL)
                break
        try_lock(self._descriptor)
        self._number, self._end, self._reserved = number, 0, 0

    def _adopt(self, sizes: dict[int, int], num_bytes: int) -> bool:
        """Take over a segment whose writer has ended, to append after its last entry."""
        for number, size in sizes.items():
            if size >= _SEGMENT_BYTES * 0.9:
                continue
            try:
                descriptor = self._folder.open_file(segment_name(number), os.O_RDWR)
            except OSError:  # another user's, or not a file of the cache
                continue
            if not try_lock(descriptor):
                os.close(descriptor)
                continue
            self._number, self._descriptor, self._reserved = number, descriptor, size
            self._end = self._end_of(descriptor, size)
            if self._end + num_bytes <= _SEGMENT_BYTES:
                return True
            self._release()
        return False

    def _end_of(self, descriptor: int, size: int) -> int:
        end = 0
        while head := read_head(os.pread(descriptor, HEAD_BYTES, end), key=self._folder.key):
            following = end + HEAD_BYTES + head.payload_bytes
            if following > size:
                break
            end = following
        return end
