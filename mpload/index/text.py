r"""The text of an index: directives at the top, then one line per sample.

```
#mpload 1
#root ../train
#columns image:path label:int
#classes cat<TAB>dog
cats/1.jpg<TAB>0
```

Cells are separated by TAB. In a cell, `\t`, `\n`, `\r` and `\\` stand for TAB, newline, carriage return and backslash,
and `\#` for a `#` that would otherwise make the first line look like a directive. Bytes that are not UTF-8 are
preserved (surrogateescape).

A file that does not start with `#mpload` is a plain list with lines of `path label`. Its cells are separated by TAB, by
comma (`.csv`, quoted or not, with or without a header row) or by the last run of blanks.
"""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.cells import INTEGER, READERS, WrongTypeError, is_float
from mpload.index.columns import Cell, Column, ColumnType, format_columns, parse_columns
from mpload.index.open_file import open_text
from mpload.units import KIB, MIB

__all__ = [
    "FORMAT_VERSION",
    "MAX_LINE_BYTES",
    "Dialect",
    "Header",
    "check_label",
    "format_header",
    "format_line",
    "line_parser",
    "parse_line",
    "read_header",
]

FORMAT_VERSION = 1
MAX_LINE_BYTES = 256 * KIB
_MAGIC = b"#mpload"
_BOM = b"\xef\xbb\xbf"  # some editors write it at the start of UTF-8 files
_MAX_DIRECTIVE_BYTES = 16 * MIB  # 20,000 class names take less than 1 MB
_PARTS_LINE = 2

_ESCAPES = str.maketrans({"\t": r"\t", "\n": r"\n", "\r": r"\r", "\\": r"\\"})
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_UNESCAPED = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\", "#": "#"}
_PATH_NAMES = frozenset(
    {"path", "file", "image", "img", "filename", "file_name", "filepath", "file_path", "image_path"}
)
_FILE = re.compile(r"\.[A-Za-z]\w{1,4}\s*\Z")
"""The end of a cell that is the name of a file."""
_HEADER_NAMES = _PATH_NAMES | {"label", "class", "target", "class_id", "label_id"}


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

    @property
    def label_column(self) -> int | None:
        """Number of the column that holds labels: the integer column named `label`, else the first integer column."""
        integers = [number for number, column in enumerate(self.columns) if column.type is ColumnType.INT]
        named = [number for number in integers if self.columns[number].name == "label"]
        return next(iter(named or integers), None)


def check_label(header: Header, cells: Sequence[Cell]) -> None:
    """Raise `ValueError` if the label of a line has no name among the index's classes.

    Labels below 0 are allowed. Loss functions use them to mark samples to ignore.
    """
    if header.classes and header.label_column is not None:
        label = cells[header.label_column]
        if isinstance(label, int) and label >= len(header.classes):
            raise ValueError(
                f"{header.columns[header.label_column].name} {label} is beyond the {len(header.classes)} names in "
                "#classes. Fix the line, or name every class, starting with class 0"
            )


def read_header(path: Path, *, joins_lines: bool = False, may_be_empty: bool = False) -> Header:
    """Read the directives of the index at `path`, or infer the layout of a plain list.

    With `joins_lines`, a quoted cell of a CSV may contain newlines. With `may_be_empty`, an index may have no samples.

    Raises:
        IndexNotFoundError: there is no file at `path`.
        IndexFormatError: a directive is unknown, malformed or missing, the file holds no samples, or it is not a
            regular file.
        StorageError: the file cannot be opened.
    """
    with open_text(path) as file:
        start = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(start)
        if file.read(len(_MAGIC)) == _MAGIC:
            file.seek(start)
            return _read_directives(path, file, may_be_empty=may_be_empty)
        file.seek(0)
        return _sniff(path, file.read(2 * MAX_LINE_BYTES), joins_lines=joins_lines)


def format_header(*, columns: tuple[Column, ...], root: str | None = None, classes: Sequence[str] = ()) -> bytes:
    """Return the directives of an index text as bytes."""
    lines = [f"#mpload {FORMAT_VERSION}"]
    if root is not None:
        lines.append(f"#root {_escape(root)}")
    lines.append(f"#columns {format_columns(columns)}")
    if classes:
        lines.append("#classes " + "\t".join(map(_escape, classes)))
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def format_line(cells: Sequence[Cell]) -> bytes:
    """Return one sample's line as bytes, including the newline.

    Raises:
        ArgumentError: the line would be empty or too long, or a cell holds a NUL byte.
    """
    texts = [_escape(str(cell)) for cell in cells]
    if texts[0].startswith("#"):
        texts[0] = "\\" + texts[0]
    line = ("\t".join(texts) + "\n").encode("utf-8", "surrogateescape")
    if b"\0" in line:
        raise ArgumentError(f"{cells[0]!r}: a cell must not contain a NUL byte")
    if line == b"\n":
        raise ArgumentError("the line has only one cell, and it is empty. A sample needs a value")
    if len(line) > MAX_LINE_BYTES:
        raise ArgumentError(
            f"the line of {texts[0][:80]!r} has {len(line)} bytes, more than the limit of {MAX_LINE_BYTES}"
        )
    return line


def parse_line(header: Header, line: bytes) -> list[Cell]:
    """Parse one line, given without its newline, into one cell per column.

    Raises:
        ValueError: the line breaks the format. The message does not name the file and line; the caller adds them.
    """
    return line_parser(header)(line)


def line_parser(header: Header) -> Callable[[bytes], list[Cell]]:
    """Return `parse_line` bound to one header. It is faster for many lines, as it examines the header only once."""
    split = _SPLIT[header.dialect]
    columns = [(column, READERS[column.type]) for column in header.columns]

    def parse(line: bytes) -> list[Cell]:
        if b"\0" in line:
            raise ValueError(_NUL)
        texts = split(header, line)
        if not line and len(columns) == 1 and columns[0][0].type is ColumnType.STR:
            raise ValueError("is blank. Delete it, or add a second column, so that a line may hold an empty string")
        if len(texts) != len(columns):
            raise ValueError(
                f"has {len(texts)} {'cell' if len(texts) == 1 else 'cells'}, where columns "
                f"'{format_columns(header.columns)}' require {len(columns)}"
            )
        try:
            return [read(column, text) for (column, read), text in zip(columns, texts, strict=True)]
        except WrongTypeError as error:
            raise ValueError(f"{error}. {_advice(header, error)}") from error

    return parse


def _advice(header: Header, wrong: WrongTypeError) -> str:
    """Return what to do about a cell that does not fit the type of its column."""
    fitting = [replace(each, type=wrong.fitting) if each == wrong.column else each for each in header.columns]
    declared = f"Fix the line, or declare {wrong.column.name}:{wrong.fitting}"
    if header.dialect is Dialect.NATIVE:
        return f"{declared} in #columns"
    columns = format_columns(tuple(fitting))
    return f'{declared} when you make an index: mpload index FILE --columns "{columns}", or build_index(columns=...)'


def _read_directives(path: Path, file: BinaryIO, *, may_be_empty: bool) -> Header:
    found: dict[str, str] = {}
    body_bytes = file.tell()
    number = 0
    while (raw := file.readline(_MAX_DIRECTIVE_BYTES)).startswith(b"#"):
        number += 1
        body_bytes += len(raw)
        if len(raw) == _MAX_DIRECTIVE_BYTES:
            raise IndexFormatError(f"{path}:{number}: the directive is longer than {_MAX_DIRECTIVE_BYTES} bytes")
        line = raw.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        if line.endswith("\r"):
            raise IndexFormatError(f"{path}:{number}: {_CRLF}")
        if "\0" in line:
            raise IndexFormatError(f"{path}:{number}: {_NUL}")
        name, _, value = line[1:].partition(" ")
        if name == "parts":
            fault = "lists the parts of an index. Merge them first: mpload merge LIST -o all.txt"
            if number != _PARTS_LINE or value.strip():
                fault = "'#parts' is line 2 of a list of parts, and has no value. mpload merge --as-parts writes lists"
            raise IndexFormatError(f"{path}:{number}: {fault}")
        if name not in {"mpload", "root", "columns", "classes"} or name in found:
            fault = "occurs twice" if name in found else "is unknown; the known ones are mpload, root, columns, classes"
            raise IndexFormatError(
                rf"{path}:{number}: directive '#{name}' {fault}. A path that starts with '#' is written '\#...'"
            )
        found[name] = value
    try:
        version = found["mpload"].strip()
        if version != str(FORMAT_VERSION):
            raise ValueError(
                f"index format {version!r} is not {FORMAT_VERSION}, the one that this mpload reads. Update mpload"
            )
        if "columns" not in found:
            raise ValueError("no '#columns' directive. Add one, such as: #columns image:path label:int")
        header = Header(
            columns=parse_columns(found["columns"]),
            root=_unescape(found["root"]) if "root" in found else None,
            classes=tuple(map(_unescape, found["classes"].split("\t"))) if "classes" in found else (),
            body_bytes=body_bytes,
            num_lines=number,
        )
    except ValueError as error:
        raise IndexFormatError(f"{path}: {error}") from error
    if not raw and not may_be_empty:
        raise IndexFormatError(f"{path}: {_EMPTY}")
    return header


def _sniff(path: Path, head: bytes, *, joins_lines: bool) -> Header:
    position = len(_BOM) if head.startswith(_BOM) else 0
    num_lines = 0
    while head.startswith((b"# ", b"#\n", b"#\r\n", b"\n", b"\r\n"), position):  # comments and blank lines
        end = head.find(b"\n", position)
        position = end + 1 if end >= 0 else len(head)
        num_lines += 1
    is_csv = path.suffix.lower() == ".csv"
    first, rest = _cut(head[position:], joins_lines=joins_lines and is_csv)
    if not head[position:].strip():
        raise IndexFormatError(f"{path}: {_EMPTY}")
    if b"\0" in first:
        raise IndexFormatError(f"{path}:{num_lines + 1}: {_NUL}")
    if first.startswith(_MAGIC):
        raise IndexFormatError(f"{path}:{num_lines + 1}: '#mpload' comes after other lines. Delete the lines above it")
    without_commas = Dialect.TAB if b"\t" in first.strip() else Dialect.BLANKS
    dialect = Dialect.COMMA if is_csv else without_commas
    if dialect is Dialect.BLANKS:
        words = first.rsplit(None, 1)
        with_label = len(words) == 2 and INTEGER.fullmatch(words[1].decode("utf-8", "surrogateescape"))
        columns = parse_columns("image:path label:int" if with_label else "image:path")
        return Header(columns=columns, dialect=dialect, body_bytes=position, num_lines=num_lines)
    split = _SPLIT[dialect]
    empty = Header(columns=(), dialect=dialect)
    try:
        texts = split(empty, first)
        names: list[str] = []
        second = _cut(rest, joins_lines=joins_lines and is_csv)[0]
        if _is_header(texts, lambda: split(empty, second)):
            names = [re.sub(r"\W+|^(?=\d)", "_", text.strip()) or f"column{n}" for n, text in enumerate(texts, 1)]
            position += len(first) + 1
            num_lines += 1 + first.count(b"\n")
            texts = split(empty, second)
            if not rest.strip():
                raise ValueError(_EMPTY)
        columns = _guess_columns(names or ["image", "label", *(f"column{n}" for n in range(3, len(texts) + 1))], texts)
    except ValueError as error:
        raise IndexFormatError(f"{path}:{num_lines + 1}: {error}") from error
    return Header(columns=columns, dialect=dialect, body_bytes=position, num_lines=num_lines)


def _is_header(first: Sequence[str], read_second: Callable[[], Sequence[str]]) -> bool:
    """Whether the first line of a list has the names of its columns.

    One of the names is known, or none looks like the name of a file, but a cell of the second line does.
    """
    if not _HEADER_NAMES.isdisjoint(text.strip().lower() for text in first):
        return True
    if len(first) < 2 or any(map(_FILE.search, first)):
        return False
    try:
        second = read_second()
    except ValueError:  # raised again when the line is read
        return False
    return len(first) == len(second) and any(map(_FILE.search, second))


def _cut(text: bytes, *, joins_lines: bool) -> tuple[bytes, bytes]:
    """Return the first line, and the rest. If `joins_lines`, the line goes on while a quote is open."""
    end = text.find(b"\n")
    while joins_lines and end >= 0 and text.count(b'"', 0, end) % 2:
        end = text.find(b"\n", end + 1)
    return (text, b"") if end < 0 else (text[:end], text[end + 1 :])


def _guess_columns(names: list[str], texts: list[str]) -> tuple[Column, ...]:
    """Infer the type of each column of a plain list from its first cell. Exactly one column becomes the path."""
    paths = [number for number, name in enumerate(names) if name.lower() in _PATH_NAMES]
    paths = paths or [number for number, text in enumerate(texts) if _FILE.search(text)] or [0]
    types = []
    for number, text in enumerate(texts):
        if number == paths[0]:
            types.append(ColumnType.PATH)
        elif INTEGER.fullmatch(text):
            types.append(ColumnType.INT)
        else:
            types.append(ColumnType.FLOAT if is_float(text) else ColumnType.STR)
    return parse_columns(" ".join(f"{name}:{kind}" for name, kind in zip(names, types, strict=False)))


def _split_native(header: Header, line: bytes) -> list[str]:  # noqa: ARG001  all dialects share a signature
    text = line.decode("utf-8", "surrogateescape")
    if text.endswith("\r"):
        raise ValueError(_CRLF)
    return [_unescape(cell) for cell in text.split("\t")] if "\\" in text else text.split("\t")


def _split_tab(header: Header, line: bytes) -> list[str]:  # noqa: ARG001
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape").split("\t")


def _split_comma(header: Header, line: bytes) -> list[str]:  # noqa: ARG001
    text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
    if '"' not in text:
        return [cell.strip(" \t\r\v\f") for cell in text.split(",")]
    if text.count('"') % 2:
        raise ValueError("a quote is not closed. A sample is one line, so a quoted cell cannot contain a newline")
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"is not CSV: {error}") from error


def _split_blanks(header: Header, line: bytes) -> list[str]:
    text = line.strip(b" \t\r\v\f").decode("utf-8", "surrogateescape")
    return [text] if len(header.columns) == 1 else re.split(r"[ \t]+(?=[^ \t]*\Z)", text)


_SPLIT: dict[Dialect, Callable[[Header, bytes], list[str]]] = {
    Dialect.NATIVE: _split_native,
    Dialect.TAB: _split_tab,
    Dialect.COMMA: _split_comma,
    Dialect.BLANKS: _split_blanks,
}


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        try:
            return _UNESCAPED[match[1]]
        except KeyError:
            raise ValueError(
                rf"{match[0]!r} is not an escape. The escapes are \t, \n, \r, \\ and \#. Write a backslash as \\"
            ) from None

    return _ESCAPE.sub(one, text)


_NUL = "contains a NUL byte. Is this file UTF-8 text?"
_CRLF = "ends with CRLF, but an index must have plain newlines. Convert it: sed -i 's/\\r$//' FILE"
_EMPTY = "holds no samples. Make an index: mpload index FOLDER -o train.txt"
