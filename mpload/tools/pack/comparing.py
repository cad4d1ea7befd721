"""A file to write to, or one that compares what is written with an existing file."""

from pathlib import Path
from typing import BinaryIO, Protocol

from mpload.errors import StorageError

__all__ = ["ComparingFile", "Writer"]


class Writer(Protocol):
    """Has the `write` method of a file."""

    def write(self, data: bytes, /) -> int:
        """Write or compare `data`, and return the number of its bytes."""
        ...


class ComparingFile:
    """Has the `write` method of a file, but compares the data with an existing file."""

    def __init__(self, existing: BinaryIO, path: Path) -> None:
        self._existing = existing
        self._path = path

    def write(self, data: bytes) -> int:
        """Compare `data` with the next bytes of the file; raises `StorageError` if they differ."""
        offset = self._existing.tell()
        if self._existing.read(len(data)) != data:
            raise StorageError(
                f"{self._path}: differs from the data of the index, within bytes {offset} to {offset + len(data)}"
            )
        return len(data)

    def expect_end(self) -> None:
        """Raise `StorageError` if the file has more data."""
        if self._existing.read(1):
            raise StorageError(f"{self._path}: has data after its expected end, at byte {self._existing.tell() - 1}")
