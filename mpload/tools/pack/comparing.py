"""Compares existing files of a pack, and the lines of its index, with what they should hold."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mpload.errors import StorageError
from mpload.index.opening import open_index
from mpload.index.text import format_line

__all__ = ["compare_file", "line_comparer", "lines_in"]

_BLOCK_SAMPLES = 256


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


def line_comparer(index: Path, positions: range, name: str) -> Callable[[bytes], object]:
    """Return what compares lines, in this order, with those that the index of a pack has for a shard of this name."""
    expected = lines_in(index, positions)

    def compare(line: bytes) -> None:
        if next(expected, b"") != line:
            raise StorageError(f"{index}: the lines of {name} differ from the data of the packed index")

    return compare


def lines_in(index: Path, positions: range) -> Iterator[bytes]:
    """Yield the lines that the index of a pack has at these positions."""
    found = open_index(index)
    for first in range(positions.start, positions.stop, _BLOCK_SAMPLES):
        for record in found.records(range(first, min(first + _BLOCK_SAMPLES, positions.stop))):
            yield format_line(record.cells)
