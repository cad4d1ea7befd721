"""Connections that are not made: one time limit covers DNS, all addresses of a host, a proxy and TLS."""

import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mpload.storage.request_failure import RequestFailure
from mpload.storage.web import WebClient
from tests.support.raw_server import head, raw_server

CONNECT_SECONDS = 0.5
REQUEST_SECONDS = 60.0
MOST_SECONDS = 8 * CONNECT_SECONDS
"""Much less than waiting for each address, or for each byte, would take."""


def failure_of(url: str, *, connect_seconds: float = CONNECT_SECONDS, request_seconds: float = REQUEST_SECONDS) -> str:
    """Return how a request fails, which must happen in time."""
    client = WebClient(connect_seconds=connect_seconds, max_bytes=None)
    start = time.monotonic()
    with pytest.raises(RequestFailure) as caught:
        client.fetch(url, "x.bin", None, limit_seconds=request_seconds)
    assert time.monotonic() - start < MOST_SECONDS
    return str(caught.value)


@contextmanager
def full(host: str, *, port: int = 0) -> Iterator[int]:
    """Listen at an address, but accept no connection; yield the port."""
    with socket.create_server((host, port), backlog=0) as listener, ExitStack() as stack:
        found: int = listener.getsockname()[1]
        for _ in range(3):  # fills the queue of connections, so that the kernel ignores the next one
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1" if host == "0.0.0.0" else host, found))
        yield found


@contextmanager
def dripping(data: bytes) -> Iterator[int]:
    """Accept connections, and send each a byte every 0.1 s for a minute; yield the port."""

    def drip(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            for _ in range(600):
                connection.sendall(data)
                time.sleep(0.1)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let the name `many.example` have these addresses."""
    resolve = socket.getaddrinfo

    def found(host: str, *args: Any, **options: Any) -> list[Any]:
        names = hosts if host == "many.example" else (host,)
        return [each for name in names for each in resolve(name, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_all_addresses_of_a_host_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, *(f"127.0.0.{number}" for number in range(2, 32)))
    with full("0.0.0.0") as port:
        assert failure_of(f"http://many.example:{port}") == (
            f"no connection in time: none from many.example:{port} within 0.5 s, waiting to connect"
        )


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        connection.sendall(head("200 OK", length=2) + b"ok")
        return True

    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    with raw_server(answer) as url:
        port = int(url.rpartition(":")[2])
        with full("127.0.0.2", port=port):
            client = WebClient(connect_seconds=2.0, max_bytes=None)
            assert client.fetch(f"http://many.example:{port}", "x.bin", None, limit_seconds=REQUEST_SECONDS) == b"ok"


def test_a_name_that_is_not_resolved_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        time.sleep(10 * MOST_SECONDS)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    message = failure_of("http://slow.example")
    assert message == "no connection in time: none from slow.example:80 within 0.5 s, waiting for DNS"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("127.0.0.1", "connection failed to 127.0.0.1:9"),
        ("localhost", "name not resolved: DNS knows no address of localhost"),
    ],
)
def test_a_process_that_can_open_no_file_says_so_at_once(host: str, what: str) -> None:
    code = """
        import os, resource, sys
        from mpload.storage.request_failure import RequestFailure
        from mpload.storage.web import WebClient

        client = WebClient(connect_seconds=60.0, max_bytes=None)
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 1,) * 2)
        try:
            client.fetch(f"http://{sys.argv[1]}:9", "x.bin", None, limit_seconds=60.0)
        except RequestFailure as failure:
            print(failure)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), host], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == f"{what} (Too many open files)\n"


def test_an_error_while_a_name_is_resolved_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        raise LookupError("unknown encoding: idna")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    client = WebClient(connect_seconds=60.0, max_bytes=None)
    with pytest.raises(LookupError, match="idna"):
        client.fetch("http://some.example", "x.bin", None, limit_seconds=60.0)


@pytest.mark.parametrize("data", [b"\x16\x03\x03\x3f\xff", b"\x16"])
def test_tls_that_is_never_established_is_named(data: bytes) -> None:
    with dripping(b"") as silent, dripping(data) as port:
        for each in (silent, port):
            message = failure_of(f"https://127.0.0.1:{each}")
            expected = f"no connection in time: none from 127.0.0.1:{each} within 0.5 s, waiting for TLS"
            assert message == expected or (each == port and message.startswith("TLS failed"))


@pytest.mark.parametrize("data", [b"", b"x", b"HTTP/1.1 200 OK\r\nX: y\r\n"])
def test_a_proxy_that_never_connects_is_named(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping(data) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        message = failure_of("https://data.example.com")
    where = f"the proxy 127.0.0.1:{port}"
    assert message == f"no connection in time: none from {where} within 0.5 s, waiting for the proxy to connect"


def test_a_tunnel_counts_towards_the_limit_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy takes most of the time, and then the server does not answer."""

    def answer(connection: socket.socket, path: str) -> bool:
        time.sleep(1.5)
        connection.sendall(head("200 Connection established"))
        time.sleep(10 * MOST_SECONDS)
        return False

    with raw_server(answer) as proxy:
        monkeypatch.setenv("https_proxy", proxy)
        message = failure_of("https://data.example.com", connect_seconds=2.0, request_seconds=2.0)
    assert re.search(r"no connection in time: none from the proxy .* within 2 s, waiting for TLS", message)
