"""Slow and hanging storages for tests. Workers import this module, so it imports little."""

import time
from collections.abc import Sequence
from pathlib import Path

from mpload.storage.local import LocalStorage
from mpload.storage.ranges import ByteRange

SLOW_SECONDS = 0.001


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
