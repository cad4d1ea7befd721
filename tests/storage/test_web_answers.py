"""Answers that no web server should give: each is read rightly or named, and none is taken for another's."""

import gzip
import re
import socket
import struct
import time
from collections.abc import Sequence

import pytest

from mpload import RemoteStorage
from mpload.errors import MploadError, OutsideRootError, StorageError
from mpload.storage import connections
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.remote import RemoteObjects
from mpload.storage.request_failure import RequestFailure
from mpload.storage.web import WebClient
from tests.support.raw_server import Answer, head, raw_server

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("each_way")]

LIMITS = RemoteStorage(request_timeout_seconds=0.4, retry_seconds=1.0)


def always(data: bytes) -> Answer:
    """Answer each request with these bytes, then close the connection."""

    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(data)
        return False

    return answer


def error_of(answer: Answer, *, name: str = "x.bin", root: str = "") -> MploadError:
    """Return the error of reading an object from a server that answers so."""
    with raw_server(answer) as url, pytest.raises(MploadError) as caught:
        RemoteObjects(f"{url}{root}", limits=LIMITS, max_bytes=1000).read([ByteRange(name)])
    assert caught.value.__context__ is None
    return caught.value


def test_provisional_answers_are_passed_over_and_no_answer_is_taken_for_another_request() -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("103 Early Hints", "Link: </style.css>; rel=preload"))
        connection.sendall(head("199 Anything"))
        connection.sendall(head("200 OK", length=len(path)) + path.encode())
        return True

    names = [f"{number}.bin" for number in range(4)]
    with raw_server(answer) as url:
        found = RemoteObjects(url, limits=LIMITS).read([ByteRange(name) for name in names])
    assert found == [f"/{name}".encode() for name in names]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (head("200 OK", length=10**18), "is not read: its 1,000,000,000,000,000,000 bytes exceed max_bytes=1,000"),
        (head("200 OK", "Transfer-Encoding: chunked") + b"7d0\r\n" + bytes(2000), "bytes exceed max_bytes=1,000"),
        (head("200 OK", "Transfer-Encoding: chunked") + b"-5\r\n12345\r\n", "answer cannot be read"),
        (head("302 Found", "Location: http://[::1/x", length=0), "redirect to another kind of URL"),
        (head("302 Found", "Location: http://me:password@host:99999/x", length=0), "redirect to another kind of URL"),
        (head("302 Found", "Location: file:///etc/passwd", length=0), "redirect to another kind of URL"),
    ],
)
def test_an_answer_that_breaks_the_rules_is_an_error_with_the_url(data: bytes, message: str) -> None:
    error = error_of(always(data))
    assert re.match(rf"http://127\.0\.0\.1:\d+/x\.bin: .*{re.escape(message)}", str(error))
    assert isinstance(error, StorageError)
    assert "password" not in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999999", "the server answered 503"),
        ("-5", "the server answered 503"),
        ("soon", "the server answered 503"),
        ("9" * 400, "asks to wait for 2"),
    ],
)
def test_any_retry_after_is_understood_or_ignored(text: str, message: str) -> None:
    assert message in str(error_of(always(head("503 Busy", f"Retry-After: {text}", length=0))))


def read_paths(root: str, names: Sequence[str]) -> list[str]:
    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("200 OK", length=len(path)) + path.encode())
        return True

    with raw_server(answer) as url:
        found = RemoteObjects(f"{url}{root}", limits=LIMITS).read([ByteRange(name) for name in names])
    return [path.decode() for path in found]


def test_a_path_is_requested_as_it_is_written() -> None:
    names = ["a b", "50%", "a%20b", "a%2Fb", "%FF", "a?b#c", "\udcff", "é", "a//b"]
    wanted = ["a%20b", "50%25", "a%20b", "a%2Fb", "%FF", "a%3Fb%23c", "%FF", "%C3%A9", "a//b"]
    assert read_paths("/r", names) == [f"/r/{name}" for name in wanted]
    asked: list[str] = []

    def answer(connection: socket.socket, path: str) -> bool:
        asked.append(path)
        connection.sendall(head("200 OK", length=1) + b"x")
        return True

    with raw_server(answer) as url:
        for name in names:
            RemoteObjects(f"{url}/r", limits=LIMITS).look_up(name)
    assert asked == [f"/r/{name}" for name in wanted]


@pytest.mark.parametrize("path", ["../x", "%2e%2e/x", "a/%2E%2e/%2e./x", "..%2fx"])
def test_no_spelling_of_a_path_leads_outside_the_root(path: str) -> None:
    assert isinstance(error_of(always(b""), name=path, root="/r"), OutsideRootError)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:password/more@bucket/x",
        "https://me:password/more@host/x",
        "HTTPS://host/x?signature=password",
        " https://host/x?signature=password",
        "http://[::1/password",
        "http://password\uff20host/x",
    ],
)
def test_a_url_that_is_refused_is_printed_without_its_secret(url: str) -> None:
    with pytest.raises(
        MploadError, match="is not a URL with scheme s3, gs, az, http or https and a valid host"
    ) as caught:
        RemoteObjects(url)
    assert "password" not in str(caught.value)
    assert caught.value.__context__ is None


def test_an_ipv6_address_is_read() -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("200 OK", length=2) + b"ok")
        return True

    with raw_server(answer, host="::1") as url:
        assert RemoteObjects(url, limits=LIMITS).read([ByteRange("x")]) == [b"ok"]


def test_a_span_that_comes_with_more_bytes_than_were_requested_is_refused() -> None:
    """Some servers send the whole object with the header of a part."""

    def answer(connection: socket.socket, path: str) -> bool:
        size = [] if "chunked" in path else ["Content-Length: 10"]
        lines = ["Content-Range: bytes 4-6/10", *size, *(["Transfer-Encoding: chunked"] if not size else [])]
        body = b"0123456789" if size else b"a\r\n0123456789\r\n0\r\n\r\n"
        connection.sendall(head("206 Partial Content", *lines) + body)
        return True

    with raw_server(answer) as url:
        for name in ("a.bin", "chunked.bin"):
            with pytest.raises(StorageError, match=r"wrong range: 3 bytes were requested, and (10|4) were sent"):
                RemoteObjects(url, limits=LIMITS).read([Span(name, 4, 3)])


def test_an_answer_in_a_coding_that_is_not_read_is_refused() -> None:
    coded = head("200 OK", "Transfer-Encoding: gzip, chunked") + b"3\r\nabc\r\n0\r\n\r\n"
    assert "uses a Transfer-Encoding that nobody asked for" in str(error_of(always(coded)))


@pytest.mark.parametrize("padding", [b"", bytes(7)])
def test_gzip_may_have_several_members(padding: bytes) -> None:
    body = gzip.compress(b"first, ") + gzip.compress(b"") + gzip.compress(b"second") + padding
    with raw_server(always(head("200 OK", "Content-Encoding: gzip", length=len(body)) + body)) as url:
        assert RemoteObjects(url, limits=LIMITS).read([ByteRange("x.txt")]) == [b"first, second"]
    for rest in (b"", body[:10], body[:-12]):
        cut = head("200 OK", "Content-Encoding: gzip", length=len(rest)) + rest
        assert "answer cut short" in str(error_of(always(cut)))
    many = gzip.compress(bytes(600)) * 2
    answer = always(head("200 OK", "Content-Encoding: gzip", length=len(many)) + many)
    assert "exceed max_bytes=1,000" in str(error_of(answer))


def test_a_redirect_in_utf_8_is_followed() -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        if path == "/caf%C3%A9%20x":
            connection.sendall(head("200 OK", length=2) + b"ok")
        else:
            connection.sendall(head("302 Found", "Location: /caf\u00c3\u00a9%20x", length=0))
        return True

    with raw_server(answer) as url:
        assert RemoteObjects(url, limits=LIMITS).read([ByteRange("x.bin")]) == [b"ok"]


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_connection_that_is_closed_when_it_is_used_again_costs_no_attempt(how: str) -> None:
    """Servers close connections whenever they like, also while the next request is on its way."""
    used = set[int]()
    num_requests = 0

    def answer(connection: socket.socket, path: str) -> bool:
        nonlocal num_requests
        num_requests += 1
        if id(connection) in used:
            if how == "resets":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        used.add(id(connection))
        held.append(connection)
        connection.sendall(head("200 OK", length=len(path)) + path.encode())
        return True

    held = list[socket.socket]()  # so that no two have the same id
    names = [f"{number}.bin" for number in range(20)]
    with raw_server(answer) as url:
        started = time.monotonic()
        found = RemoteObjects(url, limits=LIMITS).read([ByteRange(name) for name in names])
        assert time.monotonic() - started < LIMITS.retry_seconds, "no wait between attempts"
    assert found == [f"/{name}".encode() for name in names]
    assert num_requests == 2 * len(names) - 1


def test_a_request_that_is_repeated_over_a_new_connection_keeps_its_limit() -> None:
    """The server answers once, closes the connection after 0.8 s, and then does not answer any more."""
    num_requests = 0

    def answer(connection: socket.socket, path: str) -> bool:
        nonlocal num_requests
        num_requests += 1
        if num_requests == 1:
            connection.sendall(head("200 OK", length=2) + b"ok")
        elif num_requests == 2:
            time.sleep(0.8)
            return False
        else:
            time.sleep(10.0)
        return True

    with raw_server(answer) as url:
        client = WebClient(connect_seconds=1.0, max_bytes=None)
        assert client.fetch(url, "a", None, limit_seconds=1.0) == b"ok"
        started = time.monotonic()
        with pytest.raises(RequestFailure, match="no answer in time"):
            client.fetch(url, "b", None, limit_seconds=1.0)
        assert time.monotonic() - started < 1.5
    assert num_requests == 3


def test_a_connection_that_was_idle_for_long_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[socket.socket]()

    def answer(connection: socket.socket, path: str) -> bool:
        if connection not in made:
            made.append(connection)
        connection.sendall(head("200 OK", length=2) + b"ok")
        return True

    with raw_server(answer) as url:
        client = WebClient(connect_seconds=1.0, max_bytes=None)
        for idle_seconds, num_made in ((60.0, 1), (0.0, 2)):
            monkeypatch.setattr(connections, "_MAX_IDLE_SECONDS", idle_seconds)
            for name in ("a", "b")[: 3 - num_made]:
                assert client.fetch(url, name, None, limit_seconds=1.0) == b"ok"
            assert len(made) == num_made
