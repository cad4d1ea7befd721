"""An HTTP connection to a server, for one request at a time."""

import http.client
import io
import json
import math
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from mpload.client.options import Servers
from mpload.client.protocol import DATASET_HEADER, MAX_HEAD_BYTES, MEDIA_TYPE, Description, ProtocolError
from mpload.client.refusals import plain
from mpload.client.tls import TlsSocket
from mpload.errors import ServerError
from mpload.units import KIB

__all__ = ["Busy", "Connection", "OtherDataset", "Refused", "RequestError", "readable", "tls_for"]

_BUSY = frozenset({http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.TOO_MANY_REQUESTS})
_BUSY_SECONDS = 1.0
_LEAST_CONNECT_SECONDS = 0.001  # 0 would mean not to wait at all
_SHOWN_BYTES = 200
_WAKE_BYTES = 256 * KIB
"""A large answer wakes the worker once for so many bytes, not for each packet or TLS record."""
_COARSE_SECONDS = 0.05
"""By how much a time limit may be exceeded, so that it is not set anew for each piece of an answer."""


class RequestError(Exception):
    """A request has failed. The message says what the server did."""


class Busy(RequestError):  # noqa: N818  it is an answer
    """The server wants no requests for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"is busy for {seconds:g} s")
        self.seconds = seconds


class Refused(Exception):  # noqa: N818  it is an answer
    """The server refuses this loader, and will do so again. The message says why."""


class OtherDataset(Refused):
    """The server makes samples of another dataset, or makes them in another way."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.description = description


def tls_for(servers: Servers) -> ssl.SSLContext | None:
    """Return how connections are encrypted; None if all URLs begin with `http:`, and will do so.

    Raises:
        ServerError: `ca_file` cannot be read.
    """
    if servers.list_file is None and not any(url.startswith("https:") for url in servers.urls):
        return None
    try:
        return ssl.create_default_context(cafile=servers.ca_file)
    except OSError as error:
        raise ServerError(f"ca_file={servers.ca_file!r} has no certificates: {error}") from error


class Connection:
    """A connection to the server at `url`, which is made for the first request and kept.

    Process: for the process, and the thread, that sends the first request.
    """

    def __init__(self, url: str, servers: Servers, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self._http, path = _http_of(url, servers, tls)
        self._path = f"{path}/v1/samples"
        self._headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
        if servers.token is not None:
            self._headers["Authorization"] = f"Bearer {servers.token}"
        self._limit_seconds = servers.request_timeout_seconds
        self._connect_seconds = servers.connect_timeout_seconds
        self._body, self._digest = b"", ""
        self._was_used = False
        self._wakes_for = 1
        self.checked: int | None = None
        """What the caller notes about the server at the other end. None once it is connected anew: the server may have
        been started again."""
        self._response: http.client.HTTPResponse | None = None

    def ask(self, body: bytes, digest: str, *, connect_seconds: float = math.inf) -> None:
        """Send a request for samples of the dataset with this digest.

        Making a connection takes no longer than `connect_seconds` and the limit that `Servers` has.

        Raises:
            RequestError: it cannot be sent.
            Refused: the Unix socket is that of another user.
        """
        self._body, self._digest = body, digest
        try:
            if self._was_used and self._send():
                return
            self._was_used, self.checked = False, None
            self._http.close()
            self._http.timeout = min(self._connect_seconds, max(_LEAST_CONNECT_SECONDS, connect_seconds))
            self._http.connect()
            self._wakes_for = 1
            self._request()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise RequestError(_told(error)) from error

    def _send(self) -> bool:
        """Send the request over the connection that is there; return whether the server has kept it open."""
        with suppress(OSError, http.client.HTTPException):
            if not _has_input(self._http.sock):
                self._request()
                return True
        return False

    def _request(self) -> None:
        self._http.sock.settimeout(self._limit_seconds)
        self._http.request("POST", self._path, self._body, {**self._headers, DATASET_HEADER: self._digest})

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the answer begins."""
        return int(self._http.sock.fileno())

    def begin(self, deadline: float) -> int:
        """Read the head of the answer, and return the number of bytes that `read_into` may read.

        Raises:
            RequestError: there is no answer, or not one of a server of samples; the time limit may have passed.
            Busy: the server has too much to do.
            Refused: it wants another token, or has another dataset (`OtherDataset`).
        """
        try:
            try:
                self._response = self._read_head(deadline)
            except ConnectionError:  # includes a server that closes connections which were idle for long
                if not self._was_used:
                    raise
                self._was_used = False
                self.ask(self._body, self._digest, connect_seconds=deadline - time.monotonic())
                self._response = self._read_head(deadline)
            self._was_used = True
            return self._judged(self._response)
        except (OSError, http.client.HTTPException) as error:
            raise RequestError(_told(error)) from error

    def _read_head(self, deadline: float) -> http.client.HTTPResponse:
        # The response makes a buffered file of what it believes to be a socket, and reads large parts past its buffer.
        response_class: Any = partial(_response, deadline)
        self._http.response_class = response_class
        return self._http.getresponse()

    def _judged(self, response: http.client.HTTPResponse) -> int:
        kind = response.headers.get_content_type()
        if response.status == http.HTTPStatus.OK:
            if kind != MEDIA_TYPE or response.length is None:
                raise RequestError(f"answers with {plain(kind)}, so it is no server of samples{_shown(response)}")
            return response.length
        if response.status in _BUSY and "Retry-After" in response.headers:
            raise Busy(_pause_of(response))
        if response.status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            raise Refused("wants another token: pass token=, the one that `mpload serve` has")
        if response.status == http.HTTPStatus.CONFLICT:
            raise OtherDataset(_description(response))
        raise RequestError(f"answers {response.status} {plain(response.reason)}{_shown(response)}")

    def read_into(self, buffer: memoryview) -> None:
        """Fill `buffer` with the next bytes of the answer.

        Raises:
            RequestError: the answer ends too early, or is too late.
        """
        assert self._response is not None
        many = max(0, len(buffer) - 2 * _WAKE_BYTES)  # so that more will come than one waits for
        try:
            self._wake_for(_WAKE_BYTES if many else 1)
            num_read = self._response.readinto(buffer[:many]) if many else 0
            if num_read == many:
                self._wake_for(1)
                num_read += self._response.readinto(buffer[many:])
        except (OSError, http.client.HTTPException) as error:
            raise RequestError(_told(error)) from error
        if num_read < len(buffer):
            raise RequestError("closed the connection in the middle of an answer")

    def _wake_for(self, num_bytes: int) -> None:
        """Let the socket count as readable only when it has so many bytes, or has ended."""
        if num_bytes != self._wakes_for and self._http.sock is not None:  # it is None if this answer is its last
            with suppress(OSError):  # not every system knows it
                self._http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
            self._wakes_for = num_bytes

    def keep(self) -> bool:
        """End an answer that was read completely. Return whether the connection can be used again."""
        response, self._response = self._response, None
        assert response is not None
        with suppress(OSError):
            response.read(1)  # of nothing: marks the response as finished
        if response.isclosed() and not response.will_close:
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close the connection. May be called again."""
        if self._response is not None:
            self._response.close()
            self._response = None
        self._http.close()
        self._was_used = False


def _http_of(url: str, servers: Servers, tls: ssl.SSLContext | None) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection that is not made yet, and the beginning of the paths to ask for."""
    parts, limit_seconds = urlsplit(url), servers.connect_timeout_seconds
    if parts.scheme == "unix":
        return _SocketFileConnection(parts.path, limit_seconds, is_for_all=servers.token is not None), ""
    assert parts.hostname is not None
    if tls is not None and parts.scheme == "https":
        return _TlsConnection(parts.hostname, parts.port, limit_seconds, tls), parts.path
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=limit_seconds), parts.path


class _SocketFileConnection(http.client.HTTPConnection):
    """A connection over a Unix socket. Unless it `is_for_all`, only this user or root may listen there.

    In a folder such as `/tmp`, another user could have made the socket.
    """

    def __init__(self, path: str, limit_seconds: float, *, is_for_all: bool) -> None:
        super().__init__("localhost", timeout=limit_seconds)
        self._file = path
        self._is_for_all = is_for_all

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._file)
        if not self._is_for_all and (user := _listener_of(self.sock)) not in {0, os.geteuid()}:
            self.close()
            raise Refused(
                f"is a server of user {user}, who could make other samples. Start one of your own, or pass token= if "
                "that user's server is meant and has one"
            )


def _listener_of(connected: socket.socket) -> int:
    """Return the user who listens at the other end of a Unix socket."""
    facts = struct.Struct("iII")  # process, user, group
    _, user, _ = facts.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, facts.size))
    return int(user)


class _TlsConnection(http.client.HTTPConnection):
    """An encrypted connection."""

    default_port = http.client.HTTPS_PORT

    def __init__(self, host: str, port: int | None, limit_seconds: float, tls: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=limit_seconds)
        self._tls = tls

    def connect(self) -> None:
        began = time.monotonic()
        super().connect()
        plain = self.sock
        plain.settimeout(max(_LEAST_CONNECT_SECONDS, began + float(self.timeout or 0) - time.monotonic()))
        try:
            self.sock: Any = TlsSocket(plain, self._tls, self.host)
        except BaseException:
            plain.close()
            raise


class _UntilDeadline(io.RawIOBase):
    """What a socket receives until a deadline, however slowly it drips."""

    def __init__(self, connected: socket.socket | TlsSocket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline
        self._set_left = math.inf
        self._open = connected.makefile("rb", buffering=0)  # keeps the socket open for a response that is its last

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not 0 <= self._set_left - left < _COARSE_SECONDS:
            self._socket.settimeout(left)
            self._set_left = left
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._open.close()
        super().close()

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the file that an `HTTPResponse` wants of a socket."""
        del mode
        return io.BufferedReader(self)


def _response(deadline: float, connected: socket.socket | TlsSocket, **options: Any) -> http.client.HTTPResponse:
    source: Any = _UntilDeadline(connected, deadline)
    return http.client.HTTPResponse(source, **options)


def _has_input(connected: socket.socket | TlsSocket | None) -> bool:
    """Whether a connection that waits for nothing was closed by the other side, or is out of step."""
    if connected is None:
        return True
    connected.setblocking(False)
    try:
        _ = connected.recv(1) if isinstance(connected, TlsSocket) else connected.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True


def _pause_of(response: http.client.HTTPResponse) -> float:
    try:
        seconds = float(response.headers.get("Retry-After", _BUSY_SECONDS))
    except ValueError:  # a date
        return _BUSY_SECONDS
    return seconds if 0 < seconds < float("inf") else _BUSY_SECONDS


def _description(response: http.client.HTTPResponse) -> Description:
    try:
        return Description.decode(response.read(MAX_HEAD_BYTES))
    except ProtocolError as error:
        raise RequestError(f"says that it has another dataset, but not which: {error}") from error


def _shown(response: http.client.HTTPResponse) -> str:
    """Return the beginning of a body for a message, or the text of an error as JSON."""
    with suppress(OSError, http.client.HTTPException):
        text = response.read(_SHOWN_BYTES).decode("utf-8", "replace")
        with suppress(ValueError, KeyError, TypeError):
            text = str(json.loads(text)["error"])
        return f": {' '.join(text.split())!r}" if text.strip() else ""
    return ""


def _told(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer within the time limit"
    if isinstance(error, http.client.RemoteDisconnected):
        return "closed the connection instead of answering"
    if isinstance(error, http.client.HTTPException):
        return f"does not speak HTTP: {error!r:.200}"
    return f"{type(error).__name__}: {error}"


class _Polled(Protocol):
    def fileno(self) -> int: ...


_P = TypeVar("_P", bound=_Polled)


def readable(requests: Sequence[_P], *, until: float) -> _P | None:
    """Return a request whose answer begins before `until`, by the clock; None if there is none."""
    poll = select.poll()
    by_fd = {}
    for request in requests:
        by_fd[request.fileno()] = request
        poll.register(request.fileno(), select.POLLIN)
    found = poll.poll(max(0.0, until - time.monotonic()) * 1000)
    return by_fd[found[0][0]] if found else None
