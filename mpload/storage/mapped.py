"""Maps small indexes, and shards of small samples: copying a row takes a third of the time of reading it.

A map has two prices. If another process truncates the file, access to the map kills this process by SIGBUS. And the
pages that were touched count towards this process's memory, although they are page cache, which the kernel may drop.
Therefore only worker processes map files, because the death of one loses nothing, and only up to a fixed size.
"""

import errno
import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from typing import Final, Self

from mpload.units import GIB, KIB

__all__ = ["MAX_MAPPED_BYTES", "MappedShard", "can_load", "map_of"]

MAX_MAPPED_BYTES = 2 * GIB
"""The most bytes of shards that a process maps."""

_BLOCK_BYTES: Final = 64 * KIB  # as in `_read_many.h`
_LOAD_PAGES: Final = 22  # MADV_POPULATE_READ, which older versions of Python lack
_MIN_DESCRIPTORS: Final = 1024  # a map has a descriptor of its own


def map_of(descriptor: int, *, max_bytes: int) -> mmap | None:
    """Return a map of a file; None if the file is empty or larger than `max_bytes`, or should not or cannot be mapped.

    Nothing is mapped under a limit on address space or a low limit on descriptors: the rest of the process needs them.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return None
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _MIN_DESCRIPTORS:  # negative: no limit
        return None
    with suppress(OSError, ValueError):
        if 0 < (num_bytes := os.fstat(descriptor).st_size) <= max_bytes:
            return mmap(descriptor, num_bytes, access=ACCESS_READ)
    return None


def can_load(data: mmap) -> bool:
    """Load all pages of a map, and return whether that worked. Access to other pages would be SIGBUS.

    Kernels older than 5.14 cannot tell.
    """
    try:
        data.madvise(_LOAD_PAGES)
    except OSError as error:
        return error.errno == errno.EINVAL
    return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MappedShard:
    """A shard that is mapped into memory.

    Before native code touches a block of 64 KiB for the first time, it asks the kernel to load it. If the disk fails,
    that is an error instead of SIGBUS.
    """

    data: mmap
    changed_ns: int
    """When the file had last been changed before it was mapped. The map is not used after later changes."""
    are_loaded: bytearray
    """Whether each block was loaded."""

    @classmethod
    def of(cls, descriptor: int, *, max_bytes: int) -> Self | None:
        """Return a mapped shard; None where `map_of` returns None."""
        with suppress(OSError):
            changed_ns = os.fstat(descriptor).st_ctime_ns
            if (data := map_of(descriptor, max_bytes=max_bytes)) is not None:
                return cls(data=data, changed_ns=changed_ns, are_loaded=bytearray(-(-len(data) // _BLOCK_BYTES)))
        return None
