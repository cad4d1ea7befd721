"""A file that is read by position."""

import errno
import os
import stat
import threading
import weakref
from pathlib import Path

from mpload.errors import StorageError

__all__ = ["OpenFile"]

# Opening a FIFO must not wait: it is seen to be no regular file then.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class OpenFile:
    """A regular file, open until nobody holds this object any more.

    Process: may be forked, and used by any thread: reads share no position.

    Raises:
        StorageError: it cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            raise self._error(error) from error
        weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise self._error(OSError(errno.EINVAL, "is not a regular file"))

    def stamp(self) -> tuple[int, int]:
        """Return size in bytes and modification time in nanoseconds."""
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def read(self, offset_bytes: int, num_bytes: int) -> bytes:
        """Return the bytes from `offset_bytes` on, fewer where the file ends before."""
        try:
            if hasattr(os, "pread"):
                return os.pread(self._descriptor, num_bytes, offset_bytes)
            with self._lock:  # Windows
                os.lseek(self._descriptor, offset_bytes, os.SEEK_SET)
                return os.read(self._descriptor, num_bytes)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> StorageError:
        raised = StorageError(f"{self.path}: cannot be read: {error.strerror}. Was it moved or deleted?")
        raised.errno = error.errno
        return raised
