"""Connections to web servers, through urllib3, on which every wait has a limit."""

import encodings.idna  # noqa: F401  resolving a name imports it, which fails if no file can be opened then
import errno
import io
import logging
import os
import re
import socket
import threading
import time
from http.client import HTTPResponse
from queue import Empty, SimpleQueue
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3 import BaseHTTPResponse, Timeout, exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.connection import create_connection

from mpload.storage.proxies import proxy_of
from mpload.storage.request_failure import proxy_failure
from mpload.storage.web_failures import NoConnectionError, bad_proxy

__all__ = ["Server", "Until"]

_MAX_IDLE = 128  # connections that are kept for each server
_MAX_IDLE_SECONDS = 60.0
_TUNNEL_STATUS = re.compile(r"Tunnel connection failed: (\d{3})\b")
_LEAST_SECONDS = 1e-3


class Until(Timeout):
    """The time limits of a request: until a deadline, by the monotonic clock, of which connecting takes a part."""

    def __init__(self, deadline: float, *, connect: float) -> None:
        super().__init__(connect=connect, total=max(_LEAST_SECONDS, deadline - time.monotonic()))
        self._until = deadline
        self._connect_seconds = connect

    def clone(self) -> "Until":
        """Return the same limits. Those of the base class would begin anew after a proxy has connected."""
        return Until(self._until, connect=self._connect_seconds)

    @property
    def read_timeout(self) -> float:
        """The time that is left for the answer."""
        return max(_LEAST_SECONDS, self._until - time.monotonic())


class Server:
    """Connections to the server of a URL, through the proxy that the environment names, if any.

    Args:
        url: The URL of the server.
        may_use_proxy: Whether to look for a proxy.
    """

    def __init__(self, url: str, *, may_use_proxy: bool = True) -> None:
        server = urlsplit(url)
        proxy = proxy_of(url) if may_use_proxy else None
        pools = urllib3.PoolManager(maxsize=_MAX_IDLE) if proxy is None else _proxy(proxy)
        self.proxy = None if pools.proxy is None else f"the proxy {pools.proxy.host}:{pools.proxy.port}"
        """The proxy, as errors call it."""
        pools.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        self._pool = pools.connection_from_url(url)
        self._prefix = url if proxy and server.scheme == "http" else ""  # such a proxy wants whole URLs

    def get(self, path: str, headers: dict[str, str], timeout: Timeout) -> BaseHTTPResponse:
        """Return an answer whose body has not been read."""
        _asking.with_query = "?" in path
        try:
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
        finally:
            _asking.with_query = False


def _may_be_logged(_: logging.LogRecord) -> bool:
    """Return whether urllib3 may log the request of this thread. A query, as redirects have, may be a signature."""
    return not getattr(_asking, "with_query", False)


_asking = threading.local()
logging.getLogger("urllib3.connectionpool").addFilter(_may_be_logged)


def _proxy(url: str) -> urllib3.ProxyManager:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise bad_proxy()
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

    def gettimeout(self) -> float | None:
        """Return the time that is left until the deadline."""
        return max(_LEAST_SECONDS, self._deadline - time.monotonic()) if self._deadline < float("inf") else None

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
    """One deadline for DNS, all addresses of the host, the answer of a proxy and TLS."""

    response_class = _Response
    step = "to connect"
    """What a connection waits for while it is made."""
    _request: tuple[str, str, dict[str, Any], float] | None = None  # the latest, and the time limit for connecting
    _is_used_again = False
    _is_tunnel = False
    _used_at = 0.0

    def connect(self) -> None:
        self._deadline = time.monotonic() + cast("float", self.timeout)
        self._is_used_again = False
        try:
            super().connect()
        except TimeoutError:
            raise NoConnectionError(self, self.step) from None
        if not isinstance(self.sock, _TimedSocket):
            self.sock = _TimedSocket(self.sock)

    @property
    def is_connected(self) -> bool:
        """Whether it can be used. One that was idle for long may have been forgotten on the way, without a sign."""
        return super().is_connected and time.monotonic() - self._used_at < _MAX_IDLE_SECONDS

    def request(self, method: str, url: str, **options: Any) -> None:  # type: ignore[override]
        """Send a request."""
        self._request = method, url, options, cast("float", self.timeout)
        self._is_tunnel = self._tunnel_host is not None  # which is forgotten when the connection is closed
        until = time.monotonic() + cast("float", self.timeout)
        try:
            super().request(method, url, **options)
        except ConnectionError:
            self._request_anew(until)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        """Return the answer. If the server has closed a connection meanwhile, the request is made over another one."""
        until = time.monotonic() + cast("float", self.timeout)
        try:
            response = super().getresponse()
        except ConnectionError:
            self._request_anew(until)
            response = super().getresponse()
        self._is_used_again, self._used_at = True, time.monotonic()
        return response

    def _request_anew(self, until: float) -> None:
        """Repeat the request over a new connection, or raise the current error if this one was new, or a tunnel."""
        left_seconds = until - time.monotonic()
        if not self._is_used_again or self._request is None or self._is_tunnel or left_seconds <= 0:
            raise  # noqa: PLE0704  the error that the caller handles
        method, url, options, connect_seconds = self._request
        self.close()
        self.timeout = min(connect_seconds, left_seconds)
        self.connect()
        super().request(method, url, **options)
        self.timeout = max(_LEAST_SECONDS, until - time.monotonic())

    def _left_seconds(self) -> float:
        return max(_LEAST_SECONDS, self._deadline - time.monotonic())

    def _new_conn(self) -> socket.socket:
        addresses = self._resolved()
        self.step = "to connect"
        while True:
            try:
                sock = create_connection(
                    addresses.pop(0), self._left_seconds() / (len(addresses) + 1), socket_options=self.socket_options
                )
            except OSError as error:
                if not addresses and isinstance(error, TimeoutError):
                    raise NoConnectionError(self, self.step) from error
                if not addresses:
                    raise exceptions.NewConnectionError(self, "no address can be reached") from error
            else:
                break
        self.step = "for TLS"
        timed = _TimedSocket(sock)
        timed.settimeout(self._left_seconds())
        return cast("socket.socket", timed)

    def _resolved(self) -> list[tuple[str, int]]:
        """Return the addresses of the host: in a thread, because `getaddrinfo` has no time limit."""
        found: SimpleQueue[list[tuple[str, int]] | Exception] = SimpleQueue()

        def resolve() -> None:
            try:
                known = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            except UnicodeError:
                found.put(socket.gaierror(socket.EAI_NONAME, "not a host name"))
            except Exception as error:  # noqa: BLE001  the thread that waits must learn of it
                found.put(_refused_file() or error)
            else:
                found.put([(str(each[4][0]), int(each[4][1])) for each in known])

        threading.Thread(target=resolve, name="mpload-resolve", daemon=True).start()
        try:
            result = found.get(timeout=self._left_seconds())
        except Empty:
            raise NoConnectionError(self, "for DNS") from None
        if isinstance(result, OSError):
            raise exceptions.NameResolutionError(self.host, self, cast("socket.gaierror", result)) from result
        if isinstance(result, Exception):
            raise result
        return result

    def _tunnel(self) -> None:
        self.step = "for the proxy to connect"
        try:
            super()._tunnel()
        except OSError as error:
            if match := _TUNNEL_STATUS.match(str(error)):
                raise proxy_failure(int(match[1]), f"the proxy {self.host}:{self.port}") from None
            raise
        self.step = "for TLS"


def _refused_file() -> OSError | None:
    """Return the error if this process can open no file. Then `getaddrinfo` calls every name unknown."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return error
    return None


class _TlsConnection(_Connection, HTTPSConnection):
    """The same for https."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection  # type: ignore[assignment]


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection  # type: ignore[assignment]
