"""Connections to web servers, through urllib3, on which every wait has a limit; and the names of what can go wrong."""

import errno
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.client import BadStatusLine, HTTPResponse, IncompleteRead, LineTooLong, RemoteDisconnected
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import urllib3
from urllib3 import BaseHTTPResponse, Timeout, exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection

from mpload.storage.request_failure import RequestFailure
from mpload.units import format_count

__all__ = ["CUT_SHORT", "Server", "failure_of"]

CUT_SHORT = ("answer cut short", ": the connection was closed before the end of the answer")
_MAX_IDLE = 64  # connections that are kept for each server
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}


class Server:
    """Connections to the server of a URL, through the proxy that the environment names, if any."""

    def __init__(self, url: str) -> None:
        server = urlsplit(url)
        proxies = getproxies_environment()
        proxy = proxies.get(server.scheme) or proxies.get("all")
        if proxy and proxy_bypass_environment(server.netloc, proxies):
            proxy = None
        pools = urllib3.PoolManager(maxsize=_MAX_IDLE) if proxy is None else _proxy(proxy)
        pools.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        self._pool = pools.connection_from_url(url)
        self._prefix = url if proxy and server.scheme == "http" else ""  # such a proxy wants whole URLs

    def get(self, path: str, headers: dict[str, str], timeout: Timeout) -> BaseHTTPResponse:
        """Return an answer whose body has not been read."""
        return self._pool.urlopen(
            "GET",
            self._prefix + path,
            headers=headers,
            timeout=timeout,
            retries=False,
            redirect=False,
            assert_same_host=False,  # a path for a proxy names the host of the server
            preload_content=False,
            decode_content=False,
        )


def _proxy(url: str) -> urllib3.ProxyManager:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    headers = None
    if parts.username is not None:
        headers = urllib3.make_headers(proxy_basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}")
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return urllib3.ProxyManager(plain, maxsize=_MAX_IDLE, proxy_headers=headers)


class _TimedReads(io.RawIOBase):
    """Reads from a socket until its deadline."""

    def __init__(self, sock: "_TimedSocket", raw: Any) -> None:
        self._sock = sock
        self._raw = raw
        self._num_received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            self._sock.limit()
            num_bytes: int = self._raw.readinto(buffer)
        except TimeoutError:
            raise TimeoutError(self._num_received) from None  # `failure_of` wants the number
        self._num_received += num_bytes
        return num_bytes

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """A socket whose time limit holds for all that is read until the limit is set anew, not for each byte."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._deadline = float("inf")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, seconds: float | None) -> None:
        self._deadline = float("inf") if seconds is None else time.monotonic() + seconds
        self._sock.settimeout(seconds)

    def limit(self) -> None:
        """Give the socket the time that is left until the deadline."""
        if self._deadline < float("inf"):
            seconds = self._deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            self._sock.settimeout(seconds)

    def makefile(self, mode: str) -> "io.BufferedReader[Any]":
        return io.BufferedReader(_TimedReads(self, self._sock.makefile(mode, buffering=0)))


class _Response(HTTPResponse):
    """Passes over all provisional answers: else the true one would be taken for that of the next request."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, 100 if 100 <= status < 200 else status, reason  # `begin` passes over 100


class _Connection(HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        _connect(self, super().connect)


class _TlsConnection(HTTPSConnection):
    response_class = _Response

    def connect(self) -> None:
        _connect(self, super().connect)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _connect(connection: HTTPConnection, connect: Callable[[], None]) -> None:
    """Connect, once the name of the host is known in time: `getaddrinfo`, which `connect` calls, has no time limit."""
    found: SimpleQueue[OSError | None] = SimpleQueue()

    def resolve() -> None:
        try:
            socket.getaddrinfo(connection.host, connection.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            found.put(error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "not a host name"))
        else:
            found.put(None)

    threading.Thread(target=resolve, name="mpload-resolve", daemon=True).start()
    try:
        error = found.get(timeout=connection.timeout)
    except Empty:
        raise exceptions.ConnectTimeoutError(connection, "its name is not known yet") from None
    if isinstance(error, socket.gaierror):
        raise exceptions.NameResolutionError(connection.host, connection, error) from error
    connect()
    connection.sock = _TimedSocket(connection.sock)


def failure_of(error: Exception, address: str, *, step: str, seconds: float, connect_seconds: float) -> RequestFailure:
    """Return what happened, by the class of an exception that urllib3 raised.

    Args:
        error: the exception.
        address: the URL that was requested.
        step: what the request waited for: `answer`, or `rest of the answer`.
        seconds: its time limit.
        connect_seconds: time limit for a connection to be made.
    """
    server = urlsplit(address)
    origin = f"{server.hostname}:{server.port or (443 if server.scheme == 'https' else 80)}"
    match error:
        case RequestFailure():
            return error
        case exceptions.ProxyError():
            return failure_of(
                error.original_error, address, step=step, seconds=seconds, connect_seconds=connect_seconds
            )
        case exceptions.ProxySchemeUnknown() | exceptions.ProxySchemeUnsupported():
            return RequestFailure("proxy not supported", ": give an http or https proxy", is_temporary=False)
        case exceptions.NameResolutionError():
            cause = error.__cause__.strerror if isinstance(error.__cause__, OSError) else "no answer"
            return RequestFailure("name not resolved", f": DNS knows no address of {server.hostname} ({cause})")
        case exceptions.NewConnectionError() if isinstance(error.__cause__, OSError):
            return _failure_of_socket(error.__cause__, origin)
        case exceptions.ConnectTimeoutError():
            return RequestFailure("no connection in time", f": none from {origin} within {connect_seconds:.3g} s")
        case exceptions.ReadTimeoutError() if step == "answer":
            return RequestFailure("no answer in time", f": none from {origin} within {seconds:.3g} s")
        case exceptions.ReadTimeoutError():
            received = error.__cause__.args[:1] if isinstance(error.__cause__, TimeoutError) else ()
            count = f" after {format_count(received[0])} bytes" if received and isinstance(received[0], int) else ""
            return RequestFailure("answer stalled", f"{count} in {seconds:.3g} s")
        case exceptions.SSLError() if isinstance(error.args[0], ssl.SSLError):
            return _failure_of_tls(error.args[0], origin)
        case exceptions.ProtocolError() if len(error.args) > 1 and isinstance(error.args[1], Exception):
            return _failure_of_socket(error.args[1], origin)
        case exceptions.LocationValueError():  # and of its kind, LocationParseError
            return RequestFailure("redirect to another kind of URL", is_temporary=False)
    return RequestFailure("answer cannot be read", f" ({type(error).__name__})", is_temporary=False)


def _failure_of_socket(error: Exception, origin: str) -> RequestFailure:
    match error:
        case ConnectionRefusedError():
            return RequestFailure("connection refused", f" by {origin}: no server listens there")
        case RemoteDisconnected():
            return RequestFailure("connection closed", f" by {origin} before the answer")
        case ConnectionResetError() | BrokenPipeError():
            return RequestFailure("connection reset", f" by {origin}")
        case IncompleteRead():
            return RequestFailure(*CUT_SHORT)
        case BadStatusLine() | LineTooLong():
            return RequestFailure("answer is not HTTP", f": is {origin} a web server?")
        case OSError() if error.errno in _UNREACHABLE:
            return RequestFailure("host unreachable", f": no way to {origin} ({error.strerror})")
        case OSError():
            return RequestFailure("connection failed", f" to {origin} ({error.strerror or type(error).__name__})")
    return RequestFailure("answer cannot be read", f" ({type(error).__name__})", is_temporary=False)


def _failure_of_tls(error: ssl.SSLError, origin: str) -> RequestFailure:
    match error:
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
    return RequestFailure("TLS failed", f" with {origin} ({error.reason or type(error).__name__})")
