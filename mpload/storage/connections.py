"""Connections to web servers on which every wait has a limit, and the names of what can go wrong on them."""

import errno
import http.client
import os
import select
import socket
import ssl
import threading
import time
from base64 import b64encode
from dataclasses import dataclass
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from mpload.storage.request_failure import RequestFailure
from mpload.units import format_count

__all__ = ["Connection", "Origin", "failure_of"]

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
        return f"{self.host}:{self.port}"


class _Timed:
    """A socket whose reads all end at one deadline. A plain time limit would begin anew with each byte."""

    deadline = float("inf")
    num_received = 0

    def limit(self) -> None:
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self.settimeout(seconds)  # type: ignore[attr-defined]

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        self.limit()
        num_bytes: int = super().recv_into(*arguments, **options)  # type: ignore[misc]
        self.num_received += num_bytes
        return num_bytes


class _PlainSocket(_Timed, socket.socket):
    pass


class _TlsSocket(_Timed, ssl.SSLSocket):
    pass


class _Tls:
    """The settings of TLS connections, which take milliseconds to make, so that plain connections do without."""

    @cached_property
    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.sslsocket_class = _TlsSocket
        return context


class Connection(http.client.HTTPConnection):
    """A connection to a server, through the proxy that the environment names, if any.

    Args:
        origin: the server.
        connect_seconds: time limit for the connection to be made.
    """

    _tls = _Tls()

    def __init__(self, origin: Origin, *, connect_seconds: float) -> None:
        self.origin = origin
        self.is_fresh = True
        self.step = "connection"
        """What the connection waits for: a connection, an answer or the rest of one."""
        self.connect_seconds = connect_seconds
        self._deadline = float("inf")
        self._counter: _Timed | None = None
        proxy = _proxy_of(origin)
        self._goes_through_proxy = proxy is not None
        super().__init__(origin.host if proxy is None else proxy.hostname or "", _port(origin, proxy))
        self._proxy_headers = _authorization(proxy)
        if proxy is not None and origin.scheme == "https":
            self.set_tunnel(origin.host, origin.port, self._proxy_headers)

    @property
    def num_received(self) -> int:
        """Number of bytes received for the current request, with headers."""
        return 0 if self._counter is None else self._counter.num_received

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed an idle connection, or sent more than it was asked for."""
        if self.sock is None:
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def ask(self, target: str, headers: dict[str, str], *, deadline: float) -> http.client.HTTPResponse:
        """Send a request and return the answer, whose body may be read until the deadline."""
        self._deadline = deadline
        if self._goes_through_proxy and self.origin.scheme == "http":
            target = f"http://{self.origin}{target}"
            headers = headers | self._proxy_headers
        if self.sock is None:
            self.step = "connection"
            self.connect()
        assert isinstance(self.sock, _Timed)
        self._counter = self.sock
        self.step = "answer"
        self.sock.deadline, self.sock.num_received = deadline, 0
        self.sock.limit()
        self.request("GET", target, headers=headers)
        response = self.getresponse()
        self.step = "rest of the answer"
        return response

    def connect(self) -> None:
        """Connect within the time limit, to the first address of the server that accepts."""
        deadline = min(self._deadline, time.monotonic() + self.connect_seconds)
        addresses = _resolve(self.host, self.port, deadline=deadline)
        for number, (family, address) in enumerate(addresses):
            sock = _PlainSocket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(max((deadline - time.monotonic()) / (len(addresses) - number), 1e-3))
                sock.connect(address)
                break
            except OSError:
                sock.close()
                if number == len(addresses) - 1:
                    raise
        self.sock = sock
        sock.deadline = deadline
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._goes_through_proxy and self.origin.scheme == "https":
            self._tunnel()  # type: ignore[attr-defined]
        if self.origin.scheme == "https":
            sock.limit()
            self.sock = self._tls.context.wrap_socket(sock, server_hostname=self.origin.host)


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
        case http.client.RemoteDisconnected():
            return RequestFailure("connection closed", f" by {origin} before the answer")
        case ConnectionResetError() | BrokenPipeError():
            return RequestFailure("connection reset", f" by {origin}")
        case http.client.IncompleteRead():
            return RequestFailure(
                "answer cut short", f": the connection to {origin} closed before the end of the answer"
            )
        case http.client.HTTPException():
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


def _port(origin: Origin, proxy: SplitResult | None) -> int:
    return origin.port if proxy is None else proxy.port or _PORTS["http"]


def _authorization(proxy: SplitResult | None) -> dict[str, str]:
    if proxy is None or proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(os.fsencode(user)).decode()}"}
