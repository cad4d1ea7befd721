"""Reads objects at s3, gs, az, http and https URLs, and copes with servers that fail.

Credentials come only from the provider's usual sources. An index never contains credentials. Errors never quote the
messages of servers or clients, because these can contain signed requests.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mpload.errors import ArgumentError, MploadError, OutsideRootError, StorageError
from mpload.storage.buckets import (
    PARALLEL_LISTS,
    can_list_ranges,
    list_bucket,
    list_level,
    refuse_leading_slashes,
)
from mpload.storage.clients import load_libraries, new_client
from mpload.storage.first_seen import FirstSeen
from mpload.storage.notices import Notices
from mpload.storage.object_facts import ObjectFacts, unseen
from mpload.storage.ranges import ByteRange
from mpload.storage.request_failure import RequestFailure
from mpload.storage.retrying import Rest, RetryingClient
from mpload.storage.servers import Limits, What
from mpload.storage.urls import check_url, climbs, is_url, redacted
from mpload.units import format_count

__all__ = [
    "RemoteObjects",
    "RemoteStorage",
    "is_listed_in_ranges",
    "list_folders",
    "list_objects",
]

_MAX_CONNECT_SECONDS = 10.0
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStorage:
    """The time limits for reading objects at URLs. Pass it as `storage` to an `MPDataset`.

    A request that fails is repeated, with increasing waits, until `retry_seconds` are over. A server that sends a
    `Retry-After` is not asked again before that time (obstore, which makes most requests to buckets, does not show it).
    If other objects of the server can be read meanwhile, the object is bad, which the error policy handles: after seven
    requests, which take about five seconds if each fails at once. If not, it is an outage: no sample is skipped, and
    after `retry_seconds` an `OutageError` ends the epoch.

    Each worker has as many requests in progress as samples are used while one takes place, up to 128. A request that is
    late, compared with others of its size, is made a second time, and the first answer counts. That adds at most 2 % of
    requests, and none for some seconds after a request to the server has failed.

    A connection must be made within half of `request_timeout_seconds`, and within 10 seconds. The time in which the
    server is read counts in addition to `PoolOptions.sample_timeout_seconds`.

    Raises:
        ArgumentError: a limit is not positive, or a request may take as long as all of its repetitions.
    """

    request_timeout_seconds: float = 30.0
    """Time limit for one request, from its beginning to the last byte of the answer. An answer that comes slowly is
    cut off too, so this must allow for the largest object."""
    retry_seconds: float = 90.0
    """Time limit for reading an object or span, with all repetitions of the request. An outage counts once for all
    reads that it delays."""

    def __post_init__(self) -> None:
        if not 0 < self.request_timeout_seconds < self.retry_seconds < float("inf"):
            raise ArgumentError(
                "RemoteStorage: 0 < request_timeout_seconds < retry_seconds must hold, got "
                f"request_timeout_seconds={self.request_timeout_seconds:g} and retry_seconds={self.retry_seconds:g}"
            )


class RemoteObjects:
    """Reads objects, and spans of them, below a URL.

    Args:
        root: the URL that paths are relative to.
        limits: the time limits; None means the default ones.
        allow_outside_root: allow paths that are URLs outside `root`.
        max_bytes: size of the largest object or span that may be read; None means no limit.
        examples: returns a few ranges of which most should be readable. They help to tell an outage from a bad object.
        notices: is told about outages before they lead to errors.

    A shard must not change while it is read. Each answer for a span is compared with the first one that this process
    received or, after `share_files`, that any of the processes received.

    Memory: the bytes that `read` returns, and about 10 MB for the client of buckets.
    Process: may be pickled, and may be forked before the first read. Each process makes its own clients. Any thread may
    read.

    Raises:
        ArgumentError: `root` is not a URL that can be read, or contains a secret.
    """

    max_parallel_reads = 128
    """The number of requests in progress follows the latency; this is the maximum for each process."""

    def __init__(
        self,
        root: str,
        *,
        limits: RemoteStorage | None = None,
        allow_outside_root: bool = False,
        max_bytes: int | None = None,
        examples: Callable[[], Iterable[ByteRange]] = tuple,
        notices: Notices | None = None,
    ) -> None:
        if is_url(root):
            check_url(root)
        limits = limits or RemoteStorage()
        self._root = root.rstrip("/")
        self._allow_outside_root = allow_outside_root
        self._max_bytes = max_bytes
        self._examples = examples
        self._notices = notices
        self._limits = Limits(
            connect_seconds=min(_MAX_CONNECT_SECONDS, limits.request_timeout_seconds / 2),
            request_seconds=limits.request_timeout_seconds,
            retry_seconds=limits.retry_seconds,
        )
        self.max_read_seconds = 1.2 * limits.retry_seconds
        """The longest time that a read of one range takes."""
        self._first_seen: FirstSeen | None = None
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._servers: dict[str, RetryingClient] = {}

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`.

        Raises:
            ArgumentError: obstore, which reads buckets, is not installed.
            IndexChangedError: a shard was replaced.
            OutsideRootError: a URL leads outside the root.
            OutageError: a server does not answer.
            StorageError: bytes cannot be read.
        """
        return [self._read(item, RetryingClient.fetch) for item in ranges]

    def share_files(self) -> None:
        """Let all processes that are forked from this one read the same objects; see `SharingStorage`.

        They also share the memory of the libraries that reading needs.
        """
        if is_url(self._root):
            load_libraries(self._root)
        with suppress(OSError):
            self._first_seen = FirstSeen()

    def read_wanted(self, item: ByteRange, is_wanted: Callable[[], bool]) -> bytes:
        """Read a range as `read` does. A request that has failed is only repeated while the range is wanted."""
        return self._read(item, partial(RetryingClient.fetch, is_wanted=is_wanted))

    def begin(
        self,
        item: ByteRange,
        is_wanted: Callable[[], bool],
        ended: Callable[[bytes | None, Callable[[], bytes] | None], None],
    ) -> bool:
        """Begin to read a range, without waiting; see `BeginningReads`."""

        def goes_on(data: bytes | None, rest: Rest | None) -> None:
            ended(data, None if rest is None else partial(self._read, item, partial(rest, is_wanted=is_wanted)))

        try:
            url = self._url(item.path)
            if item.length_bytes is not None:
                self._check_size(url, item.length_bytes)
            return item.length_bytes != 0 and self._ask(
                url, lambda server, key: server.begin(key, _span(item), goes_on)
            )
        except MploadError:  # `read_wanted` raises it
            return False

    def read_again(self, item: ByteRange) -> bytes:
        """Read a range that another thread is reading, with one request. Errors are those of `read`."""
        return self._read(item, RetryingClient.fetch_once)

    def may_read_again(self, item: ByteRange) -> bool:
        """Return whether no request to the server of a range has failed for some seconds."""
        server = self._servers.get(_split(self._url(item.path))[0])
        return server is not None and server.is_calm

    def _read(self, item: ByteRange, fetch: Callable[[RetryingClient, str, tuple[int, int] | None], bytes]) -> bytes:
        url = self._url(item.path)
        if item.length_bytes is not None:
            self._check_size(url, item.length_bytes)
            if not item.length_bytes:
                return b""
        data = self._ask(url, lambda server, key: fetch(server, key, _span(item)))
        if item.length_bytes is not None and len(data) < item.length_bytes:
            raise StorageError(
                f"{redacted(url)}: the span {item.offset_bytes}+{item.length_bytes} ends at byte "
                f"{format_count(item.offset_bytes + item.length_bytes)}, past the end of the object. Was it uploaded "
                "completely? If so, build the index again"
            )
        return data

    def look_up(self, path: str) -> ObjectFacts:
        """Return the size and the version of an object, as far as the server says. Errors are those of `read`."""
        return self._ask(self._url(path), RetryingClient.look_up)

    def _ask(self, url: str, request: Callable[[RetryingClient, str], _Answer]) -> _Answer:
        """Return the answer to a request for the object at `url`."""
        if self._pid != os.getpid():
            self._start()
        place, key = _split(url)
        try:
            server = self._servers.get(place) or self._servers.setdefault(place, self._new_server(place))
            return request(server, key)
        except (ArgumentError, StorageError) as error:
            failure = type(error)(f"{redacted(url)}: {error}")
            if isinstance(failure, StorageError) and isinstance(error, StorageError):
                failure.errno = error.errno
        raise failure  # outside `except`, so that the original is not its context

    def _new_server(self, place: str) -> RetryingClient:
        if self._first_seen is None:
            self.share_files()
        seen = unseen if self._first_seen is None else self._first_seen.check_object
        return new_client(
            place,
            self._limits,
            max_bytes=self._max_bytes,
            seen=seen,
            examples=partial(self._examples_at, place),
            notices=self._notices,
        )

    def _examples_at(self, place: str) -> list[What]:
        found = list[What]()
        with suppress(MploadError, OSError):  # the index has changed, which readers of it will say
            for item in self._examples():
                other, key = _split(self._url(item.path))
                if other == place and item.length_bytes != 0:
                    found.append((key, _span(item)))
        return found

    def _url(self, path: str) -> str:
        if not is_url(path):
            if path[:1] == "/" or climbs(path):
                raise OutsideRootError(
                    f"{redacted(path)}: leads outside of the root {self._root}. Fix this line of the index"
                )
            if not path or not is_url(self._root):
                raise StorageError(f"{redacted(path)!r} is not a URL. Fix this line of the index")
            return f"{self._root}/{path}"
        check_url(path)
        if not self._allow_outside_root and (not path.startswith(f"{self._root}/") or climbs(path)):
            raise OutsideRootError(
                f"{redacted(path)}: lies outside of the root {self._root}. Set #root of the index to a URL that holds "
                "all objects or, if you trust the index, open it by open_index(..., allow_outside_root=True)"
            )
        return path

    def _check_size(self, url: str, num_bytes: int) -> None:
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            raise StorageError(
                f"{redacted(url)}: is not read: its {format_count(num_bytes)} bytes exceed "
                f"max_bytes={format_count(self._max_bytes)}. Raise that limit, or remove the sample from the index"
            )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in {"_servers", "_first_seen"}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._first_seen = None
        self._start()


def list_objects(
    url: str, *, after: str = "", up_to: str | None = None, num_threads: int = PARALLEL_LISTS
) -> Iterator[tuple[str, int]]:
    """Yield the path relative to `url` and the size in bytes of each object below `url`, in no particular order.

    An S3 bucket can be listed from any key, so several threads list parts of it. Others are listed from the first key
    to the last.

    Args:
        url: the URL of a bucket or a folder in it.
        after: only paths after this text. This and `up_to` take a URL of which `is_listed_in_ranges` is true.
        up_to: only paths up to this text, which is included; None means all.
        num_threads: number of threads.

    Memory: a few pages of the list.

    Raises:
        ArgumentError: the URL cannot be listed, or obstore is not installed.
        StorageError: the bucket cannot be read.
    """
    bucket, prefix = _listable(url)
    with _failures_of(url):
        if not prefix and not after:
            refuse_leading_slashes(bucket)
        yield from list_bucket(bucket, prefix, after=after, up_to=up_to, num_threads=num_threads)


def is_listed_in_ranges(url: str) -> bool:
    """Return whether the objects below a URL can be listed from any path."""
    return can_list_ranges(*_listable(url))


def list_folders(url: str, start: str = "", *, at_any_cost: bool = False) -> list[str]:
    """Return the folders directly in the folder `start` below `url`, as paths relative to `url`, which end in a slash.

    Args:
        url: the URL of a bucket or a folder in it.
        start: a folder below `url`, which ends in a slash, or empty.
        at_any_cost: read more pages of the list even if the first one has no folder.

    Memory: the names of the folders, and of the objects beside them.

    Raises:
        ArgumentError: the URL cannot be listed, or obstore is not installed.
        StorageError: the bucket cannot be read.
    """
    bucket, prefix = _listable(url)
    with _failures_of(url):
        if not prefix + start:
            refuse_leading_slashes(bucket)
        return [f"{start}{name}/" for name in list_level(bucket, prefix + start, at_any_cost=at_any_cost)]


def _listable(url: str) -> tuple[str, str]:
    check_url(url)
    if url.startswith("http"):
        raise ArgumentError(
            f"{url}: objects at http URLs cannot be listed. List their paths in a text file, and index that file "
            "with this URL as its root"
        )
    return _split(f"{url.rstrip('/')}/")


@contextmanager
def _failures_of(url: str) -> Iterator[None]:
    """Raise failures of a bucket as errors that name the URL."""
    failure: MploadError | None = None
    try:
        yield
    except RequestFailure as error:
        failure = StorageError(f"{redacted(url)}: {error}")
    except (ArgumentError, StorageError) as error:
        failure = type(error)(f"{redacted(url)}: {error}")
    if failure is not None:
        raise failure


def _span(item: ByteRange) -> tuple[int, int] | None:
    return None if item.length_bytes is None else (item.offset_bytes, item.length_bytes)


def _split(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key
