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

__all__ = ["share_again", "take_own_pages"]

_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> ctypes.CDLL:  # called late: datasets import this module where there is no `mremap`, too
    library = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    library.mmap.restype = library.mremap.restype = pointer
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_longlong]
    library.mremap.argtypes = [pointer, size, size, number, pointer]
    library.munmap.argtypes = [pointer, size]
    return library


def take_own_pages(address: int, fd: int, start: int, num_bytes: int) -> None:
    """Replace `num_bytes` of shared memory at `address` by a copy that only this process has.

    Args:
        address: where `fd` is mapped from offset `start` on; a whole page.
        fd: shared memory. Only what it holds is copied, not its holes.
        start: offset in `fd`.
        num_bytes: whole pages.

    Raises:
        OSError: there is not enough memory or address space. Nothing has changed.
    """
    copy = _mapped(None, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    try:
        _copy(fd, start, num_bytes, copy)
        _check(_libc().mremap(copy, num_bytes, num_bytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, address))
    except BaseException:
        _libc().munmap(copy, num_bytes)
        raise


def share_again(address: int, fd: int, start: int, num_bytes: int) -> None:
    """Map the shared memory again in place of the pages that only this process has. The arguments are the same.

    Raises:
        OSError: there is not enough address space.
    """
    _mapped(address, num_bytes, mmap.MAP_SHARED | _MAP_FIXED, fd, start)


def _copy(fd: int, start: int, num_bytes: int, target: int) -> None:
    at, end = start, start + num_bytes
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        hole = min(end, os.lseek(fd, at, os.SEEK_HOLE))
        while at < hole:
            room = (ctypes.c_char * (hole - at)).from_address(target + at - start)
            at += os.preadv(fd, [room], at)


def _mapped(address: int | None, num_bytes: int, flags: int, fd: int, start: int) -> int:
    return _check(_libc().mmap(address, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, start))


def _check(result: int) -> int:
    if result == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
