"""Gives a process pages of its own in place of shared memory, at the same address.

A child that the user forks inherits the batches of its parent. The child cannot keep the parent from reusing their
slots, so workers would overwrite what the child still reads. Therefore, before a fork, each lent slot gets pages of its
own, which the kernel copies for the child when one of the two writes. They are given up when the slot is returned.
"""

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress

__all__ = ["share_again", "take_own_pages"]

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_POPULATE_WRITE = 23
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_longlong]
    library.madvise.argtypes = [pointer, size, number]
    return library


def take_own_pages(address: int, fd: int, start: int, num_bytes: int) -> None:
    """Replace `num_bytes` of shared memory at `address` by pages that only this process has, with the same contents.

    Other threads may read and write there meanwhile: what they write is kept. If memory runs out, some pages follow the
    shared memory until this process writes to them.

    Args:
        address: where `fd` is mapped from offset `start` on; a whole page.
        fd: shared memory. Its holes take no memory.
        start: offset in `fd`.
        num_bytes: whole pages.

    Raises:
        OSError: there is not enough address space. Nothing has changed.
    """
    _map(address, num_bytes, mmap.MAP_PRIVATE | _MAP_NORESERVE, fd, start)
    with suppress(OSError):
        for at, length in _stored(fd, start, start + num_bytes):
            _own(address + at - start, length)


def share_again(address: int, fd: int, start: int, num_bytes: int) -> None:
    """Map the shared memory again in place of the pages that only this process has. The arguments are the same.

    Raises:
        OSError: there is not enough address space.
    """
    _map(address, num_bytes, mmap.MAP_SHARED, fd, start)


def _map(address: int, num_bytes: int, flags: int, fd: int, start: int) -> None:
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc().mmap(address, num_bytes, rights, flags | _MAP_FIXED, fd, start) == _FAILED:
        raise _error()


def _stored(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and size of each part that is no hole; whole pages."""
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        hole = os.lseek(fd, start, os.SEEK_HOLE)
        if start < end:
            yield start, min(end, hole) - start
        start = hole


def _own(address: int, num_bytes: int) -> None:
    """Let the kernel copy the pages of a private mapping, as a write to each would."""
    if _libc().madvise(address, num_bytes, _MADV_POPULATE_WRITE) == 0:
        return
    if (error := _error()).errno != errno.EINVAL:
        raise error
    for page in range(address, address + num_bytes, mmap.PAGESIZE):  # before Linux 5.14
        ctypes.memmove(page, page, 1)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
