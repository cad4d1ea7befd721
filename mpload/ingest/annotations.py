"""Rows whose cells of text may be too long for a line of an index.

Rows are first written to a temporary file. If one of them is too long, the longest column of text goes to a file beside
the index, and the index holds spans of that file. The file has a digest of the rows in its name: what was selected from
an earlier index, or reads one now, keeps its file when the source is indexed again.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.index.publishing import new_file
from mpload.index.text import MAX_LINE_BYTES
from mpload.ingest.rows import absolute
from mpload.storage.ranges import Span
from mpload.storage.urls import is_url
from mpload.units import MIB, printable

__all__ = ["Annotations"]

_MAX_ROW_BYTES = MAX_LINE_BYTES // 2  # escapes of an index can double the length of a text
_DIGEST_BYTES = 8


class Annotations:
    """Rows in a temporary file. The cells of each are texts, the first one the path of an image."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._max_bytes = 0
        self._longest: list[int] = []

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[Self]:
        """Open a temporary file in `folder`. It disappears when the context ends, even if the process is killed.

        Raises:
            StorageError: the file cannot be written.
        """
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=MIB) as file:
                yield cls(file)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{folder}: a temporary file cannot be written: {error.strerror or error}. Free some space, or put the "
                "index on another disk"
            ) from error

    def add(self, cells: Sequence[Cell]) -> None:
        """Add a row."""
        line = json.dumps(cells).encode()
        self._file.write(line + b"\n")
        self._digest.update(line + b"\n")
        lengths = [len(str(cell)) for cell in cells]
        self._longest = [max(pair) for pair in zip(self._longest or lengths, lengths, strict=True)]
        self._max_bytes = max(self._max_bytes, len(line))

    def finish(
        self, columns: tuple[Column, ...], *, root: str, may_move_root: bool, index: Path
    ) -> tuple[tuple[Column, ...], str, Iterator[list[Cell]]]:
        """Return the columns, the root and the cells of an index with these rows.

        Args:
            columns: the columns of the rows.
            root: the root that the paths of images are relative to.
            may_move_root: whether the root may be a parent of `root`, so that it contains the index.
            index: the index. If a row is too long for a line, a file is written beside it, see `_beside`.

        Raises:
            ArgumentError: a row is too long, and the index is outside the root.
        """
        self._file.seek(0)
        texts = [number for number, column in enumerate(columns) if column.type is ColumnType.STR]
        if self._max_bytes <= _MAX_ROW_BYTES or not texts:
            return columns, root, (json.loads(line) for line in self._file)
        moved, sidecar = max(texts, key=lambda number: self._longest[number]), self._beside(index)
        base = root
        if may_move_root and not is_url(root):
            base = os.path.commonpath([root, absolute(sidecar.parent)])
        if is_url(base) or not sidecar.is_relative_to(base):
            raise ArgumentError(
                f"{printable(str(sidecar))}: holds the column {columns[moved].name!r}, which is too long for the lines "
                f"of the index, but is outside the root {printable(base)}. Put the index into the root, or leave the "
                "column out: columns='image:path'"
            )
        spans = Column(name=columns[moved].name, type=ColumnType.SPAN)
        place = str(sidecar.relative_to(base))
        prefix = "" if base == root else os.path.relpath(root, base) + "/"
        chosen = (*columns[:moved], spans, *columns[moved + 1 :])
        return chosen, base, self._moved(moved, sidecar, place, prefix, chosen)

    def _beside(self, index: Path) -> Path:
        """Return a file beside `index` for texts of the rows, such as `train.txt.6b1d0c2f9a3e4d55.annotations`."""
        return index.with_name(f"{index.name}.{self._digest.hexdigest()}.annotations")

    def _moved(
        self, moved: int, sidecar: Path, place: str, prefix: str, columns: tuple[Column, ...]
    ) -> Iterator[list[Cell]]:
        paths = [number for number, column in enumerate(columns) if column.type is ColumnType.PATH]
        with new_file(sidecar) as file:
            offset_bytes = 0
            for line in self._file:
                cells: list[Cell] = json.loads(line)
                data = str(cells[moved]).encode()
                file.write(data + b"\n")
                for number in paths:
                    cells[number] = f"{prefix}{cells[number]}"
                cells[moved] = Span(place, offset_bytes, len(data))
                offset_bytes += len(data) + 1
                yield cells
