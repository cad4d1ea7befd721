"""Reads objects at URLs through libcurl, many at once in one thread, as long as everything is as usual."""

import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

import pycurl

from mpload.storage.object_facts import Seen
from mpload.storage.proxies import proxy_of
from mpload.storage.read_threads import ReadThreads
from mpload.storage.request_failure import RequestFailure, seconds_of, status_failure
from mpload.storage.transfers import Answer, Transfers
from mpload.units import MIB

__all__ = ["Found", "QuickReads", "is_direct"]

_HEADERS = ["Accept: */*", "Accept-Encoding: identity"]
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_MAX_BYTES = 32 * MIB
"""Larger objects are left to the other client, since the parts of an answer and its whole take twice the memory."""
_MAX_REFUSED = 3
_FORGIVEN = 1 / 16
"""So much of a refusal is forgiven with each answer that is as usual."""
_NO_ANSWER = RequestFailure("no answer")
_NO_ANSWER_CODES = {
    pycurl.E_COULDNT_CONNECT,
    pycurl.E_COULDNT_RESOLVE_HOST,
    pycurl.E_GOT_NOTHING,
    pycurl.E_OPERATION_TIMEDOUT,
    pycurl.E_PARTIAL_FILE,
    pycurl.E_RECV_ERROR,
    pycurl.E_SEND_ERROR,
}
_RETRY_AFTER = b"retry-after:"
_OUTAGE_SECONDS = 5.0
_SLOW_SECONDS = 1.0
_UNUSUAL = {"content-encoding", "transfer-encoding", "trailer"}


class Found(Protocol):
    """Called with what was found."""

    def __call__(self, data: bytes | None, failure: RequestFailure | None = None, *, is_unusual: bool = False) -> None:
        """Take the bytes. None means that there are none, perhaps because of a failure, or of an unusual answer."""
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
        is_bucket: whether the other client is obstore.
        may_wait: whether `address_of` may wait, such as for credentials. Then a thread calls it.

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
        is_bucket: bool,
        may_wait: bool,
    ) -> None:
        self._url = url
        self._address_of = address_of
        self._connect_seconds = connect_seconds
        self._max_bytes = max_bytes
        self._seen = seen
        self._is_bucket = is_bucket
        self._signing = ReadThreads(max_threads=1) if may_wait else None
        self._num_refused = 0.0
        self._failed_at = float("-inf")  # when a failure last counted as a refusal
        self._signing_since = float("inf")  # when the thread began to sign an address
        self._is_direct: bool | None = None  # whether libcurl can reach the server, once that is known

    @property
    def is_usual(self) -> bool:
        """Whether the server is to be asked."""
        return self._num_refused < _MAX_REFUSED

    def refused(self, *, is_failure: bool) -> None:
        """Note that the other client has read what this one could not, be it because of a failure or not.

        An outage, which many reads meet, counts once.
        """
        now = time.monotonic()
        if not is_failure or now - self._failed_at > _OUTAGE_SECONDS:
            self._num_refused += 1
        if is_failure:
            self._failed_at = now

    def begin(self, key: str, span: tuple[int, int] | None, *, limit_seconds: float, found: Found) -> bool:
        """Begin to read an object, or a span of it. Return whether that was possible.

        Args:
            key: the object's key.
            span: what to read: (offset, length); None means the whole object.
            limit_seconds: time limit for the whole request.
            found: called in another thread.
        """
        if span is not None and span[1] > _MAX_BYTES:
            return False
        until = time.monotonic() + limit_seconds
        if self._signing is None:
            address = self._address(key)
            return address is not None and self._request(address, key, span, until, found)
        is_slow = time.monotonic() - self._signing_since > _SLOW_SECONDS
        if is_slow or self._is_direct is False or not self._signing.start(1):
            return False
        self._signing.put(partial(self._sign_and_request, key, span, until, found))
        return True

    def _sign_and_request(self, key: str, span: tuple[int, int] | None, until: float, found: Found) -> None:
        is_begun = False
        self._signing_since = time.monotonic()
        try:
            if self.is_usual and time.monotonic() < until:
                address = self._address(key)
                is_begun = address is not None and self._request(address, key, span, until, found)
        finally:  # a panic of obstore's is no Exception
            self._signing_since = float("inf")
            if not is_begun:
                found(None)

    def _request(self, address: str, key: str, span: tuple[int, int] | None, until: float, found: Found) -> bool:
        transfers = Transfers.of_process()
        if transfers is None or time.monotonic() >= until:
            return False
        headers, max_bytes = _HEADERS, min(_MAX_BYTES, self._max_bytes or _MAX_BYTES)
        if span is not None:
            max_bytes = span[1]
            headers = [*_HEADERS, f"Range: bytes={span[0]}-{span[0] + span[1] - 1}"]

        def done(result: Answer | int) -> None:
            data, failure, is_large = None, None, False
            with suppress(Exception):  # such as a shard that was replaced: the other client raises it
                if isinstance(result, int):
                    failure = _NO_ANSWER if result in _NO_ANSWER_CODES else None
                else:
                    failure, is_large = _failure_of(result), span is None and _is_large(result)
                    data = None if failure else self._data_of(result, key, span)
            if data is not None:
                self._num_refused = max(0.0, self._num_refused - _FORGIVEN)
            found(data, failure, is_unusual=data is None and failure is None and not is_large)

        return transfers.begin(
            address,
            headers=headers,
            max_bytes=max_bytes,
            until=until,
            connect_seconds=self._connect_seconds,
            done=done,
        )

    def _address(self, key: str) -> str | None:
        try:
            address = self._address_of(key)
        except Exception:  # noqa: BLE001  such as a lack of credentials, which the other client names
            self._num_refused += 1
            return None
        if self._is_direct is None:
            self._is_direct = is_direct(address, is_bucket=self._is_bucket)
        return address if self._is_direct else None

    def _data_of(self, answer: Answer, key: str, span: tuple[int, int] | None) -> bytes | None:
        """Return the body of an answer; None if it is not as usual."""
        headers = _headers_of(answer.headers)
        if headers is None or headers.get("content-type", "").lower().startswith("text/html"):
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
        if self._is_bucket:  # obstore's answers are compared by their ETags
            if not etag:
                return None
            modified = ""
        elif modified == headers.get("date"):  # the time of the answer
            modified = ""
        self._seen(f"{self._url}/{key}", etag=etag, modified=modified, num_bytes=num_bytes)
        return data


def is_direct(address: str, *, is_bucket: bool) -> bool:
    """Return whether libcurl reaches a URL as the other client does, and trusts the same certificates.

    It does not through a proxy, nor for names below `localhost`, which libcurl takes for this machine.
    The variables for certificates mean the same for urllib3 if each names one file or folder, but never for obstore.
    """
    parts = urlsplit(address)
    if proxy_of(address) is not None or (parts.hostname or "").rstrip(".").endswith(".localhost"):
        return False
    if parts.scheme == "http":
        return True
    paths = ssl.get_default_verify_paths()
    if is_bucket and (paths.openssl_cafile_env in os.environ or paths.openssl_capath_env in os.environ):
        return False
    named = [(os.environ.get(paths.openssl_cafile_env), paths.cafile)]
    named += [(os.environ.get(paths.openssl_capath_env), paths.capath)]
    return any(found for _, found in named) and all(name in {None, found} for name, found in named)


def _failure_of(answer: Answer) -> RequestFailure | None:
    """Return why the server cannot serve anything now; None if it can, though perhaps not this object."""
    if answer.status < HTTPStatus.BAD_REQUEST:
        return None
    values = [line[len(_RETRY_AFTER) :] for line in answer.headers if line.lower().startswith(_RETRY_AFTER)]
    failure = status_failure(
        answer.status, wait_seconds=seconds_of(values[-1].decode("latin-1").strip()) if values else None
    )
    return failure if failure.is_temporary else None


def _is_large(answer: Answer) -> bool:
    """Return whether an answer was cut off because the object is large, as some are."""
    size = (_headers_of(answer.headers) or {}).get("content-length", "")
    return size.isdecimal() and int(size) > _MAX_BYTES


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
        if name != name.strip() or (name in headers and name != "set-cookie"):
            return None
        headers[name] = value.strip()
    return None if any(name in headers for name in _UNUSUAL) else headers
