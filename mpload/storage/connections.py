"""Connections to web servers on which every wait has a limit, and the names of what can go wrong on them."""

import errno
import io
import os
import select
import socket
import ssl
import threading
import time
from base64 import b64encode
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from mpload.storage.answers import Answer, CutShortError, NoAnswerError, NotHttpError
from mpload.storage.request_failure import RequestFailure
from mpload.units import format_count

__all__ = ["Connection", "Origin", "failure_of"]

_HEADERS = "User-Agent: mpload\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
_PORTS = {"http": 80, "https": 443}
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}


@dataclass(frozen=True, slots=True)
class Origin:
    """A server: its scheme, name and port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: SplitResult) -> "Origin":
        """Return the server of a URL; raises `ValueError` if the URL names none."""
        if url.scheme not in _PORTS or not url.hostname:
            raise ValueError("it is not an http URL")
        return cls(url.scheme, url.hostname, url.port or _PORTS[url.scheme])

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def name(self) -> str:
        """The host as a URL writes it: an IPv6 address has brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host


class _TimedReads(io.RawIOBase):
    """Reads from a socket until a deadline. A plain time limit would begin anew with each byte."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.deadline = float("inf")
        self.num_received = 0

    def readable(self) -> bool:
        return True

    def limit(self) -> None:
        """Give the socket the time that is left until the deadline."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(seconds)

    def readinto(self, buffer: Any) -> int:
        self.limit()
        num_bytes = self._sock.recv_into(buffer)
        self.num_received += num_bytes
        return num_bytes


class _Tls:
    """The settings of TLS connections, which take milliseconds to make, so that plain connections do without."""

    @cached_property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class Connection:
    """A connection to a server, through the proxy that the environment names, if any.

    Args:
        origin: the server.
        connect_seconds: time limit for the connection to be made.
    """

    _tls = _Tls()

    def __init__(self, origin: Origin, *, connect_seconds: float) -> None:
        self.origin = origin
        self.connect_seconds = connect_seconds
        self.is_fresh = True
        """Whether it was not used for another request before."""
        self.step = "connection"
        """What the connection waits for: a connection, an answer or the rest of one."""
        self._proxy = _proxy_of(origin)
        self._sock: socket.socket | None = None

    @property
    def num_received(self) -> int:
        """Number of bytes received for the current request, with headers."""
        return 0 if self._sock is None else self._reads.num_received

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed an idle connection, or sent more than it was asked for."""
        assert self._sock is not None
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if poll.poll(0):
            return True
        self._reads.deadline = float("-inf")  # so that only what was received before is found
        try:
            return bool(self._reader.peek(1))
        except TimeoutError:
            return False

    def ask(self, path: str, headers: str, *, deadline: float) -> Answer:
        """Send a request and return the answer, whose body may be read until the deadline.

        Args:
            path: the path and query of the URL, in ASCII.
            headers: further lines of the request, each with its end.
            deadline: by the monotonic clock.
        """
        if self._sock is None:
            self.step = "connection"
            self._connect(deadline)
        assert self._sock is not None
        self.step = "answer"
        if self._proxy is not None and self.origin.scheme == "http":
            path = f"http://{self.origin}{path}"
            headers += _authorization(self._proxy)
        self._send(f"GET {path} HTTP/1.1\r\n{headers}", deadline)
        answer = Answer(self._reader)
        self.step = "rest of the answer"
        return answer

    def close(self) -> None:
        """Close the connection. May be called again."""
        if self._sock is not None:
            self._sock.close()

    def _send(self, request: str, deadline: float) -> None:
        assert self._sock is not None
        host = self.origin.name if self.origin.port == _PORTS[self.origin.scheme] else str(self.origin)
        self._reads.deadline, self._reads.num_received = deadline, 0
        self._reads.limit()
        self._sock.sendall(f"{request}Host: {host}\r\n{_HEADERS}\r\n".encode("ascii"))

    def _use(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reads = _TimedReads(sock)
        self._reader: io.BufferedReader[Any] = io.BufferedReader(self._reads)

    def _connect(self, deadline: float) -> None:
        """Connect within the time limit, to the first address of the server that accepts."""
        origin, proxy = self.origin, self._proxy
        deadline = min(deadline, time.monotonic() + self.connect_seconds)
        host, port = (origin.host, origin.port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
        addresses = _resolve(host, port, deadline=deadline)
        for number, (family, address) in enumerate(addresses):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(max((deadline - time.monotonic()) / (len(addresses) - number), 1e-3))
                sock.connect(address)
                break
            except OSError:
                sock.close()
                if number == len(addresses) - 1:
                    raise
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._use(sock)
        if origin.scheme == "https":
            if proxy is not None:
                self._send(f"CONNECT {origin} HTTP/1.1\r\n{_authorization(proxy)}", deadline)
                answer = Answer(self._reader)
                if answer.status != HTTPStatus.OK:
                    raise RequestFailure("proxy refuses", f" the connection to {origin}: it answered {answer.status}")
            self._reads.deadline = deadline
            self._reads.limit()
            self._use(self._tls.context.wrap_socket(sock, server_hostname=origin.host))


def failure_of(error: Exception, connection: Connection, *, limit_seconds: float) -> RequestFailure:
    """Return what happened, by the class of an exception that a connection raised."""
    origin, step = connection.origin, connection.step
    match error:
        case RequestFailure():
            return error
        case TimeoutError() if step == "rest of the answer":
            received = format_count(connection.num_received)
            return RequestFailure("answer stalled", f" after {received} bytes in {limit_seconds:.3g} s")
        case TimeoutError():
            seconds = min(limit_seconds, connection.connect_seconds) if step == "connection" else limit_seconds
            return RequestFailure(f"no {step} in time", f": none from {origin} within {seconds:.3g} s")
        case socket.gaierror():
            return RequestFailure("name not resolved", f": DNS knows no address of {origin.host} ({error.strerror})")
        case ssl.SSLCertVerificationError():
            return RequestFailure(
                "certificate not trusted",
                f": that of {origin} fails verification ({error.verify_message}). Add the certificate of its "
                "authority to the file that SSL_CERT_FILE names",
                is_temporary=False,
                is_of_server=True,
            )
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return RequestFailure("connection closed", f" by {origin} during TLS")
        case ssl.SSLError():
            return RequestFailure("TLS failed", f" with {origin} ({error.reason or type(error).__name__})")
        case ConnectionRefusedError():
            return RequestFailure("connection refused", f" by {origin}: no server listens there")
        case NoAnswerError():
            return RequestFailure("connection closed", f" by {origin} before the answer")
        case ConnectionResetError() | BrokenPipeError():
            return RequestFailure("connection reset", f" by {origin}")
        case CutShortError():
            return RequestFailure(
                "answer cut short", f": the connection to {origin} closed before the end of the answer"
            )
        case NotHttpError():
            return RequestFailure("answer is not HTTP", f": is {origin} a web server?")
        case OSError() if error.errno in _UNREACHABLE:
            return RequestFailure("host unreachable", f": no way to {origin} ({error.strerror})")
        case OSError():
            return RequestFailure("connection failed", f" to {origin} ({error.strerror or type(error).__name__})")
    return RequestFailure("answer cannot be read", f" ({type(error).__name__})", is_temporary=False)


def _resolve(host: str, port: int, *, deadline: float) -> list[tuple[int, Any]]:
    """Return the addresses of a host. `getaddrinfo` has no time limit, so a thread of its own waits for it."""
    found: SimpleQueue[list[tuple[int, Any]] | OSError] = SimpleQueue()

    def resolve() -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.put([(info[0], info[4]) for info in infos])
        except (OSError, UnicodeError) as error:
            found.put(error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "not a host name"))

    threading.Thread(target=resolve, name="mpload-resolve", daemon=True).start()
    try:
        result = found.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        raise TimeoutError from None
    if isinstance(result, OSError):
        raise result
    return result


def _proxy_of(origin: Origin) -> SplitResult | None:
    proxies = getproxies_environment()
    url = proxies.get(origin.scheme) or proxies.get("all")
    if not url or proxy_bypass_environment(str(origin), proxies):
        return None
    return urlsplit(url if "://" in url else f"http://{url}")


def _authorization(proxy: SplitResult) -> str:
    """Return the header line for the user name and password of a proxy."""
    if proxy.username is None:
        return ""
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Proxy-Authorization: Basic {b64encode(os.fsencode(user)).decode()}\r\n"
