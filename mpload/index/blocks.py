"""`Block`: consecutive samples whose lines are read at once, with their columns as arrays.

This is for passes over a whole index. Numbers are NumPy arrays. Texts are Arrow arrays of bytes, which Arrow compares
without making a Python object for each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.columns import ColumnType
from mpload.index.index import Index, header_of, misfit, read_text, sidecar_of, text_bytes
from mpload.index.lines import Lines, cells_of
from mpload.index.lookup import SidecarFile
from mpload.index.parts import parts_of
from mpload.units import MIB

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Block", "Values", "blocks_of"]

_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 8 * MIB
_NEWLINE = 10
_MAX_VALUES = 1 << 20


class Block:
    """Consecutive samples of an index. Their lines are read when they are first needed.

    Memory: the lines, at most about 8 MB, and a few numbers per sample.
    """

    def __init__(self, *, index: Index, first_row: int, starts: NDArray[np.int64], first_id: int) -> None:
        self.index = index
        """The index, or the one of its parts that has these samples."""
        self._first_row = first_row  # there
        self.first_id = first_id
        self.starts = starts
        """int64 [n + 1]: where each line starts in the text, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lines(self) -> Lines:
        """The lines.

        Raises:
            IndexChangedError: the text was changed after it was opened, or its sidecar does not fit.
        """
        starts = self.starts - self.starts[0]
        data = read_text(self.index, int(self.starts[0]), int(starts[-1]))
        is_last = self._first_row + len(self) == sidecar_of(self.index).num_samples
        text = np.frombuffer(data, np.uint8)
        if (text[starts[1 : -1 if is_last else None] - 1] != _NEWLINE).any():
            raise misfit(self.index)
        bounds = np.stack([starts[:-1], starts[1:] - 1], axis=1)
        if is_last:  # its newline may be missing, and blank lines may follow
            end = data.find(b"\n", int(starts[-2]))
            bounds[-1, 1] = len(data) if end < 0 else end
        header = header_of(self.index)
        rows = np.arange(self._first_row, self._first_row + len(self))
        return Lines(
            sample_ids=rows - self._first_row + self.first_id,
            rows=rows,
            data=data,
            bounds=bounds,
            cells=cells_of(data, bounds, header),
            header=header,
            where=self.index.where,
        )

    def sizes(self) -> NDArray[np.int64]:
        """Return the size of each sample, int64 [n]. They must have been measured."""
        sizes = self.index.nbytes
        assert sizes is not None, "the caller has checked it"
        return np.asarray(sizes[self._first_row : self._first_row + len(self)])

    def numbers(self, name: str) -> NDArray[np.int64] | NDArray[np.float64]:
        """Return a column of numbers, int64 [n] or float64 [n]: of the text, or `nbytes` of the sidecar."""
        header = header_of(self.index)
        names = [column.name for column in header.columns]
        stop = self._first_row + len(self)
        if name not in names:
            return self.sizes()
        column = names.index(name)
        if column == header.label_column:
            return np.asarray(self.index.labels[self._first_row : stop])
        if header.columns[column].type is ColumnType.FLOAT:
            return self._floats(column)
        values, is_parsed = self.lines.integers(column)
        if not is_parsed.all():
            return np.array([record.cells[column] for record in self.lines.records()], np.int64)
        return values

    def texts(self, name: str) -> "pa.Array[Any]":
        """Return the cells of a column as Arrow's binary [n], without escapes."""
        from mpload.index.texts import binary_array, binary_parts  # noqa: PLC0415  it imports pyarrow

        column = [column.name for column in header_of(self.index).columns].index(name)
        cells = self.lines.cells[:, column]
        if (cells < 0).any():
            texts = [str(record.cells[column]) for record in self.lines.records()]
            return binary_array([text.encode("utf-8", "surrogateescape") for text in texts])
        return binary_parts(self.lines.data, cells)

    def _floats(self, column: int) -> NDArray[np.float64]:
        from mpload.index.texts import floats_in  # noqa: PLC0415  it imports pyarrow

        values = floats_in(self.texts(header_of(self.index).columns[column].name))
        if values is None:  # a notation that only Python reads
            return np.array([record.cells[column] for record in self.lines.records()], np.float64)
        return values


def blocks_of(index: Index) -> Iterator[Block]:
    """Yield all samples of an index in order, in blocks, each of one part."""
    for first_id, part in parts_of(index):
        yield from _blocks_of(part, first_id)


def _blocks_of(index: Index, first_id: int) -> Iterator[Block]:
    offsets = SidecarFile(sidecar_of(index)).columns["offset"]
    for first in range(0, len(index), _BLOCK_ROWS):
        stop = min(first + _BLOCK_ROWS, len(index))
        end = offsets[stop] if stop < sidecar_of(index).num_samples else text_bytes(index)
        starts = np.append(offsets[first:stop], end).astype(np.int64)
        if (starts[1:] <= starts[:-1]).any():
            raise misfit(index)
        place = 0
        while place < stop - first:
            fitting = int(np.searchsorted(starts, starts[place] + _BLOCK_BYTES, side="right")) - 1
            last = max(place + 1, fitting)
            row = first + place
            yield Block(index=index, first_row=row, starts=starts[place : last + 1], first_id=first_id + row)
            place = last


@dataclass(slots=True)
class Values:
    """Numbers the different values of a column, by the order in which they first occur."""

    known: dict[object, int] = field(default_factory=dict)
    """The number of each value that has occurred."""

    def numbers(self, block: Block, column: str, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of the value of each sample for which `mask` is true, int64 [n].

        Raises:
            ArgumentError: there are too many different values.
        """
        codes, texts = _codes_of(block, column)
        used, firsts, found = np.unique(codes[mask], return_index=True, return_inverse=True)
        order = np.argsort(
            firsts
        )  # by value, numbers would depend on where blocks begin, which parts of an index change
        names = used[order].tolist() if texts is None else [texts[code] for code in used[order].tolist()]
        numbers = np.empty(len(used), np.int64)
        numbers[order] = [self.known.setdefault(name, len(self.known)) for name in names]
        if len(self.known) > _MAX_VALUES:
            raise ArgumentError(
                f"column {column} of {block.index.path} has more than {_MAX_VALUES} different values. Choose a column "
                "with fewer, such as that of the labels"
            )
        return numbers[found]


def _codes_of(block: Block, column: str) -> tuple[NDArray[Any], list[object] | None]:
    """Return an integer for each sample, which stands for its value, and the texts that are numbered so, if any."""
    kinds = {each.name: each.type for each in block.index.columns}
    if kinds[column] is ColumnType.INT:
        return block.numbers(column), None

    from mpload.index.texts import numbered  # noqa: PLC0415  it imports pyarrow

    return numbered(block.texts(column))
