"""One connection: whatever comes back is an answer or a known error, within the time limit."""

import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import MPDataset, MPLoader, Servers
from mpload.client.connection import Busy, Connection, OtherDataset, Refused, RequestError, tls_for
from mpload.client.protocol import MEDIA_TYPE, Description
from mpload.errors import MploadWarning, ServerError
from tests.support.batches import ids, numbers
from tests.support.fault_runs import certificate_in
from tests.support.raw_server import head, raw_server
from tests.support.running_servers import running_server

_KIND = f"Content-Type: {MEDIA_TYPE}"
_LIMIT_SECONDS = 20.0
_MAX_BYTES = 1 << 23

_HEADERS = st.sampled_from(
    [
        _KIND,
        "Content-Type: text/html",
        "Content-Length: 5",
        "Content-Length: -5",
        "Content-Length: 99999999999999999999999",
        "Content-Length: five",
        "Transfer-Encoding: chunked",
        "Connection: close",
        "Retry-After: 3",
        "Retry-After: never",
        "Retry-After: -1",
        "Retry-After: nan",
        "No colon",
        ": no name",
        "X: " + "y" * 70_000,
    ]
)
_STATUS = st.sampled_from([100, 101, 200, 204, 206, 301, 400, 401, 403, 404, 408, 409, 429, 500, 503, 999, 7])
_BODY = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([b"{}", b"[" * 100_000, b'{"error": 5}', Description(index="i", pipeline="p", fields=()).encode()]),
)
_STRUCTURED = st.builds(
    lambda status, headers, body: head(f"{status} Because", *headers) + body,
    _STATUS,
    st.lists(_HEADERS, max_size=4),
    _BODY,
)


class _Script:
    """What the server sends next."""

    data = b""


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[str, _Script]]:
    script = _Script()

    def answer(connection: socket.socket, path: str) -> bool:
        assert path == "/v1/samples"
        connection.sendall(script.data)
        return False

    with raw_server(answer) as url:
        yield url, script


def connection_to(url: str, **options: Any) -> Connection:
    servers = Servers(urls=[url], **{"request_timeout_seconds": _LIMIT_SECONDS, **options})
    return Connection(servers.urls[0], servers, tls_for(servers))


def received(connection: Connection) -> bytes:
    """Ask, and return the body of the answer."""
    connection.ask(b"", "digest")
    body = bytearray(min(_MAX_BYTES, connection.begin(time.monotonic() + _LIMIT_SECONDS)))
    connection.read_into(memoryview(body))
    connection.keep()
    return bytes(body)


@settings(max_examples=150)
@given(data=st.one_of(st.binary(max_size=300), _STRUCTURED, st.builds(bytes.__add__, _STRUCTURED, _STRUCTURED)))
def test_any_bytes_are_an_answer_or_a_known_error(scripted: tuple[str, _Script], data: bytes) -> None:
    url, script = scripted
    script.data = data
    with closing(connection_to(url)) as connection, suppress(RequestError, Refused):
        assert received(connection) in data
        assert _KIND.encode() in data


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (head("401 Unauthorized", length=0), Refused, "token"),
        (head("503 Busy", "Retry-After: 7", length=0), Busy, "7 s"),
        (head("503 No workers", length=0), RequestError, "answers 503 No workers"),
        (head("409 Conflict", length=59) + Description(index="i", pipeline="p", fields=()).encode(), OtherDataset, "i"),
        (head("500 Oops", length=19) + b'{"error": "a  why"}', RequestError, "answers 500 Oops: 'a why'"),
        (head("200 OK", "Content-Type: text/html", length=2) + b"hi", RequestError, "text/html.*: 'hi'"),
        (head("200 OK", _KIND), RequestError, "no server of samples"),
        (head("200 OK", _KIND, length=9) + b"four", RequestError, "in the middle of an answer"),
        (b"", RequestError, "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", RequestError, "does not speak HTTP"),
    ],
)
def test_errors_say_what_the_server_did(
    scripted: tuple[str, _Script], answer: bytes, kind: type[Exception], message: str
) -> None:
    url, script = scripted
    script.data = answer
    with closing(connection_to(url)) as connection, pytest.raises(kind, match=message) as caught:
        received(connection)
    assert type(caught.value) is kind


def test_time_limit_holds_for_an_answer_that_drips() -> None:
    released = threading.Event()

    def answer(connection: socket.socket, path: str) -> bool:
        for byte in head("200 OK", _KIND, length=1000) + bytes(1000):
            connection.sendall(bytes([byte]))
            if released.wait(0.01):
                break
        return False

    with raw_server(answer) as url, closing(connection_to(url)) as connection:
        connection.ask(b"", "digest")
        began = time.monotonic()
        buffer = memoryview(bytearray(1000))
        with pytest.raises(RequestError, match="time limit"):
            connection.read_into(buffer[: connection.begin(began + 0.5)])
        assert time.monotonic() - began < 5
        released.set()


def test_connection_is_kept_and_made_again_if_the_server_has_closed_it() -> None:
    connected = []

    def answer(connection: socket.socket, path: str) -> bool:
        connected.append(connection.getpeername())
        connection.sendall(head("200 OK", _KIND, length=2) + b"ab")
        return len(connected) != 2  # says nothing of it

    with raw_server(answer) as url, closing(connection_to(url)) as connection:
        assert [received(connection) for _ in range(4)] == [b"ab"] * 4
    assert connected[0] == connected[1] != connected[2] == connected[3]


def test_request_is_sent_again_if_the_server_closes_an_idle_connection_at_that_moment() -> None:
    connected = []

    def answer(connection: socket.socket, path: str) -> bool:
        peer = connection.getpeername()
        is_first = peer not in connected
        connected.append(peer)
        if is_first:
            connection.sendall(head("200 OK", _KIND, length=2) + b"ab")
        return is_first

    with raw_server(answer) as url, closing(connection_to(url)) as connection:
        assert [received(connection) for _ in range(3)] == [b"ab"] * 3
    assert len(set(connected)) == 3


def test_last_answer_of_a_connection_is_received_whole() -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("200 OK", _KIND, "Connection: close", length=1 << 20) + bytes(1 << 20))
        return False

    with raw_server(answer) as url, closing(connection_to(url)) as connection:
        assert [received(connection) for _ in range(3)] == [bytes(1 << 20)] * 3


def test_parts_of_an_answer_are_received_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("200 OK", _KIND, length=1 << 22) + bytes(1 << 22))
        return False

    with raw_server(answer) as url, closing(connection_to(url)) as connection:
        original = socket.socket.recv_into

        def recv_into(self: socket.socket, buffer: Any, *arguments: Any) -> int:
            sizes.append(len(buffer))
            return original(self, buffer, *arguments)

        monkeypatch.setattr(socket.socket, "recv_into", recv_into)
        assert received(connection) == bytes(1 << 22)
    assert sizes[0] <= 1 << 16  # the head
    assert sizes[1] > (1 << 22) - (1 << 20)  # nearly all that is left, where it belongs


def test_large_answer_in_small_pieces_is_received_and_its_early_end_noticed_at_once() -> None:
    size, pieces = 1 << 21, [bytes([number]) * 4096 for number in range(256)]

    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("200 OK", _KIND, length=size))
        for number, piece in enumerate(2 * pieces):
            connection.sendall(piece)
            if not is_whole and number == 300:
                return False
        return True

    with raw_server(answer) as url, closing(connection_to(url)) as connection:
        is_whole = True
        assert [received(connection) for _ in range(3)] == [b"".join(2 * pieces)] * 3
        is_whole = False
        with pytest.raises(RequestError, match="in the middle of an answer"):
            received(connection)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
def test_connections_are_encrypted_and_certificates_checked(tmp_path: Path) -> None:
    both = certificate_in(tmp_path)

    def dataset() -> MPDataset[Any]:
        return numbers(tmp_path, 60)

    def loader(url: str, **options: Any) -> MPLoader[Any]:
        servers = Servers(urls=[url], fallback="raise", **options)
        return MPLoader(dataset(), servers=servers, num_workers=1)

    with running_server(dataset(), cert=both, key=tmp_path / "key.pem") as url:
        with loader(url, ca_file=str(both)) as trusting:
            assert ids(trusting) == ids(dataset())
        with warnings.catch_warnings(), loader(url, retry_seconds=0.2) as doubting:
            warnings.simplefilter("ignore", MploadWarning)
            with pytest.raises(ServerError, match="CERTIFICATE_VERIFY_FAILED"):
                next(iter(doubting))
