"""A page of shared memory on which a loader publishes its statistics for other processes, such as `mpload top`.

It is anonymous (`memfd`), so nothing is left behind, however the process ends. Other processes of the same user find it
among the process's descriptors. Layout: magic (8 bytes), format version, sequence number, length (u64 each,
little-endian), then a JSON object of that length. The sequence number makes it a seqlock: the number is odd during a
write, and a reader that sees an odd number, or a change, reads again.
"""

import json
import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from mpload.telemetry.latencies import Latencies
from mpload.telemetry.server_stats import ServerStats
from mpload.telemetry.stats import LoaderMemory, LoaderStats, SourceStats, Timings, WorkerStats
from mpload.transport.fence import Fence
from mpload.transport.limits import shared_memory
from mpload.units import printable

__all__ = ["PAGE_VERSION", "StatsPage", "page_facts", "read_pages", "stats_of_page"]

PAGE_VERSION = 4
_NAME = "mpload-stats"
_MAGIC = b"MPLSTATS"
_HEAD = struct.Struct("<8s3Q")
_WORD = struct.Struct("<Q")
_SEQUENCE = slice(16, 24)
_LENGTH = slice(24, 32)
_PAGE_BYTES = 1 << 16
_ATTEMPTS = 100
_MAX_SOURCES = 32
_NAMES_BYTES = 1 << 13
_MAX_SERVERS = 8
_MAX_DIGITS = 20  # of 64 bits, with a sign


class StatsPage:
    """The writer's side. The page exists as long as this object."""

    def __init__(self) -> None:
        fd = shared_memory(_NAME, _PAGE_BYTES)
        self._map = mmap.mmap(fd, _PAGE_BYTES)  # the map has its own descriptor
        os.close(fd)
        self._fence = Fence()
        self._set_sequence(1)
        self._map[: _HEAD.size] = _HEAD.pack(_MAGIC, PAGE_VERSION, self._sequence, 0)
        self.write({})

    def close(self) -> None:
        """Remove the page. May be called again."""
        self._map.close()

    def write(self, facts: Mapping[str, Any]) -> None:
        """Publish `facts`, which must be JSON-compatible. If they do not fit, leave the page unchanged."""
        text = json.dumps(facts).encode()
        if len(text) > _PAGE_BYTES - _HEAD.size:
            return
        self._set_sequence(self._sequence | 1)
        self._fence()
        self._map[_LENGTH] = _WORD.pack(len(text))
        self._map[_HEAD.size : _HEAD.size + len(text)] = text
        self._fence()
        self._set_sequence(self._sequence + 1)

    def _set_sequence(self, sequence: int) -> None:
        """Write the sequence number with a single store. `pack_into` would write zeros first."""
        self._map[_SEQUENCE] = _WORD.pack(sequence)
        self._sequence = sequence


def read_pages(pid: int) -> list[dict[str, Any]]:
    """Return the pages of a process's loaders, oldest first, without those of another format version.

    The process may be another user's: all texts are made harmless to a terminal, but the figures may be any.

    Raises:
        FileNotFoundError: no such process exists.
        PermissionError: it belongs to another user.
        ValueError, RecursionError: a page holds something else than a page does.
    """
    found = []
    for link in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda link: int(link.name)):
        try:
            if f"memfd:{_NAME} " in f"{link.readlink()} ":
                facts = _read(link)
                if facts is not None:
                    found.append(facts)
        except FileNotFoundError:  # closed in the meantime
            continue
    return found


def _read(path: Path) -> dict[str, Any] | None:
    fence = Fence()
    with path.open("rb") as file:
        for _ in range(_ATTEMPTS):
            before = os.pread(file.fileno(), _HEAD.size, 0)
            fence()
            page = os.pread(file.fileno(), _PAGE_BYTES, 0)
            fence()
            after = os.pread(file.fileno(), _HEAD.size, 0)
            if len(page) < _PAGE_BYTES:  # its loader is still creating it
                return None
            magic, version, sequence, length = _HEAD.unpack_from(page)
            if magic != _MAGIC or version != PAGE_VERSION:
                return None
            if sequence % 2 == 0 and before == after == page[: _HEAD.size]:
                facts = _harmless(json.loads(page[_HEAD.size : _HEAD.size + length], parse_int=_integer))
                if not isinstance(facts, dict):
                    raise ValueError("it is no JSON object")
                return facts
    return None


def _harmless(found: Any) -> Any:
    match found:
        case str():
            return printable(found)
        case list():
            return list(map(_harmless, found))
        case dict():
            return {printable(name): _harmless(value) for name, value in found.items()}
    return found


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def page_facts(stats: LoaderStats) -> dict[str, Any]:
    """Return the content of a page: who wrote it and when, and the statistics since the loader was made.

    If a mixture has many sources, or a loader many servers, only those with most samples are included, because all of
    them would not fit.
    """
    servers = sorted(stats.servers.items(), key=lambda server: server[1].num_samples, reverse=True)[:_MAX_SERVERS]
    largest = sorted(stats.sources.items(), key=lambda source: source[1].num_samples, reverse=True)[:_MAX_SOURCES]
    ends = accumulate(len(json.dumps(name)) for name, _ in largest)
    sources = {name: each for (name, each), end in zip(largest, ends, strict=True) if end <= _NAMES_BYTES}
    return {
        "pid": os.getpid(),
        "monotonic_seconds": time.monotonic(),
        "num_sources": len(stats.sources),
        "num_servers": len(stats.servers),
        "stats": asdict(replace(stats, sources=sources, servers=dict(servers))),
    }


def stats_of_page(facts: Mapping[str, Any]) -> LoaderStats:
    """Return the statistics on a page."""
    stats = facts["stats"]
    workers = [{**worker, "timings": Timings(**worker["timings"])} for worker in stats["workers"]]
    parts = {
        "latencies": Latencies(**stats["latencies"]),
        "timings": Timings(**stats["timings"]),
        "memory": LoaderMemory(**stats["memory"]),
        "workers": tuple(WorkerStats(**worker) for worker in workers),
        "sources": {name: SourceStats(**each) for name, each in stats["sources"].items()},
        "servers": {url: _server(each) for url, each in stats["servers"].items()},
    }
    return LoaderStats(**{**stats, **parts})


def _server(found: Mapping[str, Any]) -> ServerStats:
    return ServerStats(**{**found, "latencies": Latencies(**found["latencies"])})
