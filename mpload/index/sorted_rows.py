"""Writes the rows of an index in the order of their numbers to a table, in constant memory.

Runs of consecutive rows are sorted and kept in scratch files. Then some (number, row) pairs are chosen from all runs
that divide the rows into buckets of about the length of a run, and bucket after bucket is sorted. This is parallel
sorting by regular sampling, with one process: Shi and Schaeffer, JPDC 14 (1992).
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpload.index.table_files import HEAD_BYTES, write_head

__all__ = ["write_sorted_rows"]

_RUN_ROWS = 1 << 20
_SAMPLES_PER_RUN = 64


def write_sorted_rows(
    file: BinaryIO, blocks: Iterator[NDArray[Any]], *, num_samples: int, facts: Mapping[str, Any]
) -> None:
    """Write a table of row numbers, int64 [N], in ascending order of their numbers; equal ones stay in order.

    Args:
        file: an empty file.
        blocks: the numbers, int64 [n], uint64 [n] or float64 [n] each, without NaN.
        num_samples: how many numbers there are.
        facts: what the head holds, beside the number of entries and the digest.

    Memory: about 100 MB. Scratch files beside `file` take 16 bytes per sample until it is complete.
    """
    digest = hashlib.blake2b(digest_size=16)
    file.seek(HEAD_BYTES)
    folder = Path(file.name).parent
    with tempfile.TemporaryFile(dir=folder) as numbers, tempfile.TemporaryFile(dir=folder) as rows:
        dtype: Any = np.int64
        for first, run in _runs(blocks):
            digest.update(run.tobytes())
            dtype = run.dtype
            in_order = np.argsort(run, kind="stable")
            numbers.write(run[in_order].tobytes())
            rows.write((in_order + first).tobytes())
        numbers.flush()
        rows.flush()
        runs = _Runs(numbers=_mapped(numbers, dtype), rows=_mapped(rows, np.int64))
        file.writelines(bucket.tobytes() for bucket in runs.in_order())
    write_head(file, {**facts, "num_entries": num_samples, "digest": digest.hexdigest()})


def _runs(blocks: Iterator[NDArray[Any]]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the numbers in arrays of `_RUN_ROWS`, and the row of the first one; the last may be shorter."""
    first, kept = 0, list[NDArray[Any]]()
    for block in blocks:
        kept.append(block)
        while sum(map(len, kept)) >= _RUN_ROWS:
            joined = np.concatenate(kept)
            yield first, joined[:_RUN_ROWS]
            first, kept = first + _RUN_ROWS, [joined[_RUN_ROWS:]]
    if sum(map(len, kept)):
        yield first, np.concatenate(kept)


def _mapped(file: Any, dtype: Any) -> NDArray[Any]:
    return np.memmap(file, dtype, mode="r").view(np.ndarray)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Sorted runs, one after another."""

    numbers: NDArray[Any]
    rows: NDArray[np.int64]

    def in_order(self) -> Iterator[NDArray[np.int64]]:
        """Yield all rows in the order of their numbers, in buckets of about the length of a run."""
        starts = list(range(0, len(self.rows), _RUN_ROWS))
        before = starts
        for splitter in [*self._splitters(), None]:
            places = [self._place_in_run(start, splitter) for start in starts]
            pieces = [slice(first, last) for first, last in zip(before, places, strict=True) if first < last]
            if pieces:
                numbers = np.concatenate([self.numbers[piece] for piece in pieces])
                rows = np.concatenate([self.rows[piece] for piece in pieces])
                yield rows[np.argsort(numbers, kind="stable")]
            before = places

    def _splitters(self) -> list[tuple[Any, int]]:
        """Return the pairs of a number and a row, in order, at which buckets begin."""
        places = np.arange(0, len(self.rows), max(1, _RUN_ROWS // _SAMPLES_PER_RUN))
        numbers, rows = self.numbers[places], self.rows[places]
        chosen = np.lexsort([rows, numbers])[_SAMPLES_PER_RUN::_SAMPLES_PER_RUN]
        return list(zip(numbers[chosen], rows[chosen].tolist(), strict=True))  # Python integers are int64 to NumPy

    def _place_in_run(self, start: int, splitter: tuple[Any, int] | None) -> int:
        """Return the place of the first row of a run that does not come before a splitter."""
        stop = min(start + _RUN_ROWS, len(self.rows))
        if splitter is None:
            return stop
        number, row = splitter
        run = self.numbers[start:stop]
        first, last = (start + int(np.searchsorted(run, number, side=side)) for side in ("left", "right"))
        return first + int(np.searchsorted(self.rows[first:last], row))
