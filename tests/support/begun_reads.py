"""Reads of objects at URLs that begin without waiting, as those of read-ahead do."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpload.storage.object_facts import unseen
from mpload.storage.quick_reads import QuickReads
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects, RemoteStorage
from mpload.storage.waiters import WAITERS
from tests.support.raw_server import Answer, head, raw_server

__all__ = ["LIMITS", "WAIT_SECONDS", "Paths", "objects_at", "quick_reads_of", "read_begun", "usual"]

WAIT_SECONDS = 30.0
LIMITS = RemoteStorage(request_timeout_seconds=2.0, retry_seconds=5.0)


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
    with WAITERS.waiting():
        assert is_over.wait(WAIT_SECONDS)
    ((data, rest),) = found
    assert (data is None) == (rest is not None)
    return rest() if rest is not None else data or b""


class Paths:
    """Answers each request with the path, by `answer`, and counts requests."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self.num_requests = 0

    def __call__(self, connection: socket.socket, path: str) -> bool:
        self.num_requests += 1
        connection.sendall(self._answer(path.encode()))
        return True


def usual(path: bytes) -> bytes:
    return head("200 OK", 'ETag: "one"', length=len(path)) + path


@contextmanager
def objects_at(answer: Answer) -> Iterator[RemoteObjects]:
    with raw_server(answer) as url:
        yield RemoteObjects(url, limits=LIMITS)


def quick_reads_of(address_of: Callable[[str], str], **options: Any) -> QuickReads:
    known = {"connect_seconds": 1.0, "max_bytes": None, "seen": unseen, "is_bucket": True, "may_wait": False}
    return QuickReads("s3://b", address_of, **(known | options))
