"""Reads samples that the caches of other machines keep.

A server on each machine (`mpload serve`) answers `GET /v1/cached/KEY/SAMPLE_ID/PART` with an entry of its cache: part
PART of the sample's sources, after a head as in a segment. It reads a sample that it lacks from the source, and keeps
it. KEY names the data set, as 16 hexadecimal digits. The answer 204 says that the machine does not keep the sample, or
cannot read it, and 503 that it has too much to do.

An entry that is not valid, a machine that does not answer, and one that does not keep the sample cost time only: the
sample is then read from its source.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from math import inf
from typing import TYPE_CHECKING, Any

from mpload.samples.cache.compact import Compact
from mpload.samples.cache.entries import HEAD_BYTES, payload_fits, read_head
from mpload.samples.cache.machines import Machines
from mpload.storage.notices import Notice, Notices
from mpload.storage.protocols import KeepingStorage, RemoteReads, SharingStorage, Storage
from mpload.storage.ranges import ByteRange
from mpload.storage.request_failure import RequestFailure

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from mpload.storage.connections import Server

__all__ = ["CACHED_PATH", "HIT_HEADER", "MACHINE_HEADER", "KeptElsewhere", "OtherCaches", "other_caches"]

CACHED_PATH = "/v1/cached"
HIT_HEADER = "Mpload-Cache"
"""`hit` if the entry was there, `miss` if it has just been read from its source."""
MACHINE_HEADER = "Mpload-Machine"
"""`PLACE of NUMBER`: which machine is asked, among how many."""
_REQUEST_SECONDS = 10.0
"""Time limit for a request: the other machine may have to read the sample from a slow source."""
_TRIAL_SECONDS = 3.0
"""The same for a machine that has failed."""
_CONNECT_SECONDS = 2.0
_QUIET_SECONDS = 5.0
"""A machine is back if it has not failed for so long."""
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""How long a machine is left out after it has failed; each further failure doubles the pause."""


@dataclass(frozen=True, slots=True)
class KeptElsewhere(ByteRange):
    """One source of a sample that another machine keeps."""

    offset_bytes: int = field(default=0, init=False, repr=False)
    length_bytes: None = field(default=None, init=False, repr=False)
    source: ByteRange
    """What to read if the machine does not have it."""
    machine: int
    sample_id: int
    part: int
    """The number of the source, from 0."""


@dataclass(slots=True, kw_only=True)
class _Machine:
    """What this process knows about the server of another machine. All threads share it."""

    url: str
    server: "Server"
    is_out: bool = False
    """Whether it is left out, since the last request failed."""
    is_noticed: bool = False
    """Whether the user has been told."""
    pause_seconds: float = 0.0
    """For how long it was left out last."""
    resumes_at: float = -inf
    tried_at: float = inf
    """When it was asked again for the first time since it failed."""
    failed_at: float = -inf
    answered_at: float = -inf
    lock: threading.Lock = field(default_factory=threading.Lock)

    def limit_seconds(self, now: float) -> float:
        """Return the time limit of the next request; 0 if the machine is left out. One that failed is asked once."""
        if not self.is_out:
            return _REQUEST_SECONDS
        with self.lock:
            if now < self.resumes_at:
                return 0.0
            self.tried_at, self.resumes_at = now, now + _REQUEST_SECONDS
        return _TRIAL_SECONDS

    def answered(self, *, began: float, now: float) -> bool:
        """Note the answer to a request that began then. Return whether the machine is back for good."""
        self.answered_at = now
        if not self.is_noticed:
            return False
        with self.lock:
            if began >= self.tried_at:  # earlier ones were on their way when it failed
                self.is_out = False
            is_back = not self.is_out and now - self.failed_at >= _QUIET_SECONDS
            self.is_noticed = not is_back
        return is_back

    def failed(self, *, began: float, now: float) -> bool:
        """Note that a request that began then has failed. Return whether the user does not know yet."""
        with self.lock:
            if not self.is_out or began >= self.tried_at:
                is_again = now - self.failed_at < _LONGEST_PAUSE_SECONDS + 2 * self.pause_seconds
                self.pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self.pause_seconds if is_again else 0.0)
                self.pause_seconds = max(_SHORTEST_PAUSE_SECONDS, self.pause_seconds)
                self.is_out, self.failed_at, self.tried_at = True, now, inf
                self.resumes_at = now + self.pause_seconds * random.uniform(0.5, 1.0)
            is_first, self.is_noticed = not self.is_noticed, True
        return is_first


class OtherCaches:
    """Reads ranges that are kept elsewhere from there, and all others from the storage below.

    Args:
        storage: reads the sources.
        kept_by: returns the place of the other machine that keeps a sample; None if there is none.
        machines: the machines of the cache.
        key: the key of the data set.
        compact: makes the form of images that caches keep; None if they keep sources unchanged.
        notices: gets a notice of each machine that does not answer.

    Process: may be forked. Each process makes its own connections. Any thread may read, if it may read the storage.
    """

    max_parallel_reads = 128

    def __init__(
        self,
        storage: Storage,
        kept_by: Callable[[int], int | None],
        machines: Machines,
        *,
        key: int,
        compact: Compact | None,
        notices: Notices,
    ) -> None:
        self._storage = storage
        self._kept_by = kept_by
        self._remote = storage if isinstance(storage, RemoteReads) else None
        self._machines = machines
        self._key = key
        self._compact = compact
        self._notices = notices
        self._headers = {"Accept-Encoding": "identity"}
        if machines.token is not None:
            self._headers["Authorization"] = f"Bearer {machines.token}"
        self.max_read_seconds: float = _REQUEST_SECONDS + getattr(storage, "max_read_seconds", 0.0)
        """The longest time that servers may take to deliver one range."""
        self._start()

    def _start(self) -> None:
        self._turns = threading.Semaphore(getattr(self._storage, "max_parallel_reads", 1))
        self._known: dict[int, _Machine] = {}
        self._hits: set[int] = set()
        self._pid = os.getpid()  # last: until then, other threads start too

    def _check_process(self) -> None:
        """Let go of what a fork has copied: connections, and locks that threads of the parent may have held."""
        if self._pid != os.getpid():
            self._start()

    def ranges_of(self, sample_id: int, ranges: list[ByteRange]) -> list[ByteRange]:
        """Return the ranges of a sample. If another machine keeps it, they are read there."""
        machine = self._kept_by(sample_id)
        if machine is None:
            return ranges
        return [KeptElsewhere(item.path, item, machine, sample_id, part) for part, item in enumerate(ranges)]

    def was_hit(self, sample_id: int) -> bool:
        """Return whether another machine had a sample in its cache when it was read. Ask once for each use."""
        try:
            self._hits.remove(sample_id)
        except KeyError:
            return False
        return True

    def share_files(self) -> None:
        """Share what the storage below shares; see `SharingStorage`."""
        if isinstance(self._storage, SharingStorage):
            self._storage.share_files()

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`. Errors are those of the storage below."""
        return [self._read(item, self._read_source) for item in ranges]

    def read_wanted(self, item: ByteRange, is_wanted: Callable[[], bool]) -> bytes:
        """Read a range as `read` does. A request that has failed is only repeated while the range is wanted."""
        read = self._read_source
        if self._remote is not None:
            read = partial(self._remote.read_wanted, is_wanted=is_wanted)
        return self._read(item, read)

    def read_again(self, item: ByteRange) -> bytes:
        """Read a range that another thread is reading, from its source. Errors are those of `read`."""
        read = self._read_source if self._remote is None else self._remote.read_again
        return self._form(item, read(_source_of(item)))

    def may_read_again(self, item: ByteRange) -> bool:
        """Return whether the source of a range can bear a second read: a storage behind a network, of its own."""
        return self._remote is not None and self._remote.may_read_again(_source_of(item))

    def _read_source(self, item: ByteRange) -> bytes:
        self._check_process()
        with self._turns:
            return self._storage.read([item])[0]

    def _read(self, item: ByteRange, read: Callable[[ByteRange], bytes]) -> bytes:
        if not isinstance(item, KeptElsewhere):
            return read(item)
        kept = self._asked(item)
        return self._form(item, read(item.source)) if kept is None else kept

    def _form(self, item: ByteRange, data: bytes) -> bytes:
        """Return the bytes of a source in the form that caches keep, so that pixels do not depend on who read it."""
        return data if self._compact is None or not isinstance(item, KeptElsewhere) else self._compact(data)

    def _asked(self, item: KeptElsewhere) -> bytes | None:
        """Return what a machine keeps; None if it does not answer, or has no valid entry."""
        self._check_process()
        machine = self._known.get(item.machine) or self._known.setdefault(item.machine, self._met(item.machine))
        began = time.monotonic()
        limit_seconds = machine.limit_seconds(began)
        if not limit_seconds:
            return None
        try:
            data, is_hit = self._answer(machine, item, began=began, limit_seconds=limit_seconds)
        except RequestFailure as failure:
            if machine.failed(began=began, now=time.monotonic()):
                text = (
                    f"{machine.url}: the cache of this machine is not read: {failure}. Meanwhile its samples are read "
                    "from their source, and it is asked again from time to time"
                )
                self._notices.send(
                    Notice(place=machine.url, is_outage=True, text=text, answered_at=machine.answered_at)
                )
            return None
        if machine.answered(began=began, now=time.monotonic()):
            text = f"{machine.url}: the cache of this machine is read again"
            self._notices.send(Notice(place=machine.url, is_outage=False, text=text))
        if is_hit:
            self._hits.add(item.sample_id)
        return data

    def _met(self, number: int) -> _Machine:
        # Imported here: TLS and HTTP would cost every worker that reads local files 3 MB and 30 ms.
        from mpload.storage.connections import Server  # noqa: PLC0415

        return _Machine(
            url=self._machines.urls[number], server=Server(self._machines.urls[number], may_use_proxy=False)
        )

    def _answer(
        self, machine: _Machine, item: KeptElsewhere, *, began: float, limit_seconds: float
    ) -> tuple[bytes | None, bool]:
        """Return the bytes of a source, and whether the machine's cache had them.

        Raises:
            RequestFailure: the machine does not answer as it should.
        """
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        from mpload.storage.connections import Until  # noqa: PLC0415
        from mpload.storage.web_failures import failure_of  # noqa: PLC0415

        path = f"{CACHED_PATH}/{self._key:016x}/{item.sample_id}/{item.part}"
        step = "answer"
        try:
            headers = {**self._headers, MACHINE_HEADER: f"{item.machine} of {len(self._machines.urls)}"}
            response = machine.server.get(path, headers, Until(began + limit_seconds, connect=_CONNECT_SECONDS))
            step = "rest of the answer"
            try:
                return self._entry(response, item)
            finally:
                if response.length_remaining == 0:
                    response.drain_conn()  # so that its connection can be used again
                response.close()
        except (HTTPError, OSError, ValueError, OverflowError) as error:
            failure = failure_of(error, machine.url, step=step, seconds=limit_seconds, connect_seconds=_CONNECT_SECONDS)
        except MemoryError:
            failure = RequestFailure("answer is too large")
        raise failure

    def _entry(self, response: "BaseHTTPResponse", item: KeptElsewhere) -> tuple[bytes | None, bool]:
        status = response.status
        if status in {HTTPStatus.NO_CONTENT, HTTPStatus.SERVICE_UNAVAILABLE}:  # it has too much to do
            response.read()
            return None, False
        if status != HTTPStatus.OK:
            raise RequestFailure(f"status {status}", _ADVICE.get(status, ""))
        from mpload.storage.web_failures import CUT_SHORT  # noqa: PLC0415

        head = read_head(response.read(HEAD_BYTES), key=self._key)
        if head is None or (head.sample_id, head.stamp) != (item.sample_id, item.part):
            raise RequestFailure("answer is no entry", ": is this the URL of a server of mpload?")
        if response.length_remaining != head.payload_bytes:
            raise RequestFailure("answer is no entry", ": it is longer or shorter than it says")
        data = response.read(head.payload_bytes)
        if len(data) < head.payload_bytes:
            raise RequestFailure(*CUT_SHORT)
        if not payload_fits(head, data, key=self._key):
            raise RequestFailure("answer is damaged", ": its checksum is wrong")
        return data, response.headers.get(HIT_HEADER) == "hit"


class _KeepingCaches(OtherCaches):
    """Over a storage that keeps more in memory than what was requested."""

    _storage: Any

    def needed_bytes(self, item: ByteRange) -> int:
        """Return the memory that is needed to read a range."""
        return int(self._storage.needed_bytes(_source_of(item)))

    def bound(self, max_bytes: int) -> None:
        """Bound the memory that is used from now on."""
        self._storage.bound(max_bytes)


_ADVICE: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: ": the server wants another token. Pass token=, the one that `mpload serve` has",
    HTTPStatus.NOT_FOUND: ": the server shares no cache. Its dataset needs cache=PartialCache(..., machines=[...])",
    HTTPStatus.CONFLICT: (
        ": the server has another index, another #root or form of the cache, or another list of machines. Serve the "
        "same dataset, and list the machines in the same order"
    ),
}


def other_caches(storage: Storage, *arguments: Any, **options: Any) -> OtherCaches:
    """Return what reads from the other machines, and from `storage`. The arguments are those of `OtherCaches`."""
    kind = _KeepingCaches if isinstance(storage, KeepingStorage) else OtherCaches
    return kind(storage, *arguments, **options)


def _source_of(item: ByteRange) -> ByteRange:
    return item.source if isinstance(item, KeptElsewhere) else item
