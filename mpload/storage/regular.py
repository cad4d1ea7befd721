"""Opens regular files only, and never waits for one: a path of an index may lead to a pipe or a device."""

import errno
import os
import stat

from mpload.errors import StorageError
from mpload.storage.file_errors import file_error
from mpload.units import printable

__all__ = ["open_regular"]

# If an index names a FIFO, opening it must not block; a terminal must not become this process's controlling terminal.
# `_size_of` then refuses both.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def open_regular(full: str, path: str) -> tuple[int, int]:
    """Open a regular file, and return its descriptor and its size in bytes.

    Args:
        full: the file.
        path: the file, as the index names it, for errors.

    Raises:
        StorageError: it cannot be opened, or is no regular file.
    """
    try:
        descriptor = os.open(full, _OPEN_FLAGS)
    except OSError as error:
        raise file_error(path, error) from error
    except ValueError as error:  # a NUL in the path
        raise StorageError(f"{path!r} is not a valid path: {error}. Fix this line of the index") from error
    try:
        return descriptor, _size_of(descriptor, path)
    except StorageError:
        os.close(descriptor)
        raise


def _size_of(descriptor: int, path: str) -> int:
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise file_error(path, error) from error
    if not stat.S_ISREG(facts.st_mode):
        raise StorageError(
            f"{printable(path)}: is a device, pipe or socket, not a regular file. Remove it from the index"
        )
    return facts.st_size
