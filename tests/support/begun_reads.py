"""Reads of objects at URLs that begin without waiting, as those of read-ahead do."""

import threading
from collections.abc import Callable, Sequence

from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects

__all__ = ["WAIT_SECONDS", "read_begun"]

WAIT_SECONDS = 30.0


def read_begun(objects: RemoteObjects, ranges: Sequence[ByteRange]) -> list[bytes]:
    """Return or raise the same as `RemoteObjects.read`, or rather, what should be the same."""
    return [_read_begun(objects, item) for item in ranges]


def _read_begun(objects: RemoteObjects, item: ByteRange) -> bytes:
    found = list[tuple[bytes | None, Callable[[], bytes] | None]]()
    is_over = threading.Event()

    def ended(data: bytes | None, rest: Callable[[], bytes] | None) -> None:
        found.append((data, rest))
        is_over.set()

    if not objects.begin(item, lambda: True, ended):
        return objects.read_wanted(item, lambda: True)
    assert is_over.wait(WAIT_SECONDS)
    ((data, rest),) = found
    assert (data is None) == (rest is not None)
    return rest() if rest is not None else data or b""
