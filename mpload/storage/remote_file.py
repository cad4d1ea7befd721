"""An object at a URL, read by position like a file."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from mpload.errors import StorageError
from mpload.storage.ranges import Span
from mpload.storage.remote import RemoteObjects
from mpload.units import MIB

__all__ = ["RemoteFile", "read_parts"]

_PART_BYTES = 8 * MIB
_NUM_THREADS = 4


class RemoteFile(io.RawIOBase):
    """An object as a file that pyarrow can read. A read is one request, or one for each 8 MiB.

    Args:
        objects: reads the object.
        path: its path, or its URL.

    Memory: what a read returns.
    Process: for the process in which it was made.

    Raises:
        StorageError: the object cannot be read, or its server does not say how large it is.
    """

    def __init__(self, objects: RemoteObjects, path: str) -> None:
        super().__init__()
        num_bytes = objects.look_up(path).num_bytes
        if num_bytes is None:
            raise StorageError(
                f"{path}: the server does not say how large it is. Copy it to this machine, or enable Content-Length"
            )
        self._objects = objects
        self._path = path
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset at which the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the offset at which the next read begins, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return `size` bytes, or all that follow; fewer at the end.

        Raises:
            OutageError: the server does not answer.
            StorageError: the bytes cannot be read.
        """
        left_bytes = max(0, self._num_bytes - self._position)
        size = left_bytes if size is None or size < 0 else min(size, left_bytes)
        if size <= _PART_BYTES:
            data = self._objects.read([Span(self._path, self._position, size)])[0]
        else:
            parts: dict[int, bytes] = {}
            read_parts(self._objects, self._path, self._position, self._position + size, parts.__setitem__)
            data = b"".join(parts[offset] for offset in sorted(parts))
        self._position += size
        return data


def read_parts(objects: RemoteObjects, path: str, start: int, stop: int, put: Callable[[int, bytes], object]) -> None:
    """Read an object from byte `start` to `stop` in parts, in a few threads, and call `put(offset, data)` with each.

    Memory: a few parts of 8 MiB.

    Raises:
        OutageError: the server does not answer.
        StorageError: the bytes cannot be read.
    """

    def read(offset: int) -> None:
        put(offset, objects.read([Span(path, offset, min(_PART_BYTES, stop - offset))])[0])

    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="mpload-parts") as threads:
        try:
            for _ in threads.map(read, range(start, stop, _PART_BYTES)):
                pass
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
