"""The HTTP application: routes, the token, limits, and errors as JSON.

It is made with aiohttp, which has limits and a graceful stop of its own, and serves an event loop, which the pool of
workers needs. Most of what it costs to send an image is the kernel's copy: see benchmarks/bench_servers.py. Pieces of
an answer are not joined; Python 3.11 copies what a socket does not take at once, so they have at most a megabyte.

A slot is never sent by reference (`sendfile`, `MSG_ZEROCOPY`): the kernel would read its pages until they are
acknowledged, while workers fill the slot for another request.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from aiohttp import web

from mpload.client.protocol import DATASET_HEADER, MAX_SAMPLES, MEDIA_TYPE, Description, ProtocolError, Wanted
from mpload.errors import MploadError
from mpload.samples.cache.elsewhere import CACHED_PATH, HIT_HEADER, MACHINE_HEADER
from mpload.servers.cached import CacheReader
from mpload.servers.connections import Connections
from mpload.servers.limits import ServerLimits
from mpload.servers.making import BusyError, SampleMaker
from mpload.servers.metrics import ServerCounts, metrics_text
from mpload.units import KIB, MIB

__all__ = ["SampleService"]

_PIECE_BYTES = MIB
_JOINED_BYTES = 64 * KIB
"""Smaller buffers are joined: a system call costs more than a copy."""
_MAX_REQUEST_BYTES = 8 * MAX_SAMPLES + 4 * KIB
_RETRY_SECONDS = 1
_HUNG_UP = 499
"""The status that nginx counts such requests under. Nobody receives it."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True, kw_only=True)
class SampleService:
    """Answers requests, while its application runs."""

    maker: SampleMaker
    description: Description
    """What the samples are made of."""
    token: str | None
    """What clients must send to get samples; None lets everybody have them."""
    limits: ServerLimits
    cached: CacheReader | None = None
    """Reads the cache for other machines; None if it is not shared."""
    counts: ServerCounts = field(default_factory=ServerCounts)
    connections: Connections = field(init=False)

    def __post_init__(self) -> None:
        self.connections = Connections(
            client_seconds=self.limits.client_seconds, on_cut_off=partial(self.counts.add, num_cut_off=1)
        )

    def app(self) -> web.Application:
        """Return the application. When it is cleaned up, the workers end."""
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_REQUEST_BYTES)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/dataset", self._dataset)
        app.router.add_post("/v1/samples", self._samples)
        app.router.add_get(f"{CACHED_PATH}/{{key}}/{{sample:\\d{{1,18}}}}/{{part:\\d{{1,3}}}}", self._cached)
        app.cleanup_ctx.append(self._run)
        return app

    async def _run(self, _: web.Application) -> AsyncIterator[None]:
        self.maker.begin()
        yield
        if self.cached is not None:
            self.cached.close()
        self.maker.close()

    def end_requests(self, server: web.Server) -> None:
        """End the requests that are still under way, since the time to stop is over. Clients get no more answers."""
        self.connections.abort_all(server)
        self.maker.close()

    async def _health(self, _: web.Request) -> web.Response:
        if self.maker.is_healthy:
            return web.json_response({"status": "ok"})
        return _error(503, f"no workers run: {self.maker.failure or 'they are being started'}")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=metrics_text(self.maker, self.counts, self.cached), content_type="text/plain")

    async def _dataset(self, _: web.Request) -> web.Response:
        return web.Response(body=self.description.encode(), content_type="application/json")

    async def _samples(self, request: web.Request) -> web.StreamResponse:
        wanted_digest = request.headers.get(DATASET_HEADER)
        if wanted_digest is None:
            return _error(400, f"the header {DATASET_HEADER} is missing: the digest of the description of a dataset")
        if wanted_digest != self.description.digest:
            return web.Response(status=409, body=self.description.encode(), content_type="application/json")
        async with asyncio.timeout(self.limits.client_seconds):
            body = await request.read()
        wanted = Wanted.decode(body)
        del body
        made, is_repeated = await self.maker.samples(wanted)
        buffers = made.answer(is_repeated=is_repeated)
        del made
        self.counts.num_samples += len(wanted.sample_ids)
        return await self._send(request, buffers)

    async def _cached(self, request: web.Request) -> web.StreamResponse:
        cached, place = self.cached, request.headers.get(MACHINE_HEADER)
        if cached is None:
            return _error(404, "several machines share no cache of this dataset: see machines= of PartialCache")
        if request.match_info["key"] != cached.key:
            return _error(409, "the cache of this machine has another index, root or form")
        if place != cached.place:
            return _error(409, f"this is machine {cached.place}, not {place}. All machines need the same list")
        kept = await cached.read(int(request.match_info["sample"]), int(request.match_info["part"]))
        if kept is None:
            return web.Response(status=204)
        return await self._send(request, [kept.head, kept.data], {HIT_HEADER: "hit" if kept.is_hit else "miss"})

    async def _send(
        self, request: web.Request, buffers: list[memoryview | bytes], more: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        num_bytes = sum(map(_size, buffers))
        headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(num_bytes), **(more or {})}
        response = web.StreamResponse(headers=headers)
        try:
            async with asyncio.timeout(self.limits.client_seconds):
                await response.prepare(request)
                for piece in _pieces(buffers):
                    await response.write(piece)
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            buffers.clear()
            asyncio.get_running_loop().call_soon(self.maker.submit_waiting)
        self.counts.sent_bytes += num_bytes
        return response

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check the token, count the request, and turn errors into answers."""
        started = monotonic()
        with self.connections.answering(request):
            response = await self._answered(request, handler)
        if request.path == "/v1/samples":
            self.counts.count(response.status, seconds=monotonic() - started)
        return response

    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self.token is not None and request.path.startswith("/v1/") and not _has_token(request, self.token):
            return _error(401, "the token is missing or wrong. Send the header 'Authorization: Bearer TOKEN'")
        try:
            return await handler(request)
        except ProtocolError as error:
            return _error(400, str(error))
        except BusyError as error:
            return _error(503, str(error), headers={"Retry-After": str(_RETRY_SECONDS)})
        except MploadError as error:
            return _error(503, str(error))
        except ConnectionError:
            return _error(_HUNG_UP, "the client has hung up")
        except web.RequestPayloadError as error:
            return _error(400, f"the body is malformed: {error}")
        except TimeoutError:
            self.counts.add(num_cut_off=1)
            return _error(408, f"the request or its answer took longer than {self.limits.client_seconds:g} s")
        except web.HTTPException as error:
            return _error(error.status, f"{error.reason}: {request.method} {request.path}")


def _has_token(request: web.Request, token: str) -> bool:
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


def _error(status: int, text: str, *, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": text}, status=status, headers=headers)


def _size(buffer: memoryview | bytes) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _pieces(buffers: Iterable[memoryview | bytes]) -> Iterator[memoryview | bytes]:
    """Yield buffers in pieces of a good size to send: large ones cut, small ones joined."""
    small: list[memoryview | bytes] = []
    num_bytes = 0
    for buffer in buffers:
        size = _size(buffer)
        if small and (size >= _JOINED_BYTES or num_bytes + size > _PIECE_BYTES):
            yield b"".join(small)
            small, num_bytes = [], 0
        if size >= _JOINED_BYTES:
            yield from (buffer[first : first + _PIECE_BYTES] for first in range(0, size, _PIECE_BYTES))
        else:
            small.append(buffer)
            num_bytes += size
    if small:
        yield b"".join(small)
