"""`TlsSocket`: an encrypted connection that receives many records with one call of the system.

`ssl.SSLSocket` makes two calls for each record of 16 KiB. That took a third of the time to receive an image.
"""

import io
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

__all__ = ["TlsSocket"]

_RECEIVED_BYTES = 512 * 1024
_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_Result = TypeVar("_Result")


class TlsSocket:
    """An encrypted connection over a connected socket, with those methods of a socket that a client of HTTP needs.

    Memory: one megabyte.
    Process: for one thread.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Encrypt a connection to `host`. Raises `OSError` if that fails, or the host's certificate is not trusted."""
        self._socket = connected
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=host)
        self._received = memoryview(bytearray(_RECEIVED_BYTES))
        self._limit_seconds = connected.gettimeout()
        self._done(self._tls.do_handshake)

    def _done(self, step: Callable[[], _Result]) -> _Result:
        """Do a step of the protocol, and receive and send what it takes."""
        began = time.monotonic()
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._send_leaving(began)
                self._limit_since(began)
                num_bytes = self._socket.recv_into(self._received)
                if num_bytes:
                    self._arrived.write(self._received[:num_bytes])
                else:
                    self._arrived.write_eof()
            else:
                self._send_leaving(began)
                return result

    def _send_leaving(self, began: float) -> None:
        if self._leaving.pending:
            self._limit_since(began)
            self._socket.sendall(self._leaving.read())

    def _limit_since(self, began: float) -> None:
        """Limit the next call of the system, so that all since `began` together keep the time limit."""
        if self._limit_seconds:
            left = began + self._limit_seconds - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)

    def sendall(self, data: bytes) -> None:
        """Send all of `data`."""
        self._done(partial(self._tls.write, data))  # into memory, so that it is never a part of it

    def recv_into(self, buffer: Any) -> int:
        """Receive bytes into `buffer`, and return how many: 0 if the other side has closed the connection.

        One call takes all that has arrived, as a socket does, and not the bytes of one record.
        """
        into = memoryview(buffer)
        read: Callable[[], Any] = partial(self._tls.read, len(into), into)
        try:
            num_bytes = int(self._done(read))
        except _ENDS:
            return 0
        more = num_bytes
        with suppress(ssl.SSLWantReadError, *_ENDS):  # no whole record is left; the next call meets the end again
            while more and num_bytes < len(into):
                more = int(self._tls.read(len(into) - num_bytes, into[num_bytes:]))
                num_bytes += more
        return num_bytes

    def recv(self, num_bytes: int) -> bytes:
        """Receive at most `num_bytes`; none if the other side has closed the connection."""
        buffer = bytearray(num_bytes)
        return bytes(buffer[: self.recv_into(buffer)])

    def settimeout(self, seconds: float | None) -> None:
        """Set the time limit for each call; None means none."""
        self._limit_seconds = seconds
        self._socket.settimeout(seconds)

    def setblocking(self, is_blocking: bool) -> None:
        """Say whether calls wait. One that would have to wait otherwise raises `BlockingIOError`."""
        self.settimeout(None if is_blocking else 0.0)

    def makefile(self, mode: str, *, buffering: int) -> io.IOBase:
        """Return a file that keeps the socket open. It reads what is encrypted."""
        return self._socket.makefile(mode, buffering=buffering)  # type: ignore[call-overload,no-any-return]

    def setsockopt(self, level: int, name: int, value: int) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, name, value)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. May be called again."""
        self._socket.close()
