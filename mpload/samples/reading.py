"""Where the bytes of a record come from."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mpload.images.limits import Limits
from mpload.index.columns import ColumnType
from mpload.index.index import Index
from mpload.storage.local import PageCache
from mpload.storage.opening import open_storage
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue

__all__ = ["SampleCache", "storage_of"]


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


_RANGE_TYPES: dict[ColumnType, type[ByteRange]] = {ColumnType.LMDB: LmdbValue, ColumnType.ROW: RowValue}
