"""Paths below one of several roots, for an index whose sources have different ones.

Such a path is the root, `/./` and the path below the root: `/data/photos/./a/1.jpg`. The storage of that root reads it,
and keeps to the root as always. If paths may lead outside the root, it ends with a slash: `/data/photos//./../1.jpg`.
So no path below a root can be taken for one that may leave it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mpload.errors import StorageError
from mpload.storage.protocols import KeepingStorage, SharingStorage, Storage
from mpload.storage.ranges import ByteRange

__all__ = ["SeveralRoots", "below"]

_MARK = "/./"


def below(root: str, cell: Any) -> Any:
    """Return the cell of a source column, a path or a range of bytes, with its root before the path."""
    if isinstance(cell, ByteRange):
        return replace(cell, path=f"{root}{_MARK}{cell.path}")
    return f"{root}{_MARK}{cell}"


class SeveralRoots:
    """Passes each range to the storage of the root that its path begins with.

    Args:
        storages: the storage of each root.

    Process: see the storages that it uses.
    """

    def __init__(self, storages: Mapping[str, Storage]) -> None:
        self._storages = dict(sorted(storages.items(), reverse=True))  # a root comes before those that contain it
        self.max_parallel_reads = min(getattr(storage, "max_parallel_reads", 1) for storage in storages.values())
        """The number of threads that may read at the same time."""
        self.max_read_seconds = max(getattr(storage, "max_read_seconds", 0.0) for storage in storages.values())
        """The longest time that a server may take to deliver one range."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`."""
        data = []
        for item in ranges:
            storage, inner = self._of(item)
            data += storage.read([inner])
        return data

    def share_files(self) -> None:
        """Share what the storages share; see `SharingStorage`."""
        for storage in self._storages.values():
            if isinstance(storage, SharingStorage):
                storage.share_files()

    def needed_bytes(self, item: ByteRange) -> int:
        """Return the memory that is needed to read a range, besides its bytes."""
        storage, inner = self._of(item)
        return storage.needed_bytes(inner) if isinstance(storage, KeepingStorage) else 0

    def bound(self, max_bytes: int) -> None:
        """Bound the memory of the storages that keep more than what was requested."""
        keeping = [storage for storage in self._storages.values() if isinstance(storage, KeepingStorage)]
        for storage in keeping:
            storage.bound(max(1, max_bytes // len(keeping)))

    def _of(self, item: ByteRange) -> tuple[Storage, ByteRange]:
        for root, storage in self._storages.items():
            if item.path.startswith(root + _MARK):
                return storage, replace(item, path=item.path[len(root) + len(_MARK) :])
        raise StorageError(f"{item.path!r} is below none of {', '.join(self._storages)}")
