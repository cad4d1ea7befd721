"""Reads objects, and spans of them, at http and https URLs.

obstore, which reads buckets, hides the headers of failed answers, such as Retry-After. It can read neither answers
without a Content-Length nor from servers that ignore ranges.
"""

import gzip
import re
import time
import zlib
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from urllib3 import BaseHTTPResponse, HTTPHeaderDict
from urllib3.exceptions import HTTPError

from mpload.errors import StorageError
from mpload.storage.connections import Server, Until
from mpload.storage.object_facts import ObjectFacts, Seen, unseen
from mpload.storage.request_failure import RequestFailure, seconds_of, status_failure, too_long
from mpload.storage.web_failures import CUT_SHORT, failure_of
from mpload.units import KIB, MIB, format_count

__all__ = ["WebClient", "address_of"]

_HEADERS = {"User-Agent": "mpload", "Accept": "*/*", "Accept-Encoding": "identity"}
_MAX_REST_BYTES = 64 * KIB  # of an answer that is read to its end, so that its connection can be used again
_MAX_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_MAX_BEFORE_SPAN_BYTES = 16 * MIB
"""Bytes that are read from the beginning of an object to get at a span, if the server ignores ranges."""
_SAFE = "/!$&'()*+,;=:@~-._%"  # characters of a path that stand for themselves
_ASCII = "".join(map(chr, range(128)))
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_PAGE = (
    "answer is a web page",
    ", not the file: the server says text/html. Does it ask for a login, or report an error?",
)
_FILES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".npy", ".tar", ".zip")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """What an answer brought."""

    data: bytes
    has_end: bool
    """Whether the answer says where it ends. Otherwise a broken connection looks the same as its end."""
    headers: HTTPHeaderDict


class WebClient:
    """Reads from the web servers that URLs name. Connections are kept and used again.

    Args:
        connect_seconds: time limit for a connection to be made.
        max_bytes: size of the largest object that may be read; None means no limit.
        seen: called with the URL and the version of each shard that a span was read from.

    Process: for the process in which it was made. Any thread may read.
    """

    def __init__(self, *, connect_seconds: float, max_bytes: int | None, seen: Seen = unseen) -> None:
        self._connect_seconds = connect_seconds
        self._max_bytes = max_bytes
        self._seen = seen
        self._servers: dict[str, Server] = {}

    def fetch(self, url: str, key: str, span: tuple[int, int] | None, *, limit_seconds: float) -> bytes:
        """Return the bytes of an object, or of a span of it: (offset, length). A span may end early.

        Args:
            url: the URL of the server, without a path.
            key: the path, as in a URL. Characters that must be percent-encoded may be, but need not.
            span: what to read; None means the whole object.
            limit_seconds: time limit for the whole request.

        Raises:
            RequestFailure: the request failed.
            StorageError: the object is larger than `max_bytes`.
        """
        deadline = time.monotonic() + limit_seconds
        address = address_of(url, key)
        body = self._follow(address, span, deadline=deadline, limit_seconds=limit_seconds)
        if not body.has_end:
            again = self._follow(address, span, deadline=deadline, limit_seconds=limit_seconds)
            if again.data != body.data:
                raise RequestFailure(
                    "answer without a length",
                    ": the server sends neither Content-Length nor chunks, and two answers differ. Enable one of them",
                )
        if span is not None:
            headers = body.headers
            etag, modified = headers.get("etag", ""), headers.get("last-modified", "")
            if modified == headers.get("date"):  # the time of the answer
                modified = ""
            size = _size_of(headers)
            self._seen(f"{url}/{key}", etag=etag, modified=modified, num_bytes=-1 if size is None else size)
        return body.data

    def look_up(self, url: str, key: str, *, limit_seconds: float) -> ObjectFacts:
        """Return the size and the version of an object, as far as the server says. Arguments are those of `fetch`.

        Raises:
            RequestFailure: the request failed, or the answer is a web page.
        """
        deadline = time.monotonic() + limit_seconds
        address = address_of(url, key)
        # Some servers refuse HEAD, and the first byte brings the same headers.
        headers = self._follow(address, (0, 1), deadline=deadline, limit_seconds=limit_seconds).headers
        if _is_page(headers):
            raise RequestFailure(*_PAGE, is_temporary=False)
        size = _size_of(headers)
        version = headers.get("etag") or headers.get("last-modified")
        return ObjectFacts(num_bytes=size, version=f"{version} {'*' if size is None else size}" if version else "")

    def _follow(self, address: str, span: tuple[int, int] | None, *, deadline: float, limit_seconds: float) -> _Body:
        for _ in range(_MAX_REDIRECTS + 1):
            result = self._ask(address, span, deadline=deadline, limit_seconds=limit_seconds)
            if isinstance(result, _Body):
                return result
            target = _joined(address, result)
            if target is None:
                raise RequestFailure("redirect to another kind of URL", is_temporary=False)
            address = target
        raise RequestFailure("redirect loop", f": more than {_MAX_REDIRECTS} redirects", is_temporary=False)

    def _ask(self, address: str, span: tuple[int, int] | None, *, deadline: float, limit_seconds: float) -> _Body | str:
        """Return the body of an answer, or the address that it redirects to."""
        headers = _HEADERS if span is None else {**_HEADERS, "Range": f"bytes={span[0]}-{span[0] + span[1] - 1}"}
        connect_seconds = min(self._connect_seconds, limit_seconds)
        timeout = Until(deadline, connect=connect_seconds)
        parts, step = urlsplit(address), "answer"
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        proxy = None
        try:
            server = self._server(parts)
            proxy = server.proxy
            response = server.get(path, headers, timeout)
            step = "rest of the answer"
            try:
                return self._read(response, parts.path, span)
            finally:
                _finish(response)
        except StorageError:
            raise
        except (HTTPError, OSError, ValueError, OverflowError) as error:  # http.client raises the last two
            failure = failure_of(
                error, address, step=step, seconds=limit_seconds, connect_seconds=connect_seconds, proxy=proxy
            )
        raise failure  # outside `except`, so that the original, which may quote the server, is not its context

    def _server(self, url: SplitResult) -> Server:
        name = f"{url.scheme}://{url.netloc}"
        return self._servers.get(name) or self._servers.setdefault(name, Server(name))

    def _read(self, response: BaseHTTPResponse, path: str, span: tuple[int, int] | None) -> _Body | str:
        status = response.status
        if status in _REDIRECTS and (address := response.headers.get("location")):
            return address
        if status not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
            raise status_failure(status, wait_seconds=seconds_of(response.headers.get("retry-after")))
        _refuse_coding(response)
        _refuse_page(response, path)
        if span is None:
            if status == HTTPStatus.PARTIAL_CONTENT:
                raise RequestFailure("answer is a part", ", though the whole object was requested", is_temporary=False)
            return self._whole(response, path)
        _refuse_encoding(response)
        if status == HTTPStatus.PARTIAL_CONTENT:
            return _part(response, span)
        return _beginning(response, span)

    def _whole(self, response: BaseHTTPResponse, path: str) -> _Body:
        has_end = _has_end(response)
        if response.length_remaining is not None:
            self._check_size(response.length_remaining)
        if response.length_remaining is not None or self._max_bytes is None:
            data = response.read()
        else:
            data = response.read(self._max_bytes + 1)
            self._check_size(len(data))
        if response.headers.get("content-encoding", "").strip().lower() in {"gzip", "x-gzip"} and not path.endswith(
            (".gz", ".tgz")
        ):
            data = self._unzipped(data)
            return _Body(data=data, has_end=has_end, headers=response.headers)
        if not path.endswith((".gz", ".tgz")):
            _refuse_encoding(response)
        return _Body(data=data, has_end=has_end, headers=response.headers)

    def _unzipped(self, data: bytes) -> bytes:
        if not data:
            raise RequestFailure("answer cut short", ": its gzip is empty")
        try:
            with gzip.GzipFile(fileobj=BytesIO(data)) as file:  # there may be several members, one after the other
                plain = file.read(-1 if self._max_bytes is None else self._max_bytes + 1)
        except EOFError:
            raise RequestFailure("answer cut short", ": its gzip has no end") from None
        except (OSError, zlib.error):
            raise RequestFailure("answer is damaged", ": it is not the gzip that its header says") from None
        self._check_size(len(plain))
        return plain

    def _check_size(self, num_bytes: int) -> None:
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            raise StorageError(
                f"is not read: its {format_count(num_bytes)} bytes exceed max_bytes={format_count(self._max_bytes)}. "
                "Raise that limit, or remove the sample from the index"
            )


def address_of(url: str, key: str) -> str:
    """Return the URL of an object. Characters of its key that must be percent-encoded may be, but need not."""
    return f"{url}/{_STRAY_PERCENT.sub('%25', quote(key, safe=_SAFE, errors='surrogateescape'))}"


def _joined(address: str, location: str) -> str | None:
    """Return the URL of a redirect; None if it is not one of the web. Its bytes may be those of UTF-8."""
    try:
        target = urljoin(address, quote(location.encode("latin-1"), safe=_ASCII))
        _ = urlsplit(target).port
    except ValueError:
        return None
    return target if target.startswith(("http://", "https://")) else None


def _finish(response: BaseHTTPResponse) -> None:
    """Let the connection be used again if little of the answer is left, otherwise close it."""
    if response.length_remaining is not None and response.length_remaining <= _MAX_REST_BYTES:
        response.drain_conn()
    response.close()


def _has_end(response: BaseHTTPResponse) -> bool:
    """Return whether the answer says where it ends. Otherwise a broken connection looks the same as its end."""
    return response.chunked or response.length_remaining is not None


def _part(response: BaseHTTPResponse, span: tuple[int, int]) -> _Body:
    """Return the body of an answer that says which bytes it brings."""
    offset, length = span
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "").strip())
    if match is None:
        raise RequestFailure(
            "answer without a Content-Range", ": the server does not say which bytes it sent", is_temporary=False
        )
    first, last = int(match[1]), int(match[2])
    is_end = match[3] != "*" and last == int(match[3]) - 1
    if first != offset or last >= offset + length or last < first or (last < offset + length - 1 and not is_end):
        raise RequestFailure(
            "wrong range",
            f": bytes {offset} to {offset + length - 1} were requested, and {first} to {last} were sent",
            is_temporary=False,
        )
    num_bytes, coming = last - first + 1, response.length_remaining
    if coming is not None and coming > num_bytes:
        raise too_long(coming, num_bytes)
    data = response.read(num_bytes)
    if len(data) < num_bytes:
        raise RequestFailure(*CUT_SHORT)
    if response.chunked and response.read(1):
        raise too_long(num_bytes + 1, num_bytes)
    return _Body(data=data, has_end=True, headers=response.headers)


def _beginning(response: BaseHTTPResponse, span: tuple[int, int]) -> _Body:
    """Return a span from an answer that brings the whole object, if it lies close to the beginning."""
    offset, length = span
    end, size, has_end = offset + length, response.length_remaining, _has_end(response)
    if end > _MAX_BEFORE_SPAN_BYTES:
        raise RequestFailure(
            "server ignores ranges",
            f": it sent the whole object{'' if size is None else f' of {format_count(size)} bytes'} instead of "
            f"{format_count(length)} bytes at {format_count(offset)}. Shards need a server that supports ranges, such "
            "as nginx or a bucket",
            is_temporary=False,
        )
    data = response.read(end)
    if len(data) < end and response.length_remaining:
        raise RequestFailure(*CUT_SHORT)
    return _Body(data=data[offset:], has_end=has_end or len(data) == end, headers=response.headers)


def _refuse_encoding(response: BaseHTTPResponse) -> None:
    """Raise if the server compresses, though every request says that it must not."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise RequestFailure(
            "answer is compressed",
            ": the server compresses what it sends, though it was asked not to. Turn off its Content-Encoding",
            is_temporary=False,
        )


def _refuse_coding(response: BaseHTTPResponse) -> None:
    """Raise if the bytes are coded on their way in another manner than as chunks."""
    codings = {each.strip().lower() for each in response.headers.get("transfer-encoding", "").split(",")}
    if codings - {"", "identity", *(["chunked"] if response.chunked else [])}:
        raise RequestFailure(
            "answer is compressed",
            ": the server uses a Transfer-Encoding that nobody asked for. Turn it off",
            is_temporary=False,
        )


def _size_of(headers: HTTPHeaderDict) -> int | None:
    """Return the size of the whole object; None if the server does not say."""
    whole = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    size = headers.get("content-length", "") if whole is None else whole[3]
    return int(size) if size.isdecimal() else None


def _refuse_page(response: BaseHTTPResponse, path: str) -> None:
    if _is_page(response.headers) and path.partition("?")[0].lower().endswith(_FILES):
        raise RequestFailure(*_PAGE, is_temporary=False)


def _is_page(headers: HTTPHeaderDict) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/html"
