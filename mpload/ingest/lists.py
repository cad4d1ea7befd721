"""Plain lists, CSV files and existing indexes as sources, and their lines one by one."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mpload.errors import IndexFormatError
from mpload.index.columns import Cell, parse_columns, path_of
from mpload.index.opening import is_outside, root_of
from mpload.index.text import MAX_LINE_BYTES, Dialect, Header, check_label, parse_line, read_header
from mpload.ingest.rows import Rows, absolute, with_prefix
from mpload.storage.remote import check_url, is_url
from mpload.units import MIB, printable

__all__ = ["Line", "open_list", "read_lines"]


@dataclass(frozen=True, slots=True)
class Line:
    """One sample's line: its number in the text, the offset of its first byte, and its bytes without the newline."""

    number: int
    offset_bytes: int
    text: bytes

    def parse(self, header: Header) -> list[Cell]:
        """Return the cells. Raise `ValueError` if the line breaks the format."""
        if len(self.text) > MAX_LINE_BYTES:
            raise ValueError(f"is longer than {MAX_LINE_BYTES} bytes, the limit for a line. Is this file an index?")
        if header.dialect is not Dialect.NATIVE and not self.text.strip():
            raise ValueError("is blank, but samples follow it. Delete the blank line")
        cells = parse_line(header, self.text)
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
    path: Path, *, columns: str | None = None, root: str | os.PathLike[str] | None = None, prefix: str = ""
) -> Iterator[Rows]:
    """Open a plain list, a CSV or an index as a source. A quoted cell of a CSV may contain newlines.

    Args:
        path: the text.
        columns: names and types that replace those declared in the text or inferred from it.
        root: the folder or URL that the paths are relative to. It replaces the text's own root. If neither is given and
            the list begins with a URL, the root is its server or bucket.
        prefix: prepended to every relative path, to make it relative to a parent of the root.

    Raises:
        IndexNotFoundError: there is no file at `path`.
        IndexFormatError: the text is empty, a line is broken, or a path leads outside the root.
        StorageError: the text cannot be opened.
    """
    header = read_header(path, joins_lines=True)
    if columns is not None:
        header = replace(header, columns=parse_columns(columns))
    sources = [number for number, column in enumerate(header.columns) if column.type.is_source]
    if root is not None:
        base = absolute(root)
    else:
        base = (None if header.root else _first_server(path, header, sources)) or root_of(path, header)
    if is_url(base):
        check_url(base)

    def cells() -> Iterator[list[Cell]]:
        for line in _joined(read_lines(path, header), header):
            try:
                cells = line.parse(header)
                for number in sources:
                    if is_url(path_of(cells[number])):
                        check_url(path_of(cells[number]))
                    if is_outside(path_of(cell := cells[number]), base):
                        raise ValueError(_outside(path_of(cell), base))
                    if prefix:
                        cells[number] = with_prefix(cell, prefix)
            except ValueError as error:
                raise IndexFormatError(f"{path}:{line.number}: {error}") from error
            yield cells

    yield Rows(columns=header.columns, root=base, cells=cells(), classes=header.classes)


def _first_server(path: Path, header: Header, sources: Sequence[int]) -> str | None:
    """Return the URL of the server or bucket of a list's first path, or None if that is not a URL."""
    for line in islice(_joined(read_lines(path, header), header), 1):
        with suppress(ValueError):  # which is raised again, with the line's number, when the line is read
            cells = line.parse(header)
            first = next((path_of(cells[number]) for number in sources), "")
            if is_url(first):
                check_url(first)
                return _server_of(first)
    return None


def _server_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _joined(lines: Iterator[Line], header: Header) -> Iterator[Line]:
    """Yield the lines. In a CSV file, a line goes on with the next one while a quote is open.

    Memory: one sample's lines, or about `MAX_LINE_BYTES` if a quote is never closed.
    """
    if header.dialect is not Dialect.COMMA:
        yield from lines
        return
    for line in lines:
        if line.text.count(b'"') % 2 == 0:
            yield line
            continue
        parts = [line.text]
        num_bytes = len(line.text)
        for following in lines:
            parts.append(following.text)
            num_bytes += len(following.text)
            if following.text.count(b'"') % 2:
                yield replace(line, text=b"\n".join(parts))
                break
            if num_bytes > MAX_LINE_BYTES:
                yield line  # its quote is never closed, which is an error of this line
                break
        else:
            yield line


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
