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

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.cells import EXACT_READERS, READERS, WrongTypeError
from mpload.index.columns import Cell, Column, ColumnType, format_columns, parse_columns
from mpload.index.dialects import CRLF, EMPTY, MAX_LINE_BYTES, NUL, SPLIT, Dialect, Header, escape, unescape
from mpload.index.open_file import open_text
from mpload.index.plain_lists import BOM, MAGIC, infer_header
from mpload.units import MIB

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
_MAX_DIRECTIVE_BYTES = 16 * MIB  # 20,000 class names take less than 1 MB
_PARTS_LINE = 2


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
        start = len(BOM) if file.read(len(BOM)) == BOM else 0
        file.seek(start)
        if file.read(len(MAGIC)) == MAGIC:
            file.seek(start)
            return _read_directives(path, file, may_be_empty=may_be_empty)
        file.seek(0)
        return infer_header(path, file.read(2 * MAX_LINE_BYTES), joins_lines=joins_lines)


def format_header(*, columns: tuple[Column, ...], root: str | None = None, classes: Sequence[str] = ()) -> bytes:
    """Return the directives of an index text as bytes."""
    lines = [f"#mpload {FORMAT_VERSION}"]
    if root is not None:
        lines.append(f"#root {escape(root)}")
    lines.append(f"#columns {format_columns(columns)}")
    if classes:
        lines.append("#classes " + "\t".join(map(escape, classes)))
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def format_line(cells: Sequence[Cell]) -> bytes:
    """Return one sample's line as bytes, including the newline.

    Raises:
        ArgumentError: the line would be empty or too long, or a cell holds a NUL byte.
    """
    texts = [escape(str(cell)) for cell in cells]
    if texts[0].startswith("#"):
        texts[0] = "\\" + texts[0]
    line = ("\t".join(texts) + "\n").encode("utf-8", "surrogateescape")
    if b"\0" in line:
        raise ArgumentError(f"{cells[0]!r}: a cell must not contain a NUL byte")
    if line == b"\n":
        raise ArgumentError("the line has only one cell, and it is empty. A sample needs a value")
    if (num_bytes := len(line) - 1) > MAX_LINE_BYTES:
        raise ArgumentError(
            f"the line of {texts[0][:80]!r} has {num_bytes} bytes, more than the limit of {MAX_LINE_BYTES}"
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
    split = SPLIT[header.dialect]
    columns = [
        (column, (EXACT_READERS if header.is_exact(column) else READERS)[column.type]) for column in header.columns
    ]

    def parse(line: bytes) -> list[Cell]:
        if b"\0" in line:
            raise ValueError(NUL)
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
            raise IndexFormatError(f"{path}:{number}: {CRLF}")
        if "\0" in line:
            raise IndexFormatError(f"{path}:{number}: {NUL}")
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
            root=unescape(found["root"]) if "root" in found else None,
            classes=tuple(map(unescape, found["classes"].split("\t"))) if "classes" in found else (),
            body_bytes=body_bytes,
            num_lines=number,
        )
    except ValueError as error:
        raise IndexFormatError(f"{path}: {error}") from error
    if not raw and not may_be_empty:
        raise IndexFormatError(f"{path}: {EMPTY}")
    return header
