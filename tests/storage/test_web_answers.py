"""Answers that no web server should give: each is read rightly or named, and none is taken for another's."""

import re
import socket
from collections.abc import Sequence

import pytest

from mpload import RemoteStorage
from mpload.errors import MploadError, OutsideRootError, StorageError
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects
from tests.support.raw_server import Answer, head, raw_server

pytestmark = pytest.mark.processes

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
