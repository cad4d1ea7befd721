"""Reads the answers of web servers: HTTP/1.0 and 1.1.

Python's `http.client` does this too, but takes several times as much CPU time, most of it for headers.
"""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from io import BufferedReader

__all__ = ["Answer", "CutShortError", "NoAnswerError", "NotHttpError"]

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n]*)?\r?\n")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_MAX_LINE_BYTES = 1 << 16
_MAX_LINES = 256
_SWITCHING = 200  # answers below it are followed by another one
_NO_BODY = {204, 304}


class NotHttpError(Exception):
    """What a server sent is not HTTP."""


class NoAnswerError(Exception):
    """The connection ended before the answer began."""


class CutShortError(Exception):
    """The connection ended before the end of the answer."""


class Answer:
    """The head of an answer, and what is left of its body.

    Args:
        reader: reads from the connection, at the beginning of the answer.

    Raises:
        NoAnswerError, CutShortError, NotHttpError: see there.
        OSError: the connection fails.
    """

    def __init__(self, reader: "BufferedReader[Any]") -> None:
        self._reader = reader
        self.status = 0
        while self.status < _SWITCHING:
            self._read_head()
        encoding = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        self.is_chunked = encoding == "chunked"
        if (encoding and not self.is_chunked) or (length and not length.isdecimal()):
            raise NotHttpError
        self.length = int(length) if length and not self.is_chunked else None
        """Bytes of the body; None if the head does not say it."""
        if self.status in _NO_BODY:
            self.length = 0
        self.is_complete = self.length == 0
        """Whether the whole body was read."""
        self._num_left = self.length or 0

    def _read_head(self) -> None:
        line = self._reader.readline(_MAX_LINE_BYTES)
        if not line:
            raise NoAnswerError
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise NotHttpError
        self.status = int(match[2])
        headers = {}
        for _ in range(_MAX_LINES):
            line = self._line()
            if line in {b"\r\n", b"\n"}:
                break
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        else:
            raise NotHttpError
        self.headers = headers
        """By name, in lower case."""
        connection = headers.get("connection", "").lower()
        self._keeps_open = "keep-alive" in connection or (match[1] == b"1" and "close" not in connection)

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can be used for another request now."""
        return self._keeps_open and self.is_complete and (self.is_chunked or self.length is not None)

    @property
    def has_end(self) -> bool:
        """Whether the answer says where it ends. Otherwise a broken connection looks the same as its end."""
        return self.is_chunked or self.length is not None

    def read(self, max_bytes: int | None = None) -> bytes:
        """Return the rest of the body, or the next `max_bytes` of it.

        Raises:
            CutShortError, NotHttpError: see there.
            OSError: the connection fails.
        """
        if self.is_chunked:
            return self._read_chunks(max_bytes)
        if self.length is None:
            data = self._reader.read(-1 if max_bytes is None else max_bytes)
            self.is_complete = max_bytes is None or len(data) < max_bytes
            return data
        num_bytes = self._num_left if max_bytes is None else min(max_bytes, self._num_left)
        data = self._exactly(num_bytes)
        self._num_left -= num_bytes
        self.is_complete = not self._num_left
        return data

    def _read_chunks(self, max_bytes: int | None) -> bytes:
        parts: list[bytes] = []
        num_bytes = 0
        while not self.is_complete and (max_bytes is None or num_bytes < max_bytes):
            if not self._num_left:
                match = _CHUNK.fullmatch(self._line())
                if match is None:
                    raise NotHttpError
                self._num_left = int(match[1], 16)
                if not self._num_left:
                    while self._line() not in {b"\r\n", b"\n"}:  # trailers
                        pass
                    self.is_complete = True
                    break
            parts.append(self._exactly(min(self._num_left, (max_bytes or self._num_left + num_bytes) - num_bytes)))
            num_bytes += len(parts[-1])
            self._num_left -= len(parts[-1])
            if not self._num_left and self._line() not in {b"\r\n", b"\n"}:
                raise NotHttpError
        return b"".join(parts)

    def _line(self) -> bytes:
        line = self._reader.readline(_MAX_LINE_BYTES)
        if line.endswith(b"\n"):
            return line
        raise NotHttpError if len(line) == _MAX_LINE_BYTES else CutShortError

    def _exactly(self, num_bytes: int) -> bytes:
        data = self._reader.read(num_bytes)
        if len(data) < num_bytes:
            raise CutShortError
        return data
