"""Lists as people have them, and indexes that stand already: their lines, one after another."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mpload.errors import IndexFormatError
from mpload.index.columns import Cell, parse_columns, path_of
from mpload.index.opening import root_of
from mpload.index.text import MAX_LINE_BYTES, Dialect, Header, check_label, parse_line, read_header
from mpload.ingest.rows import Rows, absolute, is_outside, shown, with_prefix
from mpload.storage.remote import check_url, is_url
from mpload.units import MIB

__all__ = ["Line", "open_list", "read_lines"]


@dataclass(frozen=True, slots=True)
class Line:
    """One sample's line: its number in the text, the offset where it starts, and its bytes without the newline."""

    number: int
    offset_bytes: int
    text: bytes

    def parse(self, header: Header) -> list[Cell]:
        """Return the cells; raises `ValueError` where the line breaks the format."""
        if len(self.text) > MAX_LINE_BYTES:
            raise ValueError(f"is longer than {MAX_LINE_BYTES} bytes, the limit of a line. Is this file an index?")
        if header.dialect is not Dialect.NATIVE and not self.text.strip():
            raise ValueError("is blank, and samples follow. Delete the blank line")
        cells = parse_line(header, self.text)
        check_label(header, cells)
        return cells


def read_lines(path: Path, header: Header) -> Iterator[Line]:
    """Yield the lines of an index text or plain list; blank lines at the end of a plain list are none.

    Memory: one line. Of one that is too long, only the start is kept.
    """
    blank: list[Line] = []  # lines at the end, or a fault
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
    """Open a plain list, a CSV or an index as a source.

    Args:
        path: the text.
        columns: names and types in place of those that the text declares, or that were guessed.
        root: what the paths are relative to, in place of the text's own root.
        prefix: goes before every relative path, which a root above then asks for.

    Raises:
        IndexFormatError: the text is empty or a line is broken; a path leads out of the root.
        OSError: the text cannot be read.
    """
    header = read_header(path)
    if columns is not None:
        header = replace(header, columns=parse_columns(columns))
    place = absolute(root) if root is not None else root_of(path, header)
    if is_url(place):
        check_url(place)
    sources = [number for number, column in enumerate(header.columns) if column.type.is_source]

    def cells() -> Iterator[list[Cell]]:
        for line in read_lines(path, header):
            try:
                cells = line.parse(header)
                for number in sources:
                    if is_url(path_of(cells[number])):
                        check_url(path_of(cells[number]))
                    if is_outside(path_of(cell := cells[number]), place):
                        raise ValueError(_outside(path_of(cell), place))
                    if prefix:
                        cells[number] = with_prefix(cell, prefix)
            except ValueError as error:
                raise IndexFormatError(f"{path}:{line.number}: {error}") from error
            yield cells

    yield Rows(columns=header.columns, root=place, cells=cells(), classes=header.classes)


def _outside(path: str, root: str) -> str:
    if is_url(path):
        next_step = "Give a URL that holds all objects as the root, or none: a list of URLs needs no index"
        return f"{shown(path)} lies outside of the root {shown(root)}. {next_step}"
    next_step = (
        "Give a root that holds all files: root='/' holds any absolute path"
        if path.startswith("/")
        else "Write paths relative to a folder that holds all files, and give it as the root"
    )
    return f"{shown(path)} leads out of the root {shown(root)}. {next_step}"
