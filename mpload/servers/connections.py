"""`Connections`: cuts off the clients that do not ask, or do not read their answers."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from mpload.units import KIB

__all__ = ["HEAD_LIMITS", "Connections", "request_logger"]

HEAD_LIMITS: dict[str, Any] = {"max_line_size": 2 * KIB, "max_field_size": 2 * KIB, "max_headers": 64}
"""Of the head of a request. What has come of it is kept; with aiohttp's own limits, that may be a megabyte."""

_TICK_SECONDS = 0.02


@dataclass(slots=True, kw_only=True)
class _Connection:
    transport: asyncio.Transport | None
    """aiohttp forgets it when it closes the connection, which waits for a client that does not read."""
    idle_since: float
    is_cut_off: bool = False


@dataclass(slots=True, kw_only=True)
class Connections:
    """The connections of a server.

    An answer of the application itself (an error, a metric) ends when it is handed to the connection. If the client
    does not read, the connection is idle from then on.

    Process: for the thread that runs the event loop.
    """

    client_seconds: float
    """How long a connection may be idle."""
    on_cut_off: Callable[[], None]
    """Called once for each connection that is cut off."""
    _busy: set[web.RequestHandler] = field(default_factory=set)  # their requests are being answered
    _known: dict[web.RequestHandler, _Connection] = field(default_factory=dict)

    @contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        """While the body runs, the connection of a request is not idle."""
        handler = request.protocol
        self._know(handler)
        self._busy.add(handler)
        try:
            yield
        finally:
            self._busy.discard(handler)
            self._know(handler).idle_since = monotonic()

    def _know(self, handler: web.RequestHandler) -> _Connection:
        if handler not in self._known:
            self._known[handler] = _Connection(transport=handler.transport, idle_since=monotonic())
        return self._known[handler]

    async def cut_off_idle(self, server: web.Server) -> None:
        """Abort connections on which no request comes, or not its whole head, or nothing is read; until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self.client_seconds / 4))
            now = monotonic()
            self._known = {each: self._know(each) for each in server.connections}
            for handler, each in self._known.items():
                if handler not in self._busy and now - each.idle_since > self.client_seconds and not each.is_cut_off:
                    each.is_cut_off = True
                    self.on_cut_off()
                    _abort(each)

    def abort_all(self, server: web.Server) -> None:
        """Abort all connections, without sending what is left."""
        for handler in {*self._known, *server.connections}:
            _abort(self._know(handler))

    async def sent(self) -> None:
        """Wait until all answers are sent. Those of clients that do not read are never, unless they are aborted."""
        for each in list(self._known.values()):
            while _has_unsent(each):  # noqa: ASYNC110  a transport tells its protocol alone, which is aiohttp's
                await asyncio.sleep(_TICK_SECONDS)


def _has_unsent(connection: _Connection) -> bool:
    with suppress(AttributeError):  # of Python, where an encrypted connection has ended
        return connection.transport is not None and connection.transport.get_write_buffer_size() > 0
    return False


def _abort(connection: _Connection) -> None:
    if connection.transport is not None:
        connection.transport.abort()


def request_logger(on_malformed: Callable[[], None]) -> logging.Logger:
    """Return a logger for aiohttp. It counts requests that are no HTTP; each would be written down with a traceback."""

    def is_written_down(record: logging.LogRecord) -> bool:
        error: Any = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            on_malformed()
            return False
        return record.levelno >= logging.WARNING

    logger = logging.Logger("aiohttp.server", logging.DEBUG)  # noqa: LOG001  one for each server of a process
    logger.parent = logging.getLogger("aiohttp")
    logger.addFilter(is_written_down)
    return logger
