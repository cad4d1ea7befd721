"""How the cells of a line are separated, in an index and in each kind of plain list, and the `Header` that says so."""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mpload.index.columns import Column, ColumnType
from mpload.units import KIB

__all__ = [
    "CRLF",
    "EMPTY",
    "LABEL",
    "MAX_LINE_BYTES",
    "NUL",
    "PIXEL_SIZES",
    "SPLIT",
    "Dialect",
    "Header",
    "OpenQuoteError",
    "escape",
    "leaves_quote_open",
    "unescape",
]

MAX_LINE_BYTES: Final = 256 * KIB
LABEL: Final = "label"
PIXEL_SIZES: Final = ("width", "height")
"""The columns with the size of an image, after its EXIF orientation was applied."""
NUL: Final = "contains a NUL byte. Is this file UTF-8 text?"
CRLF: Final = "ends with CRLF, but an index must have plain newlines. Convert it: sed -i 's/\\r$//' FILE"
EMPTY: Final = "holds no samples. Make an index: mpload index FOLDER -o train.txt"
_QUOTE = "a quote is not closed. A sample is one line, so a quoted cell cannot contain a newline"

_ESCAPES = str.maketrans({"\t": r"\t", "\n": r"\n", "\r": r"\r", "\\": r"\\"})
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_UNESCAPED = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\", "#": "#"}
_CLOSED_CELL = rb' *"[^"]*(?:""[^"]*)*"(?!")[^,]*|(?! *")[^,]*'
_CLOSED_LINE = re.compile(rb"(?:(?:%b),)*(?:%b)" % (_CLOSED_CELL, _CLOSED_CELL))


class OpenQuoteError(ValueError):
    """A quoted cell goes on after the end of a line."""


class Dialect(StrEnum):
    """How the cells of a line are separated."""

    NATIVE = "native"
    TAB = "tab"
    COMMA = "comma"
    BLANKS = "blanks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The directives of an index text, or their equivalent inferred from a plain list."""

    columns: tuple[Column, ...]
    dialect: Dialect = Dialect.NATIVE
    root: str | None = None
    """The declared root: a URL, or a path relative to the index's folder. None if none is declared."""
    classes: tuple[str, ...] = ()
    body_bytes: int = 0
    """Offset of the first sample's line."""
    num_lines: int = 0
    """Number of lines above the first sample."""
    is_inferred: bool = False
    """Whether the types of the columns were inferred from the first sample."""
    has_names: bool = True
    """Whether the text names its columns. If not, their names stand for their places."""

    def is_exact(self, column: Column) -> bool:
        """Whether a number that would lose something of its text, such as a leading zero, is an error in a column.

        It is one if the type was inferred, since the column may hold identifiers. But a `label` is a number.
        """
        return self.is_inferred and column.name != LABEL

    @property
    def label_column(self) -> int | None:
        """Number of the column that holds labels: the integer column named `label`, else the first integer column.

        `width` and `height` are sizes in pixels, never labels.
        """
        integers = [number for number, column in enumerate(self.columns) if column.type is ColumnType.INT]
        named = [number for number in integers if self.columns[number].name == LABEL]
        others = [number for number in integers if self.columns[number].name not in PIXEL_SIZES]
        return next(iter(named or others), None)


def leaves_quote_open(line: bytes, *, is_open: bool = False) -> bool:
    """Whether a quoted cell of a CSV file goes on after this line. `is_open` says whether one goes on from before it.

    As in the csv module, a quote opens a quoted cell only at the start of the cell. Elsewhere it is a part of the text.
    """
    if b'"' not in line:
        return is_open
    return _CLOSED_LINE.fullmatch(b'"' + line if is_open else line) is None


def _split_native(header: Header, line: bytes) -> list[str]:  # noqa: ARG001  all dialects share a signature
    text = line.decode("utf-8", "surrogateescape")
    if text.endswith("\r"):
        raise ValueError(CRLF)
    return [unescape(cell) for cell in text.split("\t")] if "\\" in text else text.split("\t")


def _split_tab(header: Header, line: bytes) -> list[str]:  # noqa: ARG001
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape").split("\t")


def _split_comma(header: Header, line: bytes) -> list[str]:  # noqa: ARG001
    text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
    if '"' not in text:
        return [cell.strip(" \t\r\v\f") for cell in text.split(",")]
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        if leaves_quote_open(line):
            raise OpenQuoteError(_QUOTE) from error
        raise ValueError(f"is not CSV: {error}") from error


def _split_blanks(header: Header, line: bytes) -> list[str]:
    text = line.strip(b" \t\r\v\f").decode("utf-8", "surrogateescape")
    return [text] if len(header.columns) == 1 else re.split(r"[ \t]+(?=[^ \t]*\Z)", text)


SPLIT: Final[dict[Dialect, Callable[[Header, bytes], list[str]]]] = {
    Dialect.NATIVE: _split_native,
    Dialect.TAB: _split_tab,
    Dialect.COMMA: _split_comma,
    Dialect.BLANKS: _split_blanks,
}
"""Functions that cut a line into its cells."""


def escape(text: str) -> str:
    """Return a text as it stands in a cell of an index."""
    return text.translate(_ESCAPES)


def unescape(text: str) -> str:
    """Return the text of a cell of an index. Raise `ValueError` if it has an unknown escape."""

    def one(match: re.Match[str]) -> str:
        try:
            return _UNESCAPED[match[1]]
        except KeyError:
            raise ValueError(
                rf"{match[0]!r} is not an escape. The escapes are \t, \n, \r, \\ and \#. Write a backslash as \\"
            ) from None

    return _ESCAPE.sub(one, text)
