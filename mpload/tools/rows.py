"""Fills the row index of an index ahead of training, for `mpload index --jpeg`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mpload.errors import ArgumentError, MploadError, OutageError
from mpload.images.backends import HOW_TO_BUILD, can_note_rows
from mpload.images.claims import unclaimed
from mpload.images.jpeg import open_jpeg
from mpload.images.limits import Limits
from mpload.images.resize import Box, View
from mpload.index.columns import Cell, range_of
from mpload.index.index import Index, require_files
from mpload.ingest.threads import map_in_threads
from mpload.samples.reading import storage_of
from mpload.samples.row_index import RowIndex, create_row_index
from mpload.storage.local import PageCache
from mpload.tools.bounded import BoundedBytes

__all__ = ["Entry", "note_rows"]

_PIXEL = View(box=Box(top=0, left=0, height=1, width=1), full=(1, 1))


def note_rows(index: Index, *, num_workers: int = 8, progress: Callable[[int], None] | None = None) -> RowIndex:
    """Note where the rows of each JPEG begin. Files that cannot be read or decoded are left out.

    Args:
        index: An open index.
        num_workers: The number of threads that read and decode.
        progress: Called with the number of samples done so far.

    Raises:
        ArgumentError: The index names no files, or the decoder here cannot note rows.
        StorageError: The row index can be written neither beside the index nor in the user's cache folder.
        OutageError: A server does not answer.

    Memory: two files per thread.
    """
    require_files(index, what="a row index")
    if not can_note_rows():
        raise ArgumentError(f"the row index needs mpload's native decoder, which is missing or off. {HOW_TO_BUILD}")
    rows = create_row_index(index)
    storage = storage_of(index, [BoundedBytes()], PageCache.KEEP)
    sources = [number for number, column in enumerate(index.columns) if column.type.is_source]

    def known() -> Iterator[tuple[int, Cell, bytes | None]]:
        for record in index:
            for number, source in enumerate(sources, record.sample_id * len(sources)):
                yield number, record.cells[source], rows.read(number)

    def entry(photo: tuple[int, Cell, bytes | None]) -> tuple[int, bytes | None]:
        number, cell, known = photo
        try:
            made = None if known is None else _entry_of(storage.read([range_of(cell)])[0], known=known)
        except OutageError:
            raise
        except MploadError:
            made = None
        return number, made

    num_workers = min(num_workers, getattr(storage, "max_parallel_reads", 1))
    for number, made in map_in_threads(entry, known(), num_workers=num_workers):
        if made is not None:
            rows.write(number, made)
        if progress is not None:
            progress(number // len(sources) + 1)
    return rows


@dataclass(slots=True)
class Entry:
    """The entry of one JPEG, as the decoder reads and writes it."""

    known: bytes = b""
    made: bytes | None = None

    def read(self) -> bytes:
        """Return the entry."""
        return self.known if self.made is None else self.made

    def write(self, entry: bytes) -> None:
        """Note the entry."""
        self.made = entry


def _entry_of(data: bytes, *, known: bytes) -> bytes | None:
    """Return the entry of a file; None if it has none, or if `known` is it."""
    jpeg = open_jpeg(data, upright=False, limits=Limits(), backend="native", claim=unclaimed)
    if not jpeg.has_one_scan:
        return None
    jpeg.rows = entry = Entry(known)
    for _ in range(2):  # tables of a small file are only noted when they come first
        if entry.made is None:
            jpeg.draw(_PIXEL, np.empty((1, 1, 3), np.uint8))
    return entry.made
