"""Plain lists, CSV files and existing indexes as sources, and their lines one by one."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.columns import Cell, Column, ColumnType, format_columns, parse_columns, path_of
from mpload.index.dialects import OpenQuoteError, leaves_quote_open
from mpload.index.opening import is_outside, root_of
from mpload.index.plain_lists import refuse_joined_cells
from mpload.index.text import MAX_LINE_BYTES, Dialect, Header, check_label, line_parser, parse_line, read_header
from mpload.ingest.rows import Rows, absolute, with_prefix
from mpload.storage.urls import check_url, is_url
from mpload.units import MIB, printable

__all__ = ["Line", "open_list", "read_lines"]

_NUMBERS = frozenset({ColumnType.INT, ColumnType.FLOAT})


@dataclass(frozen=True, slots=True)
class Line:
    """One sample's line: its number in the text, the offset of its first byte, and its bytes without the newline."""

    number: int
    offset_bytes: int
    text: bytes

    def parse(self, header: Header, parse: Callable[[bytes], list[Cell]] | None = None) -> list[Cell]:
        """Return the cells. Raise `ValueError` if the line breaks the format.

        Args:
            header: the header of the text.
            parse: `line_parser(header)`, which is made only once for many lines.
        """
        if len(self.text) > MAX_LINE_BYTES:
            raise ValueError(f"is longer than {MAX_LINE_BYTES} bytes, the limit for a line. Is this file an index?")
        if header.dialect is not Dialect.NATIVE and not self.text.strip():
            raise ValueError("is blank, but samples follow it. Delete the blank line")
        cells = parse_line(header, self.text) if parse is None else parse(self.text)
        check_label(header, cells)
        return cells


def read_lines(path: Path, header: Header) -> Iterator[Line]:
    """Yield the lines of an index text or plain list. Blank lines at the end of a plain list are ignored.

    Memory: one line. Only the start of a line that is too long is kept.
    """
    blank: list[Line] = []  # the first blank line, which is a fault unless only blank lines follow it
    with path.open("rb", buffering=MIB) as file:
        offset_bytes = file.seek(header.body_bytes)
        number = header.num_lines
        while text := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            num_bytes = len(text)
            rest = text
            while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
                num_bytes += len(rest)
            line = Line(number, offset_bytes, text.removesuffix(b"\n"))
            offset_bytes += num_bytes
            if header.dialect is not Dialect.NATIVE and not text.strip():
                blank = blank or [line]
                continue
            yield from blank
            blank.clear()
            yield line


@contextmanager
def open_list(
    path: Path,
    *,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    prefix: str = "",
    text: str | None = None,
) -> Iterator[Rows]:
    """Open a plain list, a CSV or an index as a source. A quoted cell of a CSV may contain newlines.

    Args:
        path: the text.
        columns: names and types of the columns. If the text names its columns, and all these names are among them, they
            select columns in any order. Otherwise they replace those declared in the text or inferred from it.
        root: the folder or URL that the paths are relative to. It replaces the text's own root. If neither is given and
            the list begins with a URL, the root is its server or bucket.
        prefix: prepended to every relative path, to make it relative to a parent of the root.
        text: a column of numbers whose cells are read as they are written, as texts; but not if the index names its
            classes.

    Raises:
        ArgumentError: `columns` do not fit the names in the text.
        IndexNotFoundError: there is no file at `path`.
        IndexFormatError: the text is empty, a line is broken, a path leads outside the root, or the cells of a list
            are separated in another way.
        StorageError: the text cannot be opened.
    """
    header = read_header(path, joins_lines=True)
    header, places = _declared(path, header, columns)
    label = header.label_column
    names = {header.columns[label].name: header.classes} if label is not None and header.classes else {}
    if text is not None and text not in names:
        header = replace(
            header, columns=tuple(_as_text(each) if each.name == text else each for each in header.columns)
        )
    chosen = tuple(header.columns[place] for place in places)
    sources = [number for number, column in enumerate(chosen) if column.type.is_source]
    if root is not None:
        base = absolute(root)
    else:
        base = (
            None if header.root else _first_server(path, header, [places[number] for number in sources])
        ) or root_of(path, header)
    if is_url(base):
        check_url(base)
    refuse_joined_cells(path, header, base)

    def cells() -> Iterator[list[Cell]]:
        for line_number, found in _samples(path, header):
            cells = [found[place] for place in places]
            try:
                for number in sources:
                    if is_url(path_of(cells[number])):
                        check_url(path_of(cells[number]))
                    if is_outside(path_of(cell := cells[number]), base):
                        raise ValueError(_outside(path_of(cell), base))
                    if prefix:
                        cells[number] = with_prefix(cell, prefix)
            except ValueError as error:
                raise IndexFormatError(f"{path}:{line_number}: {error}") from error
            yield cells

    yield Rows(columns=chosen, root=base, cells=cells(), classes=header.classes, names=names, is_list=True)


def _declared(path: Path, header: Header, columns: str | None) -> tuple[Header, Sequence[int]]:
    """Return a header with the names and types in `columns`, and the place of each of them among its columns.

    Columns that are left out are read as text, because any cell is valid text.
    """
    if columns is None:
        return header, range(len(header.columns))
    wanted = parse_columns(columns)
    if not header.has_names:
        return replace(header, columns=wanted, is_inferred=False), range(len(wanted))
    places = _places_of(path, header, wanted)
    declared = [replace(column, type=ColumnType.STR) for column in header.columns]
    for place, column in zip(places, wanted, strict=True):
        declared[place] = column
    label = replace(header, columns=wanted).label_column
    keeps_label = label is not None and places[label] == header.label_column
    classes = header.classes if keeps_label else ()
    return replace(header, columns=tuple(declared), classes=classes, is_inferred=False), places


def _places_of(path: Path, header: Header, wanted: tuple[Column, ...]) -> Sequence[int]:
    """Return the place of each wanted column among those of a text: that of its name, or its own if it is renamed."""
    known = {column.name: place for place, column in enumerate(header.columns)}
    if all(column.name in known for column in wanted):
        return [known[column.name] for column in wanted]
    if len(wanted) == len(known) and all(known.get(each.name, place) == place for place, each in enumerate(wanted)):
        return range(len(wanted))
    raise ArgumentError(
        f"{path}: columns '{format_columns(wanted)}' do not fit its own, '{format_columns(header.columns)}'. Select "
        "some of these by their names, in any order, or rename them: give all of them, in this order"
    )


def _as_text(column: Column) -> Column:
    return replace(column, type=ColumnType.STR) if column.type in _NUMBERS else column


def _first_server(path: Path, header: Header, sources: Sequence[int]) -> str | None:
    """Return the URL of the server or bucket of a list's first path, or None if that is not a URL."""
    with suppress(ValueError):  # which is raised again, with the line's number, when the line is read
        for _, cells in islice(_samples(path, header), 1):
            first = next((path_of(cells[number]) for number in sources), "")
            if is_url(first):
                check_url(first)
                return _server_of(first)
    return None


def _server_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _samples(path: Path, header: Header) -> Iterator[tuple[int, list[Cell]]]:
    """Yield the number of each sample's line, and its cells. A line goes on with the next one while a quote is open.

    Memory: one sample's lines, or about `MAX_LINE_BYTES` if a quote is never closed.

    Raises:
        IndexFormatError: a line breaks the format.
    """
    lines, parse = read_lines(path, header), line_parser(header)
    for line in lines:
        try:
            try:
                cells = line.parse(header, parse)
            except OpenQuoteError:
                if (joined := _joined(line, lines)) is None:
                    raise
                cells = joined.parse(header, parse)
        except ValueError as error:
            raise IndexFormatError(f"{path}:{line.number}: {error}") from error
        yield line.number, cells


def _joined(line: Line, following: Iterator[Line]) -> Line | None:
    """Return a line with those after it, up to the one that closes its quote; None if that is not near."""
    parts = [line.text]
    num_bytes = len(line.text)
    for other in following:
        parts.append(other.text)
        num_bytes += len(other.text)
        if not leaves_quote_open(other.text, is_open=True):
            return replace(line, text=b"\n".join(parts))
        if num_bytes > MAX_LINE_BYTES:
            return None
    return None


def _outside(path: str, root: str) -> str:
    if is_url(path):
        next_step = "Give a URL above all objects as the root"
        if is_url(root) and _server_of(path) != _server_of(root):
            next_step = "The objects of an index are on one server or in one bucket. Make an index for each"
        return f"{printable(path)} is outside the root {printable(root)}. {next_step}"
    next_step = (
        "Give a root that contains all files: root='/' contains every absolute path"
        if path.startswith("/")
        else "Write paths relative to a folder that contains all files, and give this folder as the root"
    )
    return f"{printable(path)} leads outside the root {printable(root)}. {next_step}"
