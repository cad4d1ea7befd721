"""Requests for bytes: a whole file, a span of a shard, or a value in an LMDB database or a Parquet file.

Storages read these, and the cells of an index hold them: `str(range)` is the text of its cell. The one exception is a
whole file. Its cell is a plain `str`, the path, which is passed to a storage as `ByteRange(path)`.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import quote, quote_from_bytes, unquote, unquote_to_bytes

from mpload.errors import ArgumentError

__all__ = ["ByteRange", "LmdbValue", "RowValue", "Span"]

_SPAN = re.compile(r"(\d{1,19})\+(\d{1,19})@(.+)", re.DOTALL)
_LMDB = re.compile(r"([^@]+)@(.+)", re.DOTALL)
_ROW = re.compile(r"(\d{1,9}):(\d{1,18}):([^@]+)@(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A part of one file, or the whole file, that a storage is asked to read.

    Attributes:
        path: Path of the file, relative to the storage's root. Bytes that are not UTF-8 are surrogate escapes.
        offset_bytes: Offset of the first byte.
        length_bytes: Number of bytes; None means the whole file.

    Raises:
        ArgumentError: A number is negative, or a whole file has an offset.
    """

    path: str
    offset_bytes: int = 0
    length_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.offset_bytes < 0:
            raise ArgumentError(f"offset_bytes must not be negative, got {self.offset_bytes} for {self.path!r}")
        if self.length_bytes is None:
            if self.offset_bytes:
                raise ArgumentError(
                    f"a whole file starts at 0, got offset_bytes={self.offset_bytes} for {self.path!r}. "
                    "Pass length_bytes too",
                )
        elif self.length_bytes < 0:
            raise ArgumentError(f"length_bytes must not be negative, got {self.length_bytes} for {self.path!r}")


@dataclass(frozen=True, slots=True)
class Span(ByteRange):
    """A run of bytes inside a shard. Its cell is `OFFSET+LENGTH@PATH`.

    Attributes:
        offset_bytes: Offset of the run in the shard.
        length_bytes: Length of the run.
    """

    offset_bytes: int
    length_bytes: int

    @classmethod
    def parse(cls, text: str) -> "Span":
        """Parse the `text` of a cell, `OFFSET+LENGTH@PATH`; raises `ValueError` if it is anything else."""
        match = _SPAN.fullmatch(text)
        if match is None or int(match[1]) + int(match[2]) >= 1 << 63:
            raise ValueError(f"{text!r} is not a span OFFSET+LENGTH@PATH, such as 512+1048@shard-0.tar")
        return cls(match[3], int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.offset_bytes}+{self.length_bytes}@{self.path}"


@dataclass(frozen=True, slots=True)
class LmdbValue(ByteRange):
    """A value in an LMDB database. Its cell is `KEY@PATH`, with the key percent-encoded.

    Attributes:
        key: The key, without percent-encoding.
    """

    offset_bytes: int = field(default=0, init=False, repr=False)
    length_bytes: None = field(default=None, init=False, repr=False)
    key: bytes

    @classmethod
    def parse(cls, text: str) -> "LmdbValue":
        """Parse the `text` of a cell, `KEY@PATH`; raises `ValueError` if it is anything else."""
        match = _LMDB.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an LMDB address KEY@PATH, such as 00000001@train.lmdb")
        return cls(match[2], unquote_to_bytes(match[1]))

    def __str__(self) -> str:
        return f"{quote_from_bytes(self.key, safe='')}@{self.path}"


@dataclass(frozen=True, slots=True)
class RowValue(ByteRange):
    """A value in a Parquet file. Its cell is `ROWGROUP:ROW:COLUMN@PATH`, with the column percent-encoded.

    Attributes:
        row_group: Number of the row group in the file, from 0.
        row: Number of the row in the row group, from 0.
        column: Dotted path of the leaf column in the schema: `image.bytes`.
    """

    offset_bytes: int = field(default=0, init=False, repr=False)
    length_bytes: None = field(default=None, init=False, repr=False)
    row_group: int
    row: int
    column: str

    @classmethod
    def parse(cls, text: str) -> "RowValue":
        """Parse the `text` of a cell, `ROWGROUP:ROW:COLUMN@PATH`; raises `ValueError` if it is anything else."""
        match = _ROW.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a Parquet value ROWGROUP:ROW:COLUMN@PATH, such as 0:17:image.bytes@a.parquet"
            )
        return cls(match[4], int(match[1]), int(match[2]), unquote(match[3], errors="surrogateescape"))

    def __str__(self) -> str:
        column = quote(self.column, safe="", errors="surrogateescape")
        return f"{self.row_group}:{self.row}:{column}@{self.path}"
