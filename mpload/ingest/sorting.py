"""Sorts more strings than fit in memory, by an external merge sort."""

import heapq
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mpload.errors import StorageError
from mpload.units import KIB, MIB

__all__ = ["read_strings", "sorted_strings", "write_strings"]

RUN_BYTES = 64 * MIB
_POINTER_BYTES = 8
_END = b"\xff"  # never occurs in UTF-8, even in that of lone surrogates, which stand for undecodable bytes
_MIN_BUFFER_BYTES = 16 * KIB


def write_strings(file: BinaryIO, strings: Iterable[str]) -> None:
    """Write strings to a file, one after another."""
    file.writelines(string.encode("utf-8", "surrogatepass") + _END for string in strings)


def read_strings(path: Path, *, buffer_bytes: int) -> Iterator[str]:
    """Yield the strings that `write_strings` wrote to a file, with a buffer of this size."""
    rest = b""
    with path.open("rb", buffering=0) as file:
        while data := file.read(max(buffer_bytes // 8, _MIN_BUFFER_BYTES)):  # decoded names take more memory
            *pieces, rest = (rest + data).split(_END)
            for piece in pieces:
                yield piece.decode("utf-8", "surrogatepass")


@contextmanager
def sorted_strings(strings: Iterable[str], *, folder: Path, run_bytes: int = RUN_BYTES) -> Iterator[Iterator[str]]:
    """Consume all `strings`, and return an iterator over them in the order of `sorted()`.

    This is an external merge sort (Knuth, The Art of Computer Programming 3, 5.4). Strings that do not fit in
    `run_bytes` of memory are written as sorted runs to one nameless temporary file in `folder`. The file disappears
    when the context ends, even if the process is killed.

    Memory: about `run_bytes` for any number of strings.

    Raises:
        StorageError: the temporary file cannot be written to `folder`.
    """
    run: list[str] = []
    held_bytes = 0
    spill = None
    try:
        for string in strings:
            run.append(string)
            held_bytes += sys.getsizeof(string) + _POINTER_BYTES
            if held_bytes >= run_bytes:
                spill = spill or _Spill(folder)
                spill.add(run)
                run.clear()
                held_bytes = 0
        if spill is None:
            run.sort()
            yield iter(run)
        else:
            spill.add(run)
            run.clear()
            yield heapq.merge(*spill.runs(buffer_bytes=run_bytes))
    finally:
        if spill is not None:
            spill.close()


class _Spill:
    """Sorted runs, stored one after another in a temporary file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  close() closes it
        except OSError as error:
            raise self._error(error) from error
        self._ends = [0]

    def add(self, run: list[str]) -> None:
        run.sort()
        try:
            write_strings(self._file, run)
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error
        self._ends.append(self._file.tell())

    def runs(self, *, buffer_bytes: int) -> list[Iterator[str]]:
        """Return an iterator for each run. All of them together use about `buffer_bytes` of memory."""
        each_bytes = max(buffer_bytes // (8 * len(self._ends)), _MIN_BUFFER_BYTES)  # decoded names take more memory
        return [self._read(start, end, each_bytes) for start, end in zip(self._ends[:-1], self._ends[1:], strict=True)]

    def close(self) -> None:
        self._file.close()

    def _read(self, start: int, end: int, buffer_bytes: int) -> Iterator[str]:
        rest = b""
        while start < end:
            self._file.seek(start)  # all runs share the file position
            data = self._file.read(min(buffer_bytes, end - start))
            if not data:
                raise StorageError(f"{self._folder}: the temporary file of the sort was truncated. Try again")
            start += len(data)
            *pieces, rest = (rest + data).split(_END)
            for piece in pieces:
                yield piece.decode("utf-8", "surrogatepass")

    def _error(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self._folder}: the temporary file for sorting names cannot be written: {error.strerror or error}. "
            "It takes about as much space as the index. Free some space, or put the index on another disk"
        )
