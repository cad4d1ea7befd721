"""What a cell of an index can hold, and how it is written."""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, quote_from_bytes, unquote, unquote_to_bytes

from mpload.errors import ArgumentError

__all__ = ["Cell", "Column", "ColumnType", "LmdbValue", "RowValue", "Span", "format_columns", "parse_columns"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPAN = re.compile(r"(\d{1,19})\+(\d{1,19})@(.+)", re.DOTALL)
_LMDB = re.compile(r"([^@]+)@(.+)", re.DOTALL)
_ROW = re.compile(r"(\d{1,9}):(\d{1,18}):([^@]+)@(.+)", re.DOTALL)


class ColumnType(StrEnum):
    """The type of a column, as `#columns` names it."""

    PATH = "path"
    SPAN = "span"
    LMDB = "lmdb"
    ROW = "row"
    INT = "int"
    FLOAT = "float"
    STR = "str"

    @property
    def is_source(self) -> bool:
        """Whether cells of this type say where bytes lie."""
        return self in {ColumnType.PATH, ColumnType.SPAN, ColumnType.LMDB, ColumnType.ROW}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of an index: its name and the type of its cells.

    Attributes:
        name: of letters, digits and `_`.
        type: of all its cells.

    Raises:
        ArgumentError: the name is no identifier.
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


@dataclass(frozen=True, slots=True)
class Span:
    """A run of bytes inside a shard: cell `OFFSET+LENGTH@PATH`.

    Attributes:
        path: of the shard, relative to the index's root.
        offset_bytes: where the run starts.
        length_bytes: how long it is.
    """

    path: str
    offset_bytes: int
    length_bytes: int

    @classmethod
    def parse(cls, text: str) -> "Span":
        """Read a `text` `OFFSET+LENGTH@PATH`; raises `ValueError` on anything else."""
        match = _SPAN.fullmatch(text)
        if match is None or int(match[1]) + int(match[2]) >= 1 << 63:
            raise ValueError(f"{text!r} is not a span OFFSET+LENGTH@PATH, such as 512+1048@shard-0.tar")
        return cls(match[3], int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.offset_bytes}+{self.length_bytes}@{self.path}"


@dataclass(frozen=True, slots=True)
class LmdbValue:
    """A value of an LMDB database: cell `KEY@PATH`, the key percent-encoded.

    Attributes:
        path: of the database, relative to the index's root.
        key: its bytes, decoded.
    """

    path: str
    key: bytes

    @classmethod
    def parse(cls, text: str) -> "LmdbValue":
        """Read a `text` `KEY@PATH`; raises `ValueError` on anything else."""
        match = _LMDB.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an LMDB address KEY@PATH, such as 00000001@train.lmdb")
        return cls(match[2], unquote_to_bytes(match[1]))

    def __str__(self) -> str:
        return f"{quote_from_bytes(self.key, safe='')}@{self.path}"


@dataclass(frozen=True, slots=True)
class RowValue:
    """A value of a Parquet file: cell `ROWGROUP:ROW:COLUMN@PATH`, the column a dotted path, percent-encoded.

    Attributes:
        path: of the file, relative to the index's root.
        row_group: its number in the file.
        row: its number in the row group.
        column: the dotted path of the leaf column: `image.bytes`.
    """

    path: str
    row_group: int
    row: int
    column: str

    @classmethod
    def parse(cls, text: str) -> "RowValue":
        """Read a `text` `ROWGROUP:ROW:COLUMN@PATH`; raises `ValueError` on anything else."""
        match = _ROW.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no value of a Parquet file ROWGROUP:ROW:COLUMN@PATH, such as 0:17:image.bytes@a.parquet"
            )
        return cls(match[4], int(match[1]), int(match[2]), unquote(match[3], errors="surrogateescape"))

    def __str__(self) -> str:
        column = quote(self.column, safe="", errors="surrogateescape")
        return f"{self.row_group}:{self.row}:{column}@{self.path}"


Cell = str | Span | LmdbValue | RowValue | int | float


def parse_columns(text: str) -> tuple[Column, ...]:
    """Read `image:path label:int`.

    Raises:
        ArgumentError: a name or type is not one, a name stands twice, or no column says where bytes lie.
    """
    columns = []
    for word in text.split():
        name, colon, kind = word.partition(":")
        if not colon or kind not in list(ColumnType):
            raise ArgumentError(f"column {word!r} is not NAME:TYPE with a type of {', '.join(ColumnType)}")
        columns.append(Column(name=name, type=ColumnType(kind)))
    names = [column.name for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ArgumentError(f"column {twice[0]!r} stands twice in {text!r}. Give every column a name of its own")
    if not any(column.type.is_source for column in columns):
        raise ArgumentError(
            f"columns {text!r} have no path, span, lmdb or row column: nothing says where the bytes lie"
        )
    return tuple(columns)


def format_columns(columns: tuple[Column, ...]) -> str:
    """Write columns as `#columns` does."""
    return " ".join(str(column) for column in columns)
