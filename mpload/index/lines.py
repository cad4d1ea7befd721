"""`Lines`: the lines of many samples in one buffer, with their cells as arrays, for code that handles whole chunks.

A line is only split here if it is simple: it has exactly one cell per column and no escapes. All other lines, and all
numbers and spans that are not plain ASCII, are left to `Lines.record`, which parses them or reports their faults.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpload.errors import IndexFormatError
from mpload.index.columns import ColumnType
from mpload.index.record import Record
from mpload.index.text import Dialect, Header, line_parser
from mpload.storage.ranges import Span

__all__ = ["Lines", "Spans"]


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
    """int64 [n]: number of each line's sample."""
    data: bytes
    """All lines, without their newlines."""
    bounds: NDArray[np.int64]
    """int64 [n, 2]: where each line starts and ends in `data`."""
    cells: NDArray[np.int64]
    """int64 [n, num_columns, 2]: where each cell starts and ends in `data`; -1 if `record` must parse the line."""
    header: Header
    path: Path
    """Path of the text."""

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
            raise IndexFormatError(f"{self.path}:{self.header.num_lines + sample_id + 1}: {error}") from error
        return records

    def integers(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the integers in a column, int64 [n], and whether each was parsed, bool [n]."""
        values, is_parsed = np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        for place, (start, end) in enumerate(self.cells[:, column].tolist()):
            text = self.data[start:end]
            digits = text.removeprefix(b"-")
            if start >= 0 and digits.isdigit() and len(digits) <= 19 and -(1 << 63) <= int(text) < 1 << 63:
                values[place], is_parsed[place] = int(text), True
        return values, is_parsed

    def spans(self, column: int) -> Spans:
        """Return what the cells of a column of type `path` or `span` name. All others must be parsed as records."""
        offsets, lengths = np.zeros(len(self), np.int64), np.full(len(self), -1, np.int64)
        paths = np.full((len(self), 2), -1, np.int64)
        kind = self.header.columns[column].type
        for place, (start, end) in enumerate(self.cells[:, column].tolist()):
            if start < 0 or start == end:
                continue
            if kind is ColumnType.PATH:
                paths[place] = start, end
            elif kind is ColumnType.SPAN and self.data[start:end].partition(b"@")[0].isascii():
                try:
                    span = Span.parse(self.data[start:end].decode("utf-8", "surrogateescape"))
                except ValueError:
                    continue
                offsets[place], lengths[place] = span.offset_bytes, span.length_bytes
                paths[place] = self.data.index(b"@", start) + 1, end
        return Spans(offsets=offsets, lengths=lengths, paths=paths)


def cells_of(data: bytes, bounds: NDArray[np.int64], header: Header) -> NDArray[np.int64]:
    """Return where the cells of each line start and end in `data`; -1 for the cells of lines that are not simple."""
    cells = np.full((len(bounds), len(header.columns), 2), -1, np.int64)
    if header.dialect in {Dialect.NATIVE, Dialect.TAB}:
        for place, (start, end) in enumerate(bounds.tolist()):
            line = data[start:end]
            if line.count(b"\t") == len(header.columns) - 1 and not {*b"\\\0\r"} & {*line}:
                ends = np.cumsum([len(text) + 1 for text in line.split(b"\t")]) + start
                cells[place, :, 1] = ends - 1
                cells[place, 0, 0], cells[place, 1:, 0] = start, ends[:-1]
    return cells
