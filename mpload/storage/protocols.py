"""What is asked of a storage, and what some can do besides."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpload.storage.ranges import ByteRange

__all__ = ["PageStorage", "Room", "RoomStorage", "Storage"]

Room = Callable[[int], NDArray[np.uint8]]
"""Returns an array uint8 [n] for so many bytes; asked again, the former is forgotten."""


class Storage(Protocol):
    """Where bytes come from.

    Where it has `max_parallel_reads`, so many threads may call `read` at once; else one.
    """

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each of the `ranges`, in order; raise `StorageError` where they cannot be had."""
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
