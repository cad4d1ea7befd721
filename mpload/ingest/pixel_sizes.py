"""Adds the width and height of each image to the rows of an index, from the headers of the files."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import islice
from typing import Final

import imagesize  # type: ignore[import-untyped]

from mpload.errors import ArgumentError, DecodeError, warn
from mpload.images.image import open_image
from mpload.images.jpeg_header import read_header
from mpload.images.limits import Limits
from mpload.images.pnm import pnm_format, read_pnm_header
from mpload.index.columns import Cell, Column, ColumnType
from mpload.index.dialects import PIXEL_SIZES
from mpload.ingest.rows import Rows
from mpload.ingest.threads import map_in_threads
from mpload.storage.ranges import Span
from mpload.storage.regular import open_regular
from mpload.storage.urls import redacted
from mpload.units import format_counted, printable

__all__ = ["add_pixel_sizes", "refuse_pixel_sizes"]

_COLUMNS: Final = tuple(Column(name=name, type=ColumnType.INT) for name in PIXEL_SIZES)
_CHUNK_ROWS = 256
_HEAD_BYTES = 1 << 16
_JPEG = b"\xff\xd8\xff"
_TURNED = 5  # from this EXIF orientation on, width and height are swapped
_MAY_BE_TURNED = (b"II*\x00", b"MM\x00*")  # TIFF


def add_pixel_sizes(rows: Rows, *, num_workers: int) -> Rows:
    """Return the rows with two more columns, `width:int` and `height:int`: those of the image in the first column.

    They are the sizes after the EXIF orientation was applied, or 0 if the image cannot be read.

    Raises:
        ArgumentError: there are such columns, or the images are not in local files.

    Warns:
        MploadWarning: images cannot be read. The warning comes when all rows were iterated.

    Memory: constant.
    """
    taken = {column.name for column in rows.columns} & {column.name for column in _COLUMNS}
    if taken:
        raise ArgumentError(f"the source has a column {min(taken)} already, so image sizes cannot be added. Rename it")
    sources = [number for number, column in enumerate(rows.columns) if column.type.is_source]
    if not sources or not rows.columns[sources[0]].type.is_file:
        raise ArgumentError("image sizes can be measured in files and tar files only. Build without image sizes")
    refuse_pixel_sizes(rows.root)
    measured = _Measured(root=rows.root, column=sources[0])
    return replace(rows, columns=(*rows.columns, *_COLUMNS), cells=measured.rows(rows.cells, num_workers))


def refuse_pixel_sizes(root: str) -> None:
    """Raise `ArgumentError` if the root of images is a URL."""
    if "://" in root:
        raise ArgumentError(f"{redacted(root)}: sizes of images at a URL cannot be measured. Build without image sizes")


@dataclass(slots=True, kw_only=True)
class _Measured:
    """Measures images, and counts those that cannot be read."""

    root: str
    column: int
    unreadable: list[Cell] = field(default_factory=list)
    """The first of them."""
    num_unreadable: int = 0

    def rows(self, cells: Iterator[Sequence[Cell]], num_workers: int) -> Iterator[Sequence[Cell]]:
        chunks = iter(lambda: list(islice(cells, _CHUNK_ROWS)), [])
        for chunk in map_in_threads(self._measured, chunks, num_workers=num_workers):
            for row in chunk:
                if not row[-1]:
                    self.num_unreadable += 1
                    self.unreadable = self.unreadable or [row[self.column]]
                yield row
        if self.num_unreadable:
            warn(
                f"{format_counted(self.num_unreadable, 'image')} could not be read, such as "
                f"{printable(str(self.unreadable[0]))}. "
                'Their width and height are 0. To leave them out: mpload select INDEX --where "width > 0". '
                f"The first error: {self._fault_of(self.unreadable[0])}"
            )

    def _measured(self, chunk: Iterable[Sequence[Cell]]) -> list[Sequence[Cell]]:
        return [[*row, *self._size_of(row[self.column])] for row in chunk]

    def _size_of(self, cell: Cell) -> tuple[int, int]:
        """Return width and height; 0 if the image cannot be read."""
        try:
            return self._measure(cell)
        except (OSError, DecodeError):
            return 0, 0

    def _fault_of(self, cell: Cell) -> str:
        """Return why an image cannot be read."""
        try:
            self._measure(cell)
        except (OSError, DecodeError) as error:
            return str(error)
        return "its header says that it has no pixels"

    def _measure(self, cell: Cell) -> tuple[int, int]:
        span = cell if isinstance(cell, Span) else None
        path = str(cell) if span is None else span.path
        descriptor, file_bytes = open_regular(os.path.join(self.root, path), path)  # noqa: PTH118
        with os.fdopen(descriptor, "rb") as file:
            start = 0 if span is None else span.offset_bytes
            num_bytes = file_bytes if span is None else span.length_bytes
            head = os.pread(file.fileno(), min(num_bytes, _HEAD_BYTES), start)
            if (size := _size_in(head)) is not None:
                return size
            Limits().check_bytes(num_bytes)  # as when it is trained on
            file.seek(start)
            image = open_image(file.read(num_bytes))
            return image.width, image.height


def _size_in(head: bytes) -> tuple[int, int] | None:
    """Return width and height by the first bytes of an image; None if these do not suffice."""
    if head.startswith(_JPEG):
        header = read_header(head)
        if not header.frame or not header.height:
            return None
        size = header.width, header.height
        return size[::-1] if header.orientation >= _TURNED else size
    if pnm_format(head):
        pnm = read_pnm_header(head)
        return (pnm.width, pnm.height) if pnm.width and pnm.height else None
    if head.startswith(_MAY_BE_TURNED) or b"eXIf" in head or b"EXIF" in head:
        return None
    width, height = imagesize.get(BytesIO(head), exif_rotation=False)
    return (width, height) if min(width, height) > 0 else None
