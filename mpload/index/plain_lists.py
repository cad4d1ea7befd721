"""Infers the layout of a plain list from its first two lines: the separator, the names and the types of its columns."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from mpload.errors import IndexFormatError
from mpload.index.cells import INTEGER, exact_type
from mpload.index.columns import Column, ColumnType, parse_columns
from mpload.index.dialects import EMPTY, LABEL, MAX_LINE_BYTES, NUL, SPLIT, Dialect, Header, leaves_quote_open
from mpload.units import format_counted, printable

__all__ = ["BOM", "MAGIC", "infer_header", "refuse_joined_cells"]

MAGIC = b"#mpload"
BOM = b"\xef\xbb\xbf"  # some editors write it at the start of UTF-8 files
_PATH_NAMES = frozenset(
    {"path", "file", "image", "img", "filename", "file_name", "filepath", "file_path", "image_path"}
)
_FILE = re.compile(r"\.[A-Za-z]\w{1,4}\s*\Z")
"""The end of a cell that is the name of a file."""
_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "'|'", " ": "spaces"}
_JSON_LINES = frozenset({".jsonl", ".ndjson"})
_NUM_CHECKED = 8  # lines of a list of paths
_HEADER_NAMES = _PATH_NAMES | {"label", "class", "target", "class_id", "label_id"}


def infer_header(path: Path, head: bytes, *, joins_lines: bool) -> Header:
    """Infer the layout of a plain list.

    Args:
        path: the list. Cells of a `.csv` file are separated by commas.
        head: its first bytes, at least two lines.
        joins_lines: whether a quoted cell of a CSV may contain newlines.

    Raises:
        IndexFormatError: the list holds no samples, a line breaks the format, or the first line has names of columns
            that are separated in another way.
    """
    position = len(BOM) if head.startswith(BOM) else 0
    num_lines = 0
    while head.startswith((b"# ", b"#\n", b"#\r\n", b"\n", b"\r\n"), position):  # comments and blank lines
        end = head.find(b"\n", position)
        position = end + 1 if end >= 0 else len(head)
        num_lines += 1
    is_csv = path.suffix.lower() == ".csv"
    first, rest = _cut(head[position:], joins_lines=joins_lines and is_csv)
    if not head[position:].strip():
        raise IndexFormatError(f"{path}: {EMPTY}")
    if b"\0" in first:
        raise IndexFormatError(f"{path}:{num_lines + 1}: {NUL}")
    if first.startswith(MAGIC):
        raise IndexFormatError(f"{path}:{num_lines + 1}: '#mpload' comes after other lines. Delete the lines above it")
    without_commas = Dialect.TAB if b"\t" in first.strip() else Dialect.BLANKS
    dialect = Dialect.COMMA if is_csv else without_commas
    split = SPLIT[dialect]
    empty = Header(columns=(), dialect=dialect)
    second = _cut(rest, joins_lines=joins_lines and is_csv)[0]
    names: list[str] = []
    try:
        if dialect is Dialect.BLANKS:
            columns = _guess_blanks(first, second)
        else:
            texts = split(empty, first)
            if len(texts) == 1:
                _refuse_other_separator(first, second, dialect)
            if _is_header(texts, lambda: split(empty, second)):
                names = [re.sub(r"\W+|^(?=\d)", "_", text.strip()) or f"column{n}" for n, text in enumerate(texts, 1)]
                first_cells = list(texts)
                position += len(first) + 1
                num_lines += 1 + first.count(b"\n")
                if not rest.strip():
                    raise ValueError(EMPTY)
                # A blank line is an error when it is read.
                texts = split(empty, second) if second.strip() else [""] * len(names)
                while len(names) > len(texts) and not first_cells.pop().strip():  # a comma at the end of the names only
                    names.pop()
                _refuse_other_length(names, texts)
            columns = _guess_columns(names or _names_of_places(len(texts)), texts)
    except ValueError as error:
        raise IndexFormatError(f"{path}:{num_lines + 1}: {error}") from error
    return Header(
        columns=columns,
        dialect=dialect,
        body_bytes=position,
        num_lines=num_lines,
        is_inferred=True,
        has_names=bool(names),
    )


def _is_header(first: Sequence[str], read_second: Callable[[], Sequence[str]]) -> bool:
    """Whether the first line of a list has the names of its columns.

    One of the names is known, or none looks like the name of a file, but a cell of the second line does.
    """
    if _has_known_name(first):
        return True
    if len(first) < 2 or any(map(_FILE.search, first)):
        return False
    try:
        second = read_second()
    except ValueError:  # raised again when the line is read
        return False
    return len(first) == len(second) and any(map(_FILE.search, second))


def _names_of_places(num_columns: int) -> list[str]:
    """Return the names of the columns of a list that does not name them."""
    return ["image", LABEL, *(f"column{number}" for number in range(3, num_columns + 1))][:num_columns]


def _refuse_other_length(names: Sequence[str], texts: Sequence[str]) -> None:
    """Raise `ValueError` if the first sample has another number of cells than there are names."""
    if len(names) != len(texts):
        row, header = (printable(", ".join(cells)[:80]) for cells in (texts, names))
        raise ValueError(
            f"has {format_counted(len(texts), 'cell')} ({row}), but the line of names has {len(names)} ({header}). "
            "Give every cell a name, and every name a cell"
        )


def _has_known_name(cells: Sequence[str]) -> bool:
    return not _HEADER_NAMES.isdisjoint(text.strip().lower() for text in cells)


def _refuse_other_separator(first: bytes, second: bytes, dialect: Dialect) -> None:
    """Raise `ValueError` if the first line of a list has names of columns that this dialect does not separate."""
    texts = [line.strip().decode("utf-8", "surrogateescape") for line in (first, second)]
    for separator, name in _SEPARATORS.items():
        cells, following = (text.split(separator) for text in texts)
        if len(cells) < 2 or len(cells) != len(following) or any(map(_FILE.search, cells)):
            continue
        is_known = _has_known_name(cells) and not _has_known_name(following)
        if is_known or (separator != " " and any(map(_FILE.search, following))):
            raise ValueError(
                f"{texts[0][:80]!r} looks like the names of columns separated by {name}, but {_rule(dialect)}. "
                f"{_remedy(separator, dialect)}"
            )


def refuse_joined_cells(path: Path, header: Header, root: str) -> None:
    """Raise `IndexFormatError` if cells of a list seem to be taken for paths, but are not.

    That is so if none of the first lines is the path of a file, but the part before a separator is: its dialect does
    not separate its cells. It is also so if the first cell of a list without names is a number, and another one looks
    like the name of a file, or if the first line is JSON.

    Args:
        path: the list.
        header: its header. Nothing is checked if its columns were declared.
        root: the folder that the paths are relative to. If it is a URL, no files are looked for.
    """
    if not header.is_inferred:
        return
    if path.suffix.lower() in _JSON_LINES:
        _refuse_json(path, header)
    if len(header.columns) > 1:
        if not header.has_names:
            _refuse_number(path, header, root)
        return
    if header.dialect is Dialect.TAB or "://" in root:
        return
    with path.open("rb") as file:
        file.seek(header.body_bytes)
        lines = [file.readline(MAX_LINE_BYTES).removesuffix(b"\n") for _ in range(_NUM_CHECKED)]
    try:
        names = [SPLIT[header.dialect](header, line)[0] for line in lines if line.strip()]
    except ValueError:  # raised again when the line is read
        return
    if any(_is_file(root, name) for name in names):
        return
    for separator, kind in _SEPARATORS.items():
        for number, name in enumerate(names, start=header.num_lines + 1):
            start, found, _ = name.partition(separator)
            if found and start and _is_file(root, start):
                raise IndexFormatError(
                    f"{path}:{number}: there is no file '{printable(name)}', but there is '{printable(start)}'. "
                    f"The line seems to have cells separated by {kind}, but {_rule(header.dialect)}. "
                    f"{_remedy(separator, header.dialect)}"
                )


def _refuse_json(path: Path, header: Header) -> None:
    """Raise `IndexFormatError` if the first line of a list looks like an object or an array in JSON."""
    with path.open("rb") as file:
        file.seek(header.body_bytes)
        line = file.readline(MAX_LINE_BYTES)
    if line.lstrip().startswith((b"{", b"[")):
        raise IndexFormatError(
            f"{path}:{header.num_lines + 1}: is JSON, not the path of a file. Write the samples as CSV, such as by "
            f"pandas.read_json({str(path)!r}, lines=True).to_csv({str(path.with_suffix('.csv'))!r}, index=False). To "
            "have each line as a text instead, index the file with columns='line:str' (--columns line:str)"
        )


def _refuse_number(path: Path, header: Header, root: str) -> None:
    """Raise `IndexFormatError` if the first path of a list without names is a number, and another cell is a path."""
    with path.open("rb") as file:
        file.seek(header.body_bytes)
        line = file.readline(MAX_LINE_BYTES).removesuffix(b"\n")
    try:
        texts = SPLIT[header.dialect](header, line)
    except ValueError:  # raised again when the line is read
        return
    number = next((number for number, text in enumerate(texts) if _FILE.search(text)), 0)
    if number == 0 or not INTEGER.fullmatch(texts[0]) or ("://" not in root and _is_file(root, texts[0])):
        return
    columns = [f"column{place}:{exact_type(text)}" for place, text in enumerate(texts, 1)]
    columns[0] = f"{LABEL}:int" if len(texts) == 2 else "number:str"
    columns[number] = "image:path"
    raise IndexFormatError(
        f"{path}:{header.num_lines + 1}: the first cell, '{printable(texts[0])}', is no path, but "
        f"'{printable(texts[number])}' looks like one. Name the columns when you make an index, such as: "
        f'mpload index FILE --columns "{" ".join(columns)}", or build_index(columns=...)'
    )


def _is_file(root: str, name: str) -> bool:
    return os.path.isfile(os.path.join(root, name))  # noqa: PTH113, PTH118  False for names that are not allowed


def _rule(dialect: Dialect) -> str:
    if dialect is Dialect.COMMA:
        return "cells of a .csv file are separated by commas"
    return "a line without tabs is a path, or a path and an integer"


def _remedy(separator: str, dialect: Dialect) -> str:
    if separator == "\t":
        return "Give the file a name that does not end in .csv"
    if separator == ",":
        return "Give the file a name that ends in .csv"
    if separator == " ":
        return "Separate the cells by tabs, or by commas in a file that ends in .csv"
    name = "the file" if dialect is Dialect.COMMA else "a file that ends in .csv"
    return f"Write {name} with commas: pandas.read_csv(FILE, sep={separator!r}).to_csv('FILE.csv', index=False)"


def _cut(text: bytes, *, joins_lines: bool) -> tuple[bytes, bytes]:
    """Return the first line, and the rest. If `joins_lines`, the line goes on while a quote is open."""
    start, end = 0, text.find(b"\n")
    is_open = False
    while joins_lines and end >= 0 and (is_open := leaves_quote_open(text[start:end], is_open=is_open)):
        start, end = end + 1, text.find(b"\n", end + 1)
    return (text, b"") if end < 0 else (text[:end], text[end + 1 :])


def _guess_columns(names: list[str], texts: list[str]) -> tuple[Column, ...]:
    """Infer the type of each column of a plain list from its first cell. Exactly one column becomes the path."""
    paths = [number for number, name in enumerate(names) if name.lower() in _PATH_NAMES]
    paths = paths or [number for number, text in enumerate(texts) if _FILE.search(text)] or [0]
    cells = zip(names, texts, strict=True)
    types = [ColumnType.PATH if number == paths[0] else _type_of(*cell) for number, cell in enumerate(cells)]
    return parse_columns(" ".join(f"{name}:{kind}" for name, kind in zip(names, types, strict=True)))


def _type_of(name: str, text: str) -> ColumnType:
    """Return the type of a column with this first cell. Labels are numbers, so leading zeros do not matter there."""
    is_label = name == LABEL and INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63
    return ColumnType.INT if is_label else exact_type(text)


def _guess_blanks(first: bytes, second: bytes) -> tuple[Column, ...]:
    """Infer the columns of a list that has neither tabs nor commas from its first line."""
    words = first.decode("utf-8", "surrogateescape").rsplit(None, 1)
    if len(words) == 2 and INTEGER.fullmatch(words[1]):
        return parse_columns(f"image:path {LABEL}:{_type_of(LABEL, words[1])}")
    _refuse_other_separator(first, second, Dialect.BLANKS)
    return parse_columns("image:path")
