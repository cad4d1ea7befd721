"""Makes many HTTP requests at once in one thread, through libcurl."""

import atexit
import os
import select
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pycurl

from mpload.storage.waiters import WAITERS
from mpload.units import KIB

__all__ = ["Answer", "Transfers"]

_LEAST_VERSION = 0x080400  # of libcurl: earlier ones do not limit the size of answers without a length
if pycurl.version_info()[2] < _LEAST_VERSION:
    raise ImportError("libcurl is too old")

_BUFFER_BYTES = 256 * KIB
_MAX_IDLE = 128  # connections that are kept
_MAX_IDLE_SECONDS = 60
_MAX_HANDLES = 128
_ERRORS_OF_REQUEST = (pycurl.error, ValueError)  # such as for a URL that is none
_GATHERED_MS = 16
"""While no thread waits, answers gather for this time, since each answer that is handled alone wakes the thread."""
_LARGE_BYTES = 256 * KIB
"""Answers that are larger on average do not gather."""
_MEAN_OF = 8
_EXIT_SECONDS = 1.0
_RETRY_SECONDS = 5.0
_QUICK_EXIT = 322  # CURLOPT_QUICK_EXIT: do not wait for DNS at the end. pycurl has no name for it
_EVENTS = {
    pycurl.POLL_IN: selectors.EVENT_READ,
    pycurl.POLL_OUT: selectors.EVENT_WRITE,
    pycurl.POLL_INOUT: selectors.EVENT_READ | selectors.EVENT_WRITE,
}


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answer to a request, without its body if that is larger than allowed."""

    status: int
    headers: Sequence[bytes]
    """The lines before the body, also those of provisional answers."""
    body: bytes


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """What `begin` was given."""

    url: str
    headers: list[str]
    max_bytes: int
    until: float
    connect_seconds: float
    done: Callable[[Answer | int], None]


@dataclass(slots=True, eq=False)
class _Handle:
    """A handle of libcurl, which serves one request after the other."""

    curl: Any
    parts: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    request: _Request | None = None

    def answer(self) -> Answer:
        """Return what has come."""
        parts = self.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return Answer(status=self.curl.getinfo(pycurl.RESPONSE_CODE), headers=tuple(self.lines), body=body)

    def clear(self) -> None:
        """Let go of the request and its answer."""
        self.request = None
        self.parts.clear()
        self.lines.clear()


class Transfers:
    """A thread that makes requests. Threads that each wait for one request would take more processor time.

    While no thread of the process waits (`WAITERS`), new requests and answers gather for 16 ms, and so do the steps in
    which a connection is made. Large answers do not: handling one at a time costs little, and few fit into memory.

    Use `of_process`, so that all clients share the thread and its connections.

    Process: for the process in which it was made. Any thread may use it.
    """

    def __init__(self) -> None:
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, _MAX_IDLE)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._sockets = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._sockets.register(self._woken, selectors.EVENT_READ)
        self._calls = select.poll()
        self._calls.register(self._woken, select.POLLIN)
        self._is_gathering = False
        self._mean_bytes = 0.0  # of about the latest `_MEAN_OF` answers
        self._due = float("inf")  # when libcurl wants to be called, by the monotonic clock
        self._new = deque[_Request]()
        self._idle = list[_Handle]()
        self._running = dict[Any, _Handle]()
        self._is_ended = False
        self._thread = threading.Thread(target=self._serve, name="mpload-transfers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # a limit on threads is reached
            self._close()
            self._multi.close()
            raise

    @classmethod
    def of_process(cls) -> "Transfers | None":
        """Return the transfers of this process, which are started if need be; None if the system refuses that."""
        if _Here.transfers is None and time.monotonic() >= _Here.starts_at:
            with _Here.starting:
                try:
                    if not _Here.transfers:
                        _Here.transfers = cls()
                except (OSError, RuntimeError, pycurl.error):  # a limit of the system is reached
                    _Here.starts_at = time.monotonic() + _RETRY_SECONDS
        return _Here.transfers

    def begin(
        self,
        url: str,
        *,
        headers: list[str],
        max_bytes: int,
        until: float,
        connect_seconds: float,
        done: Callable[[Answer | int], None],
    ) -> bool:
        """Begin a request: GET, without redirects, not through a proxy. Return False if the thread has ended.

        Args:
            url: what to request.
            headers: the lines of its head.
            max_bytes: size of the largest body.
            until: when the request ends at the latest, by the monotonic clock.
            connect_seconds: time limit for a connection to be made.
            done: called in the thread of this object with the answer, or with libcurl's code of the error; 0 means that
                the request could not be made. It must not wait, and may begin other requests.
        """
        request = _Request(
            url=url, headers=headers, max_bytes=max_bytes, until=until, connect_seconds=connect_seconds, done=done
        )
        self._new.append(request)
        if not self._is_gathering and threading.get_ident() != self._thread.ident:
            self._wake()
        if self._is_ended:
            with suppress(ValueError):  # the thread has taken it
                self._new.remove(request)
                return False
        return True

    def _wake(self) -> None:
        with suppress(OSError):  # it has been woken so often that the buffer is full
            self._waker.send(b"\0")

    def end(self) -> None:
        """End the thread, before the interpreter goes."""
        self._is_ended = True
        self._wake()
        self._thread.join(_EXIT_SECONDS)

    def _serve(self) -> None:
        try:
            self._run()
        finally:
            was_ended, self._is_ended = self._is_ended, True
            if not was_ended:  # by `end`, when the interpreter goes
                requests = [each.request for each in self._running.values() if each.request is not None]
                self._running.clear()
                with suppress(IndexError):
                    while True:
                        requests.append(self._new.popleft())
                self._close()
                for request in requests:
                    _pass_on(request, 0)

    def _run(self) -> None:
        may_gather = False
        while not self._is_ended:
            self._start_new()
            now = time.monotonic()
            if self._due <= now:
                self._due = float("inf")
                self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
                self._finish()
                continue
            if may_gather and self._gathers() and not self._sockets.select(0):  # all that has come was handled
                self._gather()
                may_gather = False
                continue
            may_gather = True
            for key, events in self._sockets.select(None if self._due == float("inf") else self._due - now):
                if key.fileobj is self._woken:
                    with suppress(OSError):
                        self._woken.recv(4096)
                else:
                    readable = pycurl.CSELECT_IN if events & selectors.EVENT_READ else 0
                    writable = pycurl.CSELECT_OUT if events & selectors.EVENT_WRITE else 0
                    self._multi.socket_action(key.fd, readable | writable)
            self._finish()

    def _gathers(self) -> bool:
        return bool(self._running) and not WAITERS and self._mean_bytes < _LARGE_BYTES

    def _gather(self) -> None:
        """Let new requests and answers gather, until a thread waits for one."""
        with WAITERS.called(self._wake):
            self._is_gathering = True  # a request that does not see this wakes the thread
            if not WAITERS:  # one that waits from now on wakes the thread
                self._calls.poll(_GATHERED_MS)
            self._is_gathering = False

    def _start_new(self) -> None:
        while self._new:
            request = self._new.popleft()
            try:
                handle = self._idle.pop() if self._idle else _new_handle()
                _set(handle.curl, request)
                self._multi.add_handle(handle.curl)
            except BaseException as error:
                _pass_on(request, 0)
                if not isinstance(error, _ERRORS_OF_REQUEST):
                    raise
            else:
                handle.request = request
                self._running[handle.curl] = handle

    def _finish(self) -> None:
        """Pass on the answers that have come to their end."""
        num_left = 1
        while num_left:
            num_left, good, bad = self._multi.info_read()
            for curl in good:
                self._give(curl, code=0)
            for curl, code, _ in bad:
                self._give(curl, code=code)

    def _give(self, curl: Any, *, code: int) -> None:
        handle = self._running[curl]
        request, result = handle.request, code or handle.answer()
        if code == pycurl.E_FILESIZE_EXCEEDED:
            handle.parts.clear()
            result = handle.answer()  # its status and its headers still say something
        if isinstance(result, Answer):
            self._mean_bytes += (len(result.body) - self._mean_bytes) / _MEAN_OF
        self._multi.remove_handle(curl)
        del self._running[curl]
        handle.clear()
        if len(self._idle) < _MAX_HANDLES:
            self._idle.append(handle)
        if request is not None:
            _pass_on(request, result)

    def _watch(self, what: int, fd: int, _multi: Any, _data: Any) -> None:
        """Wait for what libcurl wants to know of a socket."""
        is_known = fd in self._sockets.get_map()
        if what == pycurl.POLL_REMOVE:
            if is_known:
                self._sockets.unregister(fd)
        elif is_known:
            self._sockets.modify(fd, _EVENTS[what])
        else:
            self._sockets.register(fd, _EVENTS[what])

    def _set_timer(self, milliseconds: int) -> None:
        self._due = float("inf") if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _close(self) -> None:
        self._sockets.close()
        self._woken.close()
        self._waker.close()


def _pass_on(request: _Request, result: Answer | int) -> None:
    with suppress(BaseException):  # else all other requests would never end
        request.done(result)


class _Here:
    """The transfers of this process."""

    transfers: Transfers | None = None
    starts_at = float("-inf")
    """When they may be started again, after the system has refused it."""
    starting = threading.Lock()
    """Held while they are started."""
    of_parents: ClassVar[list[Transfers]] = []
    """Kept, since their end would end the connections of the process that started them."""


def _forget() -> None:
    """Leave the transfers of the process that forked this one alone."""
    _Here.starting = threading.Lock()
    if _Here.transfers is not None:
        _Here.of_parents.append(_Here.transfers)
        _Here.transfers = None


def _new_handle() -> _Handle:
    handle = _Handle(pycurl.Curl())
    curl = handle.curl
    curl.setopt(pycurl.NOSIGNAL, 1)
    curl.setopt(pycurl.BUFFERSIZE, _BUFFER_BYTES)
    curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    curl.setopt(pycurl.MAXAGE_CONN, _MAX_IDLE_SECONDS)
    curl.setopt(pycurl.PATH_AS_IS, 1)
    curl.setopt(pycurl.PROXY, "")
    curl.setopt(_QUICK_EXIT, 1)
    curl.setopt(pycurl.USERAGENT, "mpload")
    authorities = ssl.get_default_verify_paths()  # those of the library are where its wheel was built
    for option, path in ((pycurl.CAINFO, authorities.cafile), (pycurl.CAPATH, authorities.capath)):
        if path:
            curl.setopt(option, os.fsencode(path))
        else:
            curl.unsetopt(option)
    curl.setopt(pycurl.WRITEFUNCTION, handle.parts.append)
    curl.setopt(pycurl.HEADERFUNCTION, handle.lines.append)
    return handle


def _set(curl: Any, request: _Request) -> None:
    milliseconds = max(1, round(1000 * (request.until - time.monotonic())))
    curl.setopt(pycurl.URL, request.url)
    curl.setopt(pycurl.HTTPHEADER, request.headers)
    curl.setopt(pycurl.MAXFILESIZE_LARGE, request.max_bytes)
    curl.setopt(pycurl.TIMEOUT_MS, milliseconds)
    curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, round(1000 * request.connect_seconds)))


def _end() -> None:
    if _Here.transfers is not None:
        _Here.transfers.end()


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
