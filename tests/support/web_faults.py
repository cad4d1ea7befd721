"""A web server with a fault, in its own process on the loopback interface. It serves the files of one folder.

    python -m tests.support.web_faults FOLDER FAULT SECONDS BAD_NAME [CERTIFICATE]

A fault whose name begins with `slow` is one of a server that takes a while for each answer, so that readers read ahead.
`SECONDS` is the duration of an outage, or of a stall. `BAD_NAME` names the file that has the fault, or several of them,
with `|` in between; `*` means that every file has it, once `NUM_GOOD` requests have been answered, and `**` that every
file has it at once. The process prints its port, and then a line for each request: the time by the monotonic clock, the
path, and whether the request met the fault.
"""

import gzip
import http
import math
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["AT_ONCE", "EVERY", "NUM_GOOD", "Request", "WebServer", "web_server"]

EVERY = "*"
AT_ONCE = "**"
NUM_GOOD = 6
"""Number of good answers before a fault of the whole server begins."""
_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d+)", re.IGNORECASE)
_HOST = re.compile(r"https?://[^/]*")  # a proxy gets whole URLs
_STATUS = re.compile(r"status (\d{3})(?: after ([\d.]+))?")
_GENERAL = {"bandwidth", "ignores ranges"}  # every answer has these
_BANDWIDTH_BYTES = 1_000_000
_LATENCY_SECONDS = 0.01
_OPEN_SECONDS = 60  # how long a connection on which nothing happens stays open


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that the server has received."""

    at_seconds: float
    """By the monotonic clock."""
    path: str
    is_faulty: bool


@dataclass(slots=True, kw_only=True)
class WebServer:
    """A running server."""

    url: str
    process: "subprocess.Popen[str]"
    requests: list[Request] = field(default_factory=list)

    def stop(self) -> None:
        """End the server, and collect the requests that it has received."""
        self.process.kill()
        assert self.process.stdout is not None
        for line in self.process.stdout.read().splitlines():
            at, path, is_faulty = line.split(" ")
            self.requests.append(Request(at_seconds=float(at), path=path, is_faulty=is_faulty == "True"))
        self.process.wait(10)


@contextmanager
def web_server(
    folder: Path, fault: str, *, seconds: float = 0.0, bad: str = EVERY, certificate: Path | None = None
) -> Iterator[WebServer]:
    """Start a server and stop it at the end. See the functions of `_Server` for the names of the faults."""
    command = [__file__, folder, fault, seconds, bad, *([certificate] if certificate else [])]
    with subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        server = WebServer(url=f"http{'s' * bool(certificate)}://127.0.0.1:{port}", process=process)
        try:
            yield server
        finally:
            server.stop()


class _Server:
    """Answers requests, and meets each with the fault if it is the file's or the server's turn."""

    def __init__(self, folder: Path, fault: str, seconds: float, bad: str, certificate: str | None) -> None:
        self._folder = folder
        self._latency_seconds = _LATENCY_SECONDS if fault.startswith("slow ") else 0.0
        self._fault = fault.removeprefix("slow ")
        self._seconds = seconds
        self._bad = bad
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self._lock = threading.Lock()
        self._num_requests = 0
        self._num_faulty = 0
        self._faulty_since = float("inf")
        self._open: set[socket.socket] = set()
        self._sent_until = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._port = self._listener.getsockname()[1]

    def serve(self) -> None:
        print(self._port, flush=True)
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                if self._fault != "outage":
                    return
                time.sleep(self._seconds)  # the listener was closed by the thread that met the fault
                self._listener = socket.create_server(("127.0.0.1", self._port), backlog=128)
                continue
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.settimeout(_OPEN_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._open.add(connection)
            while request := _received(connection):
                path = _HOST.sub("", request.split(b" ", 2)[1].decode())
                is_faulty = self._meets_fault(path.rpartition("/")[2])
                os.write(1, f"{time.monotonic():.6f} {path} {is_faulty}\n".encode())  # at once: several threads write
                if not self._answer(connection, path, request, is_faulty=is_faulty):
                    return

    def _meets_fault(self, name: str) -> bool:
        with self._lock:
            if self._fault in _GENERAL:
                return False
            self._num_requests += 1
            is_due = name in self._bad.split("|") or self._num_requests > {EVERY: NUM_GOOD, AT_ONCE: 0}.get(
                self._bad, math.inf
            )
            if not is_due or (self._fault.endswith(" once") and self._num_faulty):
                return False
            if self._fault.startswith(("status", "outage")) and self._seconds and self._num_faulty:
                return time.monotonic() < self._faulty_since + self._seconds  # it ends by itself
            self._num_faulty += 1
            self._faulty_since = min(self._faulty_since, time.monotonic())
            return True

    def _answer(self, connection: socket.socket, path: str, request: bytes, *, is_faulty: bool) -> bool:
        """Answer a request, and return whether the connection stays open."""
        file = self._folder / path.lstrip("/")
        data = file.read_bytes() if file.is_file() else b""
        if is_faulty:
            return self._fail(connection, path, data)
        if not file.is_file():
            return _send(connection, 404, b"no such file")
        return self._send_part(connection, data, request)

    def _send_part(self, connection: socket.socket, data: bytes, request: bytes) -> bool:
        wanted = None if self._fault == "ignores ranges" else _RANGE.search(request)
        time.sleep(self._latency_seconds)
        if self._fault == "bandwidth":
            with self._lock:
                self._sent_until = max(self._sent_until, time.monotonic()) + len(data) / _BANDWIDTH_BYTES
            time.sleep(max(0.0, self._sent_until - time.monotonic()))
        if wanted is None:
            return _send(connection, 200, data)
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        if first >= len(data):
            return _send(connection, 416, b"", f"Content-Range: bytes */{len(data)}")
        return _send(connection, 206, data[first : last + 1], f"Content-Range: bytes {first}-{last}/{len(data)}")

    def _fail(self, connection: socket.socket, path: str, data: bytes) -> bool:
        """Answer with the fault."""
        half = len(data) // 2
        if match := _STATUS.match(self._fault):
            more = [f"Retry-After: {match[2]}"] if match[2] else []
            return _send(connection, int(match[1]), b"timed out, refused, dns error", *more)
        match self._fault.removesuffix(" once"):
            case "stall":
                time.sleep(self._seconds or _OPEN_SECONDS)
                return self._seconds > 0 and _send(connection, 200, data)
            case "stall in the body":
                connection.sendall(_head(200, len(data)) + data[:half])
                time.sleep(_OPEN_SECONDS)
            case "drip":
                connection.sendall(_head(200 if data else 404, len(data)))
                for byte in data:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.001)
            case "drip of headers":
                for byte in _head(200, len(data)).replace(
                    b"\r\n\r\n", b"\r\nX: %s\r\n\r\n" % (b"x" * _OPEN_SECONDS * 50)
                ):
                    connection.sendall(bytes([byte]))
                    time.sleep(0.02)
            case "outage":
                self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
                for each in list(self._open):
                    _reset(each)
            case "reset":
                _reset(connection)
            case "cut":
                connection.sendall(_head(200, len(data)) + data[:half])
            case "closed before the answer":
                pass
            case "long":
                return _send(connection, 200, data, length=len(data), more=b"more than was announced")
            case "chunked":
                parts = [data[:half], data[half:], b""]
                body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
                connection.sendall(_head(200, None, "Transfer-Encoding: chunked") + body)
                return True
            case "without length":
                connection.sendall(_head(200, None) + data)
            case "gzip":
                return _send(connection, 200, gzip.compress(data), "Content-Encoding: gzip")
            case "web page":
                return _send(connection, 200, b"<html>Please log in</html>", "Content-Type: text/html; charset=utf-8")
            case "empty":
                return _send(connection, 200, b"")
            case "not HTTP":
                connection.sendall(b"220 smtp.example.com ESMTP\r\n\r\n")
            case "redirect loop":
                return _send(connection, 302, b"", f"Location: {path}")
        return False


def _received(connection: socket.socket) -> bytes:
    """Return the next request, or no bytes if there is none."""
    request = b""
    while b"\r\n\r\n" not in request:
        part = connection.recv(65536)
        if not part:
            return b""
        request += part
    return request


def _head(status: int, length: int | None, *lines: str) -> bytes:
    first = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}"
    facts = ["Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT", 'ETag: "0"']  # clients of buckets want them
    return "\r\n".join(
        [first, *facts, *([] if length is None else [f"Content-Length: {length}"]), *lines, "", ""]
    ).encode()


def _send(
    connection: socket.socket, status: int, data: bytes, *lines: str, length: int | None = None, more: bytes = b""
) -> bool:
    connection.sendall(_head(status, len(data) if length is None else length, *lines) + data + more)
    return True


def _reset(connection: socket.socket) -> None:
    """Close a connection so that the other side gets a reset."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
        connection.close()


def main() -> None:
    """Serve as the command line says."""
    folder, fault, seconds, bad, *certificate = sys.argv[1:]
    _Server(Path(folder), fault, float(seconds), bad, certificate[0] if certificate else None).serve()


if __name__ == "__main__":
    main()
