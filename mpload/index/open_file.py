"""Files of an index: a text opened with clear errors, and files that are read by position."""

import errno
import os
import stat
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpload.errors import IndexFormatError, IndexNotFoundError, StorageError
from mpload.storage.merging import merge_nearby
from mpload.units import KIB, MIB

__all__ = ["OpenFile", "open_text", "raise_if_limited", "read_pieces"]

_MAX_GAP_BYTES = 4 * KIB  # reading this many unneeded bytes costs less than another system call
_MAX_READ_BYTES = MIB
_FEW_PIECES = 64  # up to this many are read one by one, as planning merged reads would take longer

_LIMITS = {
    errno.EMFILE: "The limit of open files is reached, and each index has two open. Raise it: ulimit -n 65536",
    errno.ENFILE: "The machine's limit of open files is reached. Raise it: sysctl -w fs.file-max=...",
}

# Opening a FIFO must not block. A check afterwards finds that it is not a regular file.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def open_text(path: Path) -> BinaryIO:
    """Open an index text for reading.

    Raises:
        IndexFormatError: `path` is a directory, a pipe or anything else that is not a regular file.
        IndexNotFoundError: there is no file at `path`.
        StorageError: the file cannot be opened, for example because permission is denied.
    """
    try:
        mode = path.stat().st_mode  # checked first, because opening a FIFO would block
        if stat.S_ISDIR(mode):
            raise IndexFormatError(f"{path}: is a directory. Make an index of it: mpload index {path} -o train.txt")
        if not stat.S_ISREG(mode):
            raise IndexFormatError(f"{path}: is not a regular file, which an index must be. Copy it to a regular file")
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IndexNotFoundError(
            f"There is no index at '{path}'{_looked_in(path)}. Make one: mpload index FOLDER -o {path}"
        ) from error
    except OSError as error:
        raise_if_limited(path, error)
        raise StorageError(
            f"{path}: the index cannot be opened: {error.strerror}. Check the permissions of the file and its folders"
        ) from error


def _looked_in(path: Path) -> str:
    """Return the folder that a relative path starts at, for a message."""
    if path.is_absolute():
        return ""
    with suppress(OSError):  # the working directory may have been deleted
        return f" (looked in {Path.cwd()})"
    return ""


def raise_if_limited(path: Path, error: Exception) -> None:
    """Raise `StorageError` if a limit of open files is to blame for an error: then nothing is wrong with the file."""
    if isinstance(error, OSError) and error.errno in _LIMITS:
        raise _numbered(
            f"{path}: cannot be opened: {os.strerror(error.errno)}. {_LIMITS[error.errno]}", error
        ) from error


class OpenFile:
    """A regular file, open for reading as long as this object is referenced.

    Process: may be forked, and may be used from any thread, because reads share no file position.

    Raises:
        StorageError: the file cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            raise_if_limited(path, error)
            raise self._error(error) from error
        weakref.finalize(self, os.close, self.descriptor)
        self._lock = threading.Lock()
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise self._error(OSError(errno.EINVAL, "is not a regular file"))

    def stamp(self) -> tuple[int, int]:
        """Return the size in bytes and the modification time in nanoseconds."""
        status = os.fstat(self.descriptor)
        return status.st_size, status.st_mtime_ns

    def read(self, offset_bytes: int, num_bytes: int) -> bytes:
        """Return `num_bytes` bytes starting at `offset_bytes`, or fewer if the file ends first."""
        try:
            if hasattr(os, "pread"):
                return os.pread(self.descriptor, num_bytes, offset_bytes)
            with self._lock:  # Windows
                os.lseek(self.descriptor, offset_bytes, os.SEEK_SET)
                return os.read(self.descriptor, num_bytes)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> StorageError:
        return _numbered(f"{self.path}: cannot be read: {error.strerror}. Was it moved or deleted?", error)


def _numbered(message: str, error: OSError) -> StorageError:
    """Return an error with the number of another. It is no variable where it is raised, as that would be a cycle."""
    numbered = StorageError(message)
    numbered.errno = error.errno
    return numbered


def read_pieces(file: OpenFile, offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[bytes]:
    """Return the bytes of each piece. A piece is shorter than its length if the file ends first."""
    if len(offsets) <= _FEW_PIECES:
        return [file.read(*piece) for piece in zip(offsets.tolist(), lengths.tolist(), strict=True)]
    reads = merge_nearby(offsets, lengths, max_gap_bytes=_MAX_GAP_BYTES, max_read_bytes=_MAX_READ_BYTES)
    data = [file.read(*read) for read in zip(reads.offsets.tolist(), reads.lengths.tolist(), strict=True)]
    parts = zip(reads.read_of.tolist(), reads.start_in_read.tolist(), lengths.tolist(), strict=True)
    return [data[read][start : start + length] for read, start, length in parts]
