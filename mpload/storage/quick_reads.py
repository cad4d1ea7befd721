"""Reads objects at URLs through libcurl, many at once in one thread, as long as everything is as usual."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from mpload.errors import MploadError
from mpload.storage.object_facts import Seen
from mpload.storage.transfers import Answer, Transfers

__all__ = ["Found", "QuickReads"]

_HEADERS = ["Accept: */*", "Accept-Encoding: identity"]
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_MAX_REFUSED = 3
_UNUSUAL = {"content-encoding", "transfer-encoding", "trailer"}


class Found(Protocol):
    """Called with what was found."""

    def __call__(self, data: bytes | None, *, is_answer: bool) -> None:
        """Take the bytes; None means that there are none, be it that the server answers or not."""
        ...


class QuickReads:
    """Reads from one server, or bucket. What is not as usual is left to the client that can do everything.

    As usual means: no proxy, no redirect, an answer of the length that it names, not compressed, no web page, and for a
    span exactly the bytes that were requested. A server that is unusual several times is left to the other client.

    Args:
        url: the URL of the server, or bucket.
        address_of: returns the URL with which a key is requested.
        connect_seconds: time limit for a connection to be made.
        max_bytes: size of the largest object that may be read; None means no limit.
        seen: called with the URL and the version of each shard that a span was read from.
        needs_etag: whether only the ETag tells the versions of a shard.

    Process: for the process in which it was made. Any thread may use it.
    """

    def __init__(
        self,
        url: str,
        address_of: Callable[[str], str],
        *,
        connect_seconds: float,
        max_bytes: int | None,
        seen: Seen,
        needs_etag: bool,
    ) -> None:
        self._url = url
        self._address_of = address_of
        self._connect_seconds = connect_seconds
        self._max_bytes = max_bytes
        self._seen = seen
        self._needs_etag = needs_etag
        self._num_refused = 0
        self._is_direct: bool | None = None  # whether there is no proxy, once that is known

    @property
    def is_usual(self) -> bool:
        """Whether the server is to be asked."""
        return self._num_refused < _MAX_REFUSED

    def refused(self) -> None:
        """Note that the other client has read what this one could not."""
        self._num_refused += 1

    def begin(self, key: str, span: tuple[int, int] | None, *, limit_seconds: float, found: Found) -> bool:
        """Begin to read an object, or a span of it. Return whether that was possible.

        Args:
            key: the object's key.
            span: what to read: (offset, length); None means the whole object.
            limit_seconds: time limit for the whole request.
            found: called in another thread.
        """
        transfers = Transfers.of_process()
        address = self._address(key)
        if transfers is None or address is None:
            return False
        headers, max_bytes = _HEADERS, self._max_bytes or 0
        if span is not None:
            max_bytes = span[1]
            headers = [*_HEADERS, f"Range: bytes={span[0]}-{span[0] + span[1] - 1}"]

        def done(answer: Answer | None) -> None:
            data = None
            with suppress(MploadError, ValueError):  # a shard that was replaced: the other client raises that
                data = None if answer is None else self._data_of(answer, key, span)
            found(data, is_answer=answer is not None)

        return transfers.begin(
            address,
            headers=headers,
            max_bytes=max_bytes,
            until=time.monotonic() + limit_seconds,
            connect_seconds=self._connect_seconds,
            done=done,
        )

    def _address(self, key: str) -> str | None:
        try:
            address = self._address_of(key)
        except Exception:  # noqa: BLE001  whatever it is, such as no credentials, the other client meets it too
            self._num_refused += 1
            return None
        if self._is_direct is None:
            self._is_direct = _is_direct(address)
        return address if self._is_direct else None

    def _data_of(self, answer: Answer, key: str, span: tuple[int, int] | None) -> bytes | None:
        """Return the body of an answer; None if it is not as usual."""
        headers = _headers_of(answer.headers)
        if headers is None or headers.get("content-type", "").startswith("text/html"):
            return None
        data = answer.body
        if headers.get("content-length") != str(len(data)):
            return None
        if span is None:
            return data if answer.status == HTTPStatus.OK else None
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if answer.status != HTTPStatus.PARTIAL_CONTENT or match is None or len(data) != span[1]:
            return None
        first, last, num_bytes = map(int, match.groups())
        if (first, last + 1) != (span[0], sum(span)):
            return None
        etag, modified = headers.get("etag", ""), headers.get("last-modified", "")
        if self._needs_etag:
            if not etag:
                return None
            modified = ""
        elif modified == headers.get("date"):  # the time of the answer
            modified = ""
        self._seen(f"{self._url}/{key}", etag=etag, modified=modified, num_bytes=num_bytes)
        return data


def _is_direct(address: str) -> bool:
    """Return whether the environment names no proxy for a URL, and libcurl knows its scheme."""
    proxies = getproxies_environment()
    return proxies.get(urlsplit(address).scheme) is None and "all" not in proxies


def _headers_of(lines: Sequence[bytes]) -> dict[str, str] | None:
    """Return the headers of an answer, by name in lower case; None if there are unusual ones, or one twice."""
    headers = dict[str, str]()
    for line in lines:
        if line.startswith(b"HTTP/"):
            headers.clear()
            continue
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            continue
        name = name.lower()
        if name in headers and name != "set-cookie":
            return None
        headers[name] = value.strip()
    return None if any(name in headers for name in _UNUSUAL) else headers
