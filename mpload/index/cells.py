"""Reads the cells of a line by the types of their columns."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from mpload.index.columns import Cell, Column, ColumnType
from mpload.storage.ranges import LmdbValue, RowValue, Span

__all__ = ["EXACT_READERS", "INTEGER", "READERS", "WrongTypeError", "exact_type"]

INTEGER: Final = re.compile(r"-?\d{1,19}")
_WHOLE = re.compile(r"[+-]?\d+")
_EXACT = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_LOSSY = re.compile(r"\+\d|[+-]?0\d")
_EXACT_DIGITS = 15  # a float holds every integer of so many digits


class WrongTypeError(ValueError):
    """A cell does not fit the type of its column."""

    def __init__(self, column: Column, text: str, fault: str, fitting: ColumnType) -> None:
        super().__init__(f"{column.name} {text[:80]!r} {fault} (column {column})")
        self.column = column
        self.fitting = fitting
        """A type that this cell and those that fit the column have."""


def _is_float(text: str) -> bool:
    """Return whether a cell can be read as a float."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def exact_type(text: str) -> ColumnType:
    """Return the type of number that keeps all information of a cell, or else `str`.

    An integer keeps all but leading zeros and a plus sign. Integers that do not fit into 64 bits are texts.
    """
    number = text.strip()
    if _WHOLE.fullmatch(number):
        if not _is_exact_integer(number):
            return ColumnType.STR
        if number == text:
            return ColumnType.INT
    return ColumnType.FLOAT if _is_float(text) and not _is_rounded(text) else ColumnType.STR


def _is_exact_integer(text: str) -> bool:
    return _EXACT.fullmatch(text) is not None and -(1 << 63) <= int(text) < 1 << 63


def _is_rounded(text: str) -> bool:
    """Whether a cell is an integer that no float equals."""
    number = text.strip()
    if len(number) <= _EXACT_DIGITS or not _WHOLE.fullmatch(number):
        return False
    return Decimal(number) != Decimal(float(number))


def _read_path(column: Column, text: str) -> str:
    if not text:
        raise ValueError(f"cell {column} is empty")
    return text


def _read_int(column: Column, text: str) -> int:
    if len(text) < 19 and text.isascii() and text.isdigit():  # the common case, and faster than the regular expression
        return int(text)
    if not INTEGER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        fault = "is not an integer"
        if len(text) >= 19 and _WHOLE.fullmatch(text):
            fault = "is not an integer of 64 bits"
        is_fraction = _is_float(text) and not text.strip().lstrip("+-").isdigit()  # a float would round large integers
        raise WrongTypeError(column, text, fault, ColumnType.FLOAT if is_fraction else ColumnType.STR)
    return int(text)


def _read_exact_int(column: Column, text: str) -> int:
    if len(text) < 19 and text.isascii() and text.isdigit() and (text[0] != "0" or text == "0"):
        return int(text)
    if _LOSSY.match(text) and _WHOLE.fullmatch(text):
        lost = "its plus sign" if text[0] == "+" else "its leading zeros"
        raise WrongTypeError(column, text, f"would lose {lost} as an integer", ColumnType.STR)
    if not text.isascii():  # digits of other scripts
        raise WrongTypeError(column, text, "is not an integer", ColumnType.STR)
    return _read_int(column, text)


def _read_float(column: Column, text: str) -> float:
    if not _is_float(text):
        raise WrongTypeError(column, text, "is not a number", ColumnType.STR)
    return float(text)


def _read_exact_float(column: Column, text: str) -> float:
    if len(text) > _EXACT_DIGITS and _is_rounded(text):
        raise WrongTypeError(column, text, "would be rounded as a float", ColumnType.STR)
    return _read_float(column, text)


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

EXACT_READERS: Final = READERS | {ColumnType.INT: _read_exact_int, ColumnType.FLOAT: _read_exact_float}
"""The same for columns whose types were inferred. A number that would lose something of its text is an error too."""
