"""Slow and hanging storages, and what tests read from them. Workers import this module, so it imports little."""

import os
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from mpload.errors import StorageError
from mpload.storage.local import LocalStorage
from mpload.storage.ranges import ByteRange, Span

SLOW_SECONDS = 0.001
FILE = bytes(random.Random(0).randbytes(100_000))


def span(start: int, length: int) -> Span:
    """Return a span of the shard called "shard"."""
    return Span("shard", start, length)


def num_open_files() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class SlowFiles:
    """Local files with the latency of a network."""

    max_parallel_reads = 4

    def __init__(self, folder: Path, *, page_cache: str = "keep") -> None:
        self.files = LocalStorage(folder, page_cache=page_cache)

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        time.sleep(SLOW_SECONDS)
        return self.files.read(ranges)


class SlowPages(SlowFiles):
    """Like `SlowFiles`, but also a `PageStorage`."""

    def prefetch(self, item: ByteRange) -> None:
        self.files.prefetch(item)

    def forget(self, item: ByteRange) -> None:
        self.files.forget(item)


class HangingFiles(SlowFiles):
    """Like `SlowFiles`, but reading one of the files hangs."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        if any(item.path.endswith("/40.bin") for item in ranges):
            time.sleep(1000)
        return super().read(ranges)


class SlowMemory:
    """Files in memory with a delay for each read. Records what was read, and by which threads."""

    cache_key = "memory"
    max_parallel_reads = 4

    def __init__(self, files: dict[str, bytes], *, seconds: float = SLOW_SECONDS) -> None:
        self.files = files
        self.seconds = seconds
        self.reads: list[ByteRange] = []
        self.threads: set[str] = set()

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        self.reads.extend(ranges)
        self.threads.add(threading.current_thread().name)
        if self.seconds:  # even sleep(0) would yield to other processes
            time.sleep(self.seconds)
        return [self._one(item) for item in ranges]

    def _one(self, item: ByteRange) -> bytes:
        data = self.files[item.path]
        if item.length_bytes is None:
            return data
        if item.offset_bytes + item.length_bytes > len(data):
            raise StorageError(f"{item.path}: too short")
        return data[item.offset_bytes : item.offset_bytes + item.length_bytes]
