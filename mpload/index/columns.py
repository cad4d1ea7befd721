"""The columns of an index: their types, their cells, and the notation of `#columns`."""

import re
from dataclasses import dataclass
from enum import StrEnum

from mpload.errors import ArgumentError
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue, Span

__all__ = ["Cell", "Column", "ColumnType", "format_columns", "parse_columns", "path_of", "range_of"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ColumnType(StrEnum):
    """The type of a column, as written in `#columns`."""

    PATH = "path"
    SPAN = "span"
    LMDB = "lmdb"
    ROW = "row"
    INT = "int"
    FLOAT = "float"
    STR = "str"

    @property
    def is_source(self) -> bool:
        """Whether cells of this type locate a sample's encoded bytes."""
        return self in {ColumnType.PATH, ColumnType.SPAN, ColumnType.LMDB, ColumnType.ROW}

    @property
    def is_file(self) -> bool:
        """Whether cells of this type name a file, or a span of one."""
        return self in {ColumnType.PATH, ColumnType.SPAN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of an index: its name and the type of its cells.

    Attributes:
        name: an identifier made of letters, digits and `_`.
        type: the type of all its cells.

    Raises:
        ArgumentError: the name is not an identifier.
    """

    name: str
    type: ColumnType

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ArgumentError(
                f"column name {self.name!r} is not an identifier. Use letters, digits and '_', as in image:path"
            )

    def __str__(self) -> str:
        return f"{self.name}:{self.type}"


Cell = str | Span | LmdbValue | RowValue | int | float


def range_of(source: Cell) -> ByteRange:
    """Return the range of bytes that the cell of a source column names."""
    return source if isinstance(source, ByteRange) else ByteRange(str(source))


def path_of(source: Cell) -> str:
    """Return the path of the file that the cell of a source column names."""
    return source.path if isinstance(source, ByteRange) else str(source)


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse columns written as `image:path label:int`.

    Raises:
        ArgumentError: a name or type is invalid, a name occurs twice, or there is no column.
    """
    columns = []
    for word in text.split():
        name, colon, kind = word.partition(":")
        if not colon or kind not in list(ColumnType):
            raise ArgumentError(f"column {word!r} is not NAME:TYPE with a type of {', '.join(ColumnType)}")
        columns.append(Column(name=name, type=ColumnType(kind)))
    names = [column.name for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ArgumentError(f"column {twice[0]!r} occurs twice in {text!r}. Give every column a unique name")
    if not columns:
        raise ArgumentError(f"columns {text!r} contain no column. Add one, such as image:path or text:str")
    return tuple(columns)


def format_columns(columns: tuple[Column, ...]) -> str:
    """Return columns in the notation of `#columns`."""
    return " ".join(str(column) for column in columns)
