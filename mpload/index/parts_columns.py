"""`PartsColumn`: a column of the sidecars of all parts, as if they were one."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.index.lookup import DTYPES, SidecarColumn, first_rows

__all__ = ["ColumnsOfParts", "PartsColumn"]


class ColumnsOfParts(Protocol):
    """An index of parts, as its columns see it."""

    def __len__(self) -> int: ...

    def column_of(self, number: int, name: str) -> SidecarColumn:
        """Return a column of the sidecar of a part."""

    def groups(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice, NDArray[np.int64]]]:
        """Yield the number of each part that has some of the rows, their places among `rows`, and their rows there."""

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each part with samples from `start` to `stop`, and the first row and the end of these."""


class PartsColumn(SidecarColumn):
    """A column of an index of parts; see `SidecarColumn`."""

    def __init__(self, index: ColumnsOfParts, name: str) -> None:
        self._index = index
        self._name = name
        self.shape = (len(index),)
        self.dtype = DTYPES[name]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the column in order; see `SidecarColumn.blocks`. No array has rows of two parts."""
        for number, _, stop in self._index.spans(0, len(self)):
            yield from first_rows(self._index.column_of(number, self._name), stop).blocks()

    def between(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop` (exclusive) as a new array."""
        spans = self._index.spans(start, stop)
        found = [self._index.column_of(number, self._name).between(first, last) for number, first, last in spans]
        return np.concatenate(found) if found else np.empty(0, self.dtype)

    def take(self, sample_ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of `sample_ids`; see `SidecarColumn.take`."""
        out: NDArray[Any] = np.empty(sample_ids.shape, self.dtype)
        for number, places, rows in self._index.groups(sample_ids):
            out[places] = self._index.column_of(number, self._name).take(rows)
        return out

    def __reduce__(self) -> tuple[object, ...]:
        return PartsColumn, (self._index, self._name)
