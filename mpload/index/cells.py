"""Reads the cells of a line by the types of their columns."""

import re
from collections.abc import Callable
from typing import Final

from mpload.index.columns import Cell, Column, ColumnType
from mpload.storage.ranges import LmdbValue, RowValue, Span

__all__ = ["INTEGER", "READERS", "WrongTypeError", "is_float"]

INTEGER: Final = re.compile(r"-?\d{1,19}")


class WrongTypeError(ValueError):
    """A cell does not fit the type of its column."""

    def __init__(self, column: Column, text: str, rule: str, fitting: ColumnType) -> None:
        super().__init__(f"{column.name} {text[:80]!r} is not {rule} (column {column})")
        self.column = column
        self.fitting = fitting
        """A type that this cell and those that fit the column have."""


def is_float(text: str) -> bool:
    """Return whether a cell can be read as a float."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _read_path(column: Column, text: str) -> str:
    if not text:
        raise ValueError(f"cell {column} is empty")
    return text


def _read_int(column: Column, text: str) -> int:
    if len(text) < 19 and text.isascii() and text.isdigit():  # the common case, and faster than the regular expression
        return int(text)
    if not INTEGER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        is_fraction = is_float(text) and not text.strip().lstrip("+-").isdigit()  # a float would round large integers
        raise WrongTypeError(column, text, "an integer", ColumnType.FLOAT if is_fraction else ColumnType.STR)
    return int(text)


def _read_float(column: Column, text: str) -> float:
    if not is_float(text):
        raise WrongTypeError(column, text, "a number", ColumnType.STR)
    return float(text)


READERS: Final[dict[ColumnType, Callable[[Column, str], Cell]]] = {
    ColumnType.PATH: _read_path,
    ColumnType.SPAN: lambda _, text: Span.parse(text),
    ColumnType.LMDB: lambda _, text: LmdbValue.parse(text),
    ColumnType.ROW: lambda _, text: RowValue.parse(text),
    ColumnType.INT: _read_int,
    ColumnType.FLOAT: _read_float,
    ColumnType.STR: lambda _, text: text,
}
"""Functions that read a cell of each type. They raise `ValueError` if it breaks the format."""
