"""Compares an existing file with what it should hold."""

from collections.abc import Iterable
from pathlib import Path

from mpload.errors import StorageError

__all__ = ["compare_file"]


def compare_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Compare a file with chunks of bytes, which together are what it should hold.

    Raises:
        StorageError: The file differs, and the message says where. Or it cannot be opened.
    """
    try:
        existing = path.open("rb")
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened: {error.strerror}. Pack again, which makes it anew") from error
    with existing:
        for chunk in chunks:
            offset = existing.tell()
            if existing.read(len(chunk)) != chunk:
                raise StorageError(
                    f"{path}: differs from the data of the index, within bytes {offset} to {offset + len(chunk)}"
                )
        if existing.read(1):
            raise StorageError(f"{path}: has data after its expected end, at byte {existing.tell() - 1}")
