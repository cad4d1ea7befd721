"""A server of samples in a thread of the test, which answers as it is told to: late, wrong, or not at all.

It makes samples as `mpload serve` does, one request at a time, and is there before a test has started a process.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from mpload import MPDataset, Topology
from mpload.client.protocol import (
    DATASET_HEADER,
    MEDIA_TYPE,
    AnswerHead,
    Description,
    Wanted,
    buffers_of,
)
from mpload.loader.index_source import IndexSource
from mpload.plan.batch_number import BatchNumber
from mpload.transport.messages import cause_of, details_of
from mpload.transport.ragged import RaggedArray
from mpload.transport.ring import SlotRing, blank
from mpload.transport.slots import SlotLayout
from mpload.transport.worker import ChunkReport

if TYPE_CHECKING:
    from mpload.samples.index_work import PipelineWork

__all__ = ["SampleServer", "answering", "sample_server"]

Answer = Callable[["Handler", bytes], bool]
"""Answers a request, whose proper answer is given, and returns whether it did."""


class SampleServer(ThreadingHTTPServer):
    """Makes the samples of a dataset."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, dataset: MPDataset[Any], *, port: int = 0, token: str | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.token = token
        source = IndexSource(dataset._runs)
        fields = source.sample_fields()
        self.description: Description = source.describe(fields)
        self._work: PipelineWork = source.sample_work(read_ahead_bytes=1 << 20, decode_bytes=1 << 30)
        self._work.open(0)
        self._ring = SlotRing(num_slots=1, layout=SlotLayout(num_samples=256, fields=fields), huge_pages=False)
        self._lock = threading.Lock()
        self.answer: Answer | None = None
        """Answers instead, if it wants to."""
        self.num_requests = 0
        self.num_samples = 0
        self.connections: set[Any] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def made(self, wanted: Wanted) -> bytes:
        """Return the body of the proper answer."""
        with self._lock:
            self.num_samples += len(wanted.sample_ids)
            arrays = self._ring.views(0)
            number = BatchNumber(
                seed=wanted.seed, epoch=wanted.epoch, start=0, batch=wanted.bucket, topology=Topology()
            )
            work: Any = self._work
            work.sample_ids = lambda _, first, last: wanted.sample_ids[first:last]
            report = ChunkReport()
            num_samples = len(wanted.sample_ids)
            for place in range(num_samples):
                for each in arrays.values():
                    if isinstance(each, RaggedArray):
                        each.begin(place, place + 1)
                try:
                    work.fill(number.numbers, arrays, place, place + 1, report)
                except Exception as error:  # noqa: BLE001  is an answer
                    blank(arrays, place)
                    report.failed(place, cause_of(error), details_of(error))
            head = AnswerHead(tally=report.tally, failures=tuple(report.failures))
            views = work.unpacked(number, arrays)
            return b"".join([head.encode(), *map(bytes, buffers_of(views, 0, num_samples))])

    def drop_connections(self) -> None:
        """Reset all connections."""
        for connection in list(self.connections):
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: SampleServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        with suppress(OSError, ValueError):
            super().finish()

    def handle(self) -> None:
        with suppress(OSError, ValueError):
            super().handle()

    def do_POST(self) -> None:
        server = self.server
        server.num_requests += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if server.token is not None and self.headers["Authorization"] != f"Bearer {server.token}":
            self.reply(401, b"")
        elif self.headers[DATASET_HEADER] != server.description.digest:
            self.reply(409, server.description.encode(), kind="application/json")
        else:
            made = server.made(Wanted.decode(body))
            if server.answer is None or not server.answer(self, made):
                self.reply(200, made)

    def reply(self, status: int, body: bytes, *, kind: str = MEDIA_TYPE, **headers: str) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def sample_server(dataset: MPDataset[Any], *, port: int = 0, token: str | None = None) -> Iterator[SampleServer]:
    """Start a server, yield it, and stop it at the end."""
    server = SampleServer(dataset, port=port, token=token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        server.drop_connections()
        thread.join(timeout=30)


def answering(body: bytes, *, status: int = 200, kind: str = MEDIA_TYPE, **headers: str) -> Answer:
    """Return what answers each request with this."""

    def answer(handler: Handler, made: bytes) -> bool:
        del made
        handler.reply(status, body, kind=kind, **headers)
        return True

    return answer
