"""Machines that share a cache: a folder and a server for each, all on this machine, and their source, a web server."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from mpload import MPDataset, MPLoader, PartialCache, RawBytes, Topology
from tests.support.batches import flat
from tests.support.running_servers import running_server

__all__ = ["NUM_FILES", "Machines", "epochs", "free_ports", "load_ids", "machines"]

NUM_FILES = 200


def free_ports(count: int) -> list[int]:
    """Return TCP ports that nothing listens on."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


class Source(ThreadingHTTPServer):
    """The files, each under its number."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, bytes_per_file: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        rng = np.random.default_rng(1)
        self.files = [rng.bytes(int(rng.integers(2 * bytes_per_file))) for _ in range(NUM_FILES)]
        self.reads: Counter[int] = Counter()
        """How often each file was delivered."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Source

    def do_GET(self) -> None:
        number = int(self.path.strip("/"))
        self.server.reads[number] += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.files[number])))
        self.end_headers()
        self.wfile.write(self.server.files[number])

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Machines:
    """The machines, and how many files their source has delivered."""

    folder: Path
    source: Source
    urls: list[str]
    options: dict[str, Any]
    """Of the cache."""
    running: dict[int, ExitStack] = field(default_factory=dict)

    def dataset(self, place: int, **options: Any) -> MPDataset[Any]:
        """Return a dataset as the job on a machine opens it."""
        cache = {"fraction": 0.5, "max_bytes": "64MiB", "machines": self.urls, "machine": place, **self.options}
        return MPDataset(
            self.folder / "index.txt",
            **{
                "decode": RawBytes(),
                "batch_size": 8,
                "tail": "ragged",
                "shuffle": True,
                "topology": Topology(rank=place, world_size=len(self.urls)),
                "cache": PartialCache(self.folder / f"cache{place}", **cache),
                **options,
            },
        )

    def start(self, place: int, **options: Any) -> None:
        """Start the server of a machine."""
        self.running[place] = ExitStack()
        port = int(self.urls[place].rpartition(":")[2])
        chosen = {"port": port, "host": "127.0.0.1", "num_workers": 1, **options}
        self.running[place].enter_context(running_server(self.dataset(place), **chosen))

    def stop(self, place: int) -> None:
        """Stop the server of a machine, if it runs."""
        if place in self.running:
            self.running.pop(place).close()

    def num_source_reads(self) -> int:
        """Return the number of files that the source has delivered since the last call."""
        count = self.source.reads.total()
        self.source.reads.clear()
        return count


@contextmanager
def machines(folder: Path, count: int, *, bytes_per_file: int = 2500, **options: Any) -> Iterator[Machines]:
    """Yield machines without servers; `options` are those of their caches."""
    source = Source(bytes_per_file)
    threading.Thread(target=source.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    lines = "".join(f"{number}\t{number}\n" for number in range(NUM_FILES))
    (folder / "index.txt").write_text(f"#mpload 1\n#root {source.url}\n#columns data:path label:int\n{lines}")
    made = Machines(folder, source, [f"http://127.0.0.1:{port}" for port in free_ports(count)], options)
    try:
        yield made
    finally:
        for place in range(count):
            made.stop(place)
        source.shutdown()
        source.server_close()


def epochs(made: Any, place: int, *, num_workers: int = 0) -> Any:
    """Return a loader of a machine's job and a function that loads its next epoch."""
    loader = MPLoader(made.dataset(place), num_workers=num_workers)

    def load() -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for data, labels in loader:
            found.update(zip(labels.tolist(), data, strict=True))
        return found

    return loader, load


def load_ids(made: Any) -> list[int]:
    return flat([labels.tolist() for _, labels in made.dataset(0, cache=None)])
