"""`Lines`: the lines of many samples in one buffer, with their cells as arrays, for code that handles whole chunks.

Only simple lines are cut into cells: those with TABs between exactly one cell per column, and no escapes. All other
lines, and numbers and spans that are not plain, are left to `Lines.record`, which parses them or reports their faults.
Where the native module was not built, that is all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import IndexFormatError
from mpload.index.columns import ColumnType
from mpload.index.record import Record
from mpload.index.text import Dialect, Header, line_parser
from mpload.native import native_module

__all__ = ["NATIVE", "Lines", "Maps", "Spans", "cells_of"]


Maps = tuple[mmap, mmap]
"""The text and the sidecar of an index, mapped into memory."""


class _Native(Protocol):
    """The module `mpload.index._lines`."""

    def read(
        self,
        files: tuple[int, ...],
        maps: Maps | None,
        sample_ids: NDArray[np.int64],
        bounds: NDArray[np.int64],
    ) -> tuple[bytes, int] | None: ...
    def ask(self, files: tuple[int, ...], sample_ids: NDArray[np.int64]) -> int: ...
    def split(self, data: bytes, bounds: NDArray[np.int64], num_columns: int, cells: NDArray[np.int64]) -> None: ...
    def integers(
        self, data: bytes, cells: NDArray[np.int64], values: NDArray[np.int64], is_parsed: NDArray[np.bool_]
    ) -> None: ...
    def spans(self, data: bytes, cells: NDArray[np.int64], spans: NDArray[np.int64]) -> None: ...


NATIVE: Final[_Native | None] = native_module("index._lines")
"""The native module; None where it was not built."""
_MAX_COLUMNS = 1 << 16  # for the native module


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """The bytes that the cells of one column name: whole files, or spans of shards."""

    offsets: NDArray[np.int64]
    """int64 [n]: offset of the first byte; 0 for a whole file."""
    lengths: NDArray[np.int64]
    """int64 [n]: number of bytes; -1 for a whole file."""
    paths: NDArray[np.int64]
    """int64 [n, 2]: where the path starts and ends in `Lines.data`; -1 if the line must be parsed as a record."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lines:
    """The lines of n samples.

    Memory: the lines, and 16 bytes per cell.
    """

    sample_ids: NDArray[np.int64]
    """int64 [n]: number of each line's sample. In an index of N samples, those of repeated draws are N or greater."""
    rows: NDArray[np.int64]
    """int64 [n]: number of each line: its sample_id modulo N."""
    data: bytes
    """Parts of the text that contain all lines."""
    bounds: NDArray[np.int64]
    """int64 [n, 2]: where each line starts and ends in `data`."""
    cells: NDArray[np.int64]
    """int64 [n, num_columns, 2]: where each cell starts and ends in `data`; -1 if `record` must parse the line."""
    header: Header
    where: Callable[[int], str]
    """Returns the file and line number of a row, such as `train.txt:17`."""

    def __len__(self) -> int:
        return len(self.sample_ids)

    def record(self, place: int) -> Record:
        """Return the record of the line at `place`.

        Raises:
            IndexFormatError: the line breaks the format.
        """
        return self.records(range(place, place + 1))[0]

    def records(self, places: range | None = None) -> list[Record]:
        """Return the records of the lines at `places`, by default of all lines.

        Raises:
            IndexFormatError: a line breaks the format. The message names the first such line.
        """
        columns, parse, data = self.header.columns, line_parser(self.header), self.data
        part = slice(None) if places is None else slice(places.start, places.stop)
        records = []
        try:
            for sample_id, (start, end) in zip(self.sample_ids[part].tolist(), self.bounds[part].tolist(), strict=True):
                records.append(Record(sample_id, tuple(parse(data[start:end])), columns))
        except ValueError as error:
            row = int(self.rows[part][len(records)])
            raise IndexFormatError(f"{self.where(row)}: {error}") from error
        return records

    def integers(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the integers in a column, int64 [n], and whether each was parsed, bool [n]."""
        values, is_parsed = np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        if NATIVE is not None:
            NATIVE.integers(self.data, np.ascontiguousarray(self.cells[:, column]), values, is_parsed)
        return values, is_parsed

    def spans(self, column: int) -> Spans:
        """Return what the cells of a column name, if its type is `path` or `span`; `record` must parse all others."""
        cells, kind = self.cells[:, column], self.header.columns[column].type
        if kind is ColumnType.PATH:
            offsets, lengths = np.zeros((2, len(self)), np.int64)
            lengths -= 1
            return Spans(offsets=offsets, lengths=lengths, paths=np.where(cells[:, :1] < cells[:, 1:], cells, -1))
        found = np.full((len(self), 4), -1, np.int64)
        if kind is ColumnType.SPAN and NATIVE is not None:
            NATIVE.spans(self.data, np.ascontiguousarray(cells), found)
        return Spans(offsets=found[:, 0], lengths=found[:, 1], paths=found[:, 2:])


def cells_of(data: bytes, bounds: NDArray[np.int64], header: Header) -> NDArray[np.int64]:
    """Return where the cells of the lines with these `bounds` start and end in `data`; see `Lines.cells`."""
    shape = len(bounds), len(header.columns), 2
    if NATIVE is None or header.dialect not in {Dialect.NATIVE, Dialect.TAB} or shape[1] > _MAX_COLUMNS:
        return np.full(shape, -1, np.int64)
    cells = np.empty(shape, np.int64)
    NATIVE.split(data, bounds, len(header.columns), cells)
    return cells
