"""The interface of a storage, and extensions of it that only some storages have."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpload.storage.ranges import ByteRange

__all__ = [
    "BeginningReads",
    "KeepingStorage",
    "PageStorage",
    "RemoteReads",
    "Room",
    "RoomStorage",
    "SharingStorage",
    "Storage",
]

Room = Callable[[int], NDArray[np.uint8]]
"""Returns an array uint8 [n] with room for n bytes. A second call discards the first array."""


class Storage(Protocol):
    """A place from which bytes are read.

    If it has an attribute `max_parallel_reads`, that many threads may call `read` at the same time; otherwise only one.
    A `PartialCache` needs an attribute `cache_key`, a text that is the same for storages that read the same.
    """

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each of the `ranges`, in order. Raises `StorageError` if they cannot be read."""
        ...


@runtime_checkable
class PageStorage(Protocol):
    """A storage that reads through the machine's page cache."""

    def prefetch(self, item: ByteRange) -> None:
        """Load bytes into the page cache, with large reads."""
        ...

    def forget(self, item: ByteRange) -> None:
        """Free the page cache that `prefetch` filled, if the storage is configured to do so."""
        ...


@runtime_checkable
class KeepingStorage(Protocol):
    """A storage that keeps more in memory than what was requested, such as decoded row groups."""

    def needed_bytes(self, item: ByteRange) -> int:
        """Return the memory that is needed to read a range."""
        ...

    def bound(self, max_bytes: int) -> None:
        """Bound the memory that is used from now on. A single range is read even if it needs more."""
        ...


@runtime_checkable
class RoomStorage(Protocol):
    """A storage that can read directly into an array of the caller."""

    def read_into(self, item: ByteRange, room: Room) -> NDArray[np.uint8]:
        """Read a range into the array uint8 [n] that `room(n)` returns, and return that array."""
        ...


@runtime_checkable
class RemoteReads(Protocol):
    """A storage behind a network: its reads always take long, and a few take much longer than others."""

    def read_wanted(self, item: ByteRange, is_wanted: Callable[[], bool]) -> bytes:
        """Read a range. A request that has failed is only repeated while the range is wanted."""
        ...

    def read_again(self, item: ByteRange) -> bytes:
        """Read a range that another thread is reading, with one request. Raises `StorageError` if that fails."""
        ...

    def may_read_again(self, item: ByteRange) -> bool:
        """Return whether the server of a range has not failed lately. One that fails must not get more requests."""
        ...


@runtime_checkable
class BeginningReads(RemoteReads, Protocol):
    """A storage behind a network that needs no thread for each read."""

    def begin(
        self,
        item: ByteRange,
        is_wanted: Callable[[], bool],
        ended: Callable[[bytes | None, Callable[[], bytes] | None], None],
    ) -> bool:
        """Begin to read a range. Return False if that is not possible now: then call `read_wanted`.

        `ended` is called once, in another thread, and must not wait. It gets the bytes, or a function that is to read
        them in a thread of its own.
        """
        ...


@runtime_checkable
class SharingStorage(Protocol):
    """A storage whose files might be replaced by others while processes read them."""

    def share_files(self) -> None:
        """Let all processes that are forked from this one read the same files, now and later.

        A file that has been replaced since one of them opened it is then an `IndexChangedError`.
        """
        ...
