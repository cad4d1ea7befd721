"""`MixedLines`: lines of several indexes, as if they were those of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.index.columns import Cell, Column
from mpload.index.lines import Lines, Spans
from mpload.index.record import Record
from mpload.storage.roots import below

__all__ = ["Adapter", "LinesOfSource", "MixedLines"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapter:
    """How the records of one source become records of a mixture."""

    columns: tuple[Column, ...]
    """The columns of the mixture."""
    cells: tuple[int | None, ...]
    """For each of them, the number of the source's column; None if the cell is the same in all records."""
    constants: tuple[Cell, ...]
    """For each column of the mixture the cell that is the same in all records, if it is."""
    label: int | None
    """The number of the mixture's column whose integers are class numbers of the source; None if they stay."""
    labels: NDArray[np.int64]
    """int64 [num_classes]: the class number in the mixture for each class of the source."""
    root: str | None
    """What is put before the paths of files; None if they stay."""

    def record(self, record: Record, sample_id: int) -> Record:
        """Return the record of the mixture."""
        cells = [
            constant if number is None else record.cells[number]
            for number, constant in zip(self.cells, self.constants, strict=True)
        ]
        if self.label is not None:
            label = cells[self.label]
            assert isinstance(label, int)  # by its column
            cells[self.label] = label if label < 0 else int(self.labels[label])
        if self.root is not None:
            cells = [
                below(self.root, cell) if column.type.is_source else cell
                for column, cell in zip(self.columns, cells, strict=True)
            ]
        return Record(sample_id, tuple(cells), self.columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinesOfSource:
    """The lines of one source, and where they belong."""

    lines: Lines
    places: NDArray[np.int64]
    """int64 [n]: their places among all lines."""
    adapter: Adapter


class MixedLines:
    """Lines of several indexes; see `Lines`. `sample_ids` and `rows` are those of the mixture."""

    def __init__(
        self,
        sample_ids: NDArray[np.int64],
        rows: NDArray[np.int64],
        parts: Sequence[LinesOfSource],
        num_columns: int,
    ) -> None:
        self.sample_ids = sample_ids
        self.rows = rows
        self.data = b"".join(part.lines.data for part in parts)
        self.cells = np.full((len(sample_ids), num_columns, 2), -1, np.int64)
        """int64 [n, num_columns, 2]: see `Lines.cells`; -1 too if a cell is not in the line."""
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part.lines.data) for part in parts)])[:-1].tolist()
        for part, start in zip(parts, self._starts, strict=True):
            for column, number in enumerate(part.adapter.cells):
                if number is not None:
                    self.cells[part.places, column] = _moved(part.lines.cells[:, number], start)

    def __len__(self) -> int:
        return len(self.sample_ids)

    def record(self, place: int) -> Record:
        """Return the record of the line at `place`; see `Lines.record`."""
        return self.records(range(place, place + 1))[0]

    def records(self, places: range | None = None) -> list[Record]:
        """Return the records of the lines at `places`, by default of all lines; see `Lines.records`."""
        wanted = range(len(self)) if places is None else places
        records: dict[int, Record] = {}
        for part in self._parts:
            for inner, place in enumerate(part.places.tolist()):
                if place in wanted:
                    records[place] = part.adapter.record(part.lines.record(inner), int(self.sample_ids[place]))
        return [records[place] for place in wanted]

    def integers(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the integers in a column, and whether each was parsed; see `Lines.integers`."""
        values, is_parsed = np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        for part in self._parts:
            adapter, number = part.adapter, part.adapter.cells[column]
            if number is None:
                constant = adapter.constants[column]
                assert isinstance(constant, int)  # by its column
                values[part.places] = constant
                is_parsed[part.places] = True
                continue
            found, are_parsed = part.lines.integers(number)
            if adapter.label == column:
                is_class = (found >= 0) & (found < len(adapter.labels))
                are_parsed &= is_class | (found < 0)
                found[is_class] = adapter.labels[found[is_class]]
            values[part.places], is_parsed[part.places] = found, are_parsed
        return values, is_parsed

    def spans(self, column: int) -> Spans:
        """Return what the cells of a column name; see `Lines.spans`."""
        offsets, lengths = np.zeros(len(self), np.int64), np.full(len(self), -1, np.int64)
        paths = np.full((len(self), 2), -1, np.int64)
        for part, start in zip(self._parts, self._starts, strict=True):
            number = part.adapter.cells[column]
            if number is not None and part.adapter.root is None:
                found = part.lines.spans(number)
                offsets[part.places], lengths[part.places] = found.offsets, found.lengths
                paths[part.places] = _moved(found.paths, start)
        return Spans(offsets=offsets, lengths=lengths, paths=paths)


def _moved(places: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """Return places in a buffer that begins `by` bytes later; negative ones stay."""
    return np.where(places >= 0, places + by, places)
