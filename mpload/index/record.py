"""`Record`: one row of an index."""

from dataclasses import dataclass

from mpload.index.columns import Cell, Column, format_columns

__all__ = ["Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """One row of an index. `record["image"]` is a cell, and `record.sample_id` is the number of the row."""

    sample_id: int
    """Number of the row, starting at 0. During a run, that of a repeated draw is greater: modulo N, it is the row."""
    cells: tuple[Cell, ...]
    """One value per column: a path, a `Span`, an `LmdbValue`, a `RowValue`, a number or a string."""
    columns: tuple[Column, ...]
    """The columns of the index."""

    def __getitem__(self, name: str) -> Cell:
        for column, cell in zip(self.columns, self.cells, strict=True):
            if column.name == name:
                return cell
        raise KeyError(f"{name!r} is not a column of the index; it has {format_columns(self.columns)}")

    def __repr__(self) -> str:
        cells = ", ".join(f"{column.name}={cell!r}" for column, cell in zip(self.columns, self.cells, strict=True))
        return f"Record({self.sample_id}: {cells})"
