"""Where the bytes of a record come from."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpload.images.image import Limits
from mpload.index.columns import Cell, ColumnType, LmdbValue, RowValue, Span
from mpload.index.index import Index
from mpload.storage.local import PageCache
from mpload.storage.opening import open_storage
from mpload.storage.ranges import ByteRange, LmdbRange, RowRange

__all__ = ["PageStorage", "Room", "RoomStorage", "SampleCache", "Storage", "path_of", "range_of", "storage_of"]

Room = Callable[[int], NDArray[np.uint8]]
"""Returns an array uint8 [n] for so many bytes; asked again, the former is forgotten."""


class Storage(Protocol):
    """Where bytes come from."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each of the `ranges`; raise `StorageError` where they cannot be had."""
        ...


@runtime_checkable
class PageStorage(Protocol):
    """A storage whose bytes come through the page cache of the machine."""

    def prefetch(self, item: ByteRange) -> None:
        """Bring bytes into the page cache, by large reads."""
        ...

    def forget(self, item: ByteRange) -> None:
        """Take what `prefetch` has brought out of the page cache, where that is wished."""
        ...


@runtime_checkable
class RoomStorage(Protocol):
    """A storage that reads to where the bytes are wanted."""

    def read_into(self, item: ByteRange, room: Room) -> NDArray[np.uint8]:
        """Read a range into the array uint8 [n] that `room(n)` returns, and return that."""
        ...


class SampleCache(Protocol):
    """Keeps the bytes of samples nearer than where they come from."""

    def read(self, sample_id: int, paths: Sequence[str], read: Callable[[], list[bytes]]) -> list[bytes]:
        """Return the bytes of a sample's sources, which lie in `paths`: kept ones, or what `read` gives."""
        ...

    def has(self, sample_id: int) -> bool:
        """Whether something is kept for a sample, so that its sources will hardly be read."""
        ...


def storage_of(index: Index, decode: Callable[..., Any], page_cache: PageCache | str) -> Storage:
    """Open what reads the sources of an index; what is too large for `decode` is not read."""
    limits = getattr(decode, "limits", None)
    kinds = {_RANGE_TYPES.get(column.type, ByteRange) for column in index.columns if column.type.is_source}
    return open_storage(
        index.root,
        kinds,
        allow_outside_root=index.allow_outside_root,
        max_bytes=limits.max_bytes if isinstance(limits, Limits) else None,
        page_cache=page_cache,
    )


_RANGE_TYPES: dict[ColumnType, type[ByteRange]] = {ColumnType.LMDB: LmdbRange, ColumnType.ROW: RowRange}


def range_of(cell: Cell) -> ByteRange:
    """Return where the bytes of a source lie."""
    match cell:
        case str():
            return ByteRange(cell)
        case Span():
            return ByteRange(cell.path, cell.offset_bytes, cell.length_bytes)
        case LmdbValue():
            return LmdbRange(cell.path, key=cell.key)
        case RowValue():
            return RowRange(cell.path, row_group=cell.row_group, row=cell.row, column=cell.column)
        case _:
            raise AssertionError(f"{cell} says nothing of bytes")


def path_of(cell: Cell) -> str:
    """Return the file that a source lies in."""
    return cell if isinstance(cell, str) else getattr(cell, "path", "")
