"""What a loader counts while it runs, and who hears of it: a page that others can read, writers, warnings."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from mpload.errors import ArgumentError
from mpload.telemetry.page import StatsPage
from mpload.telemetry.stats import LoaderMemory, LoaderStats, WorkerStats
from mpload.transport.pool import WorkerPool

__all__ = ["Telemetry", "page_facts"]

_PAGE_SECONDS = 0.5


class _Listener:
    """Somebody who wants to hear of it every so often."""

    def __init__(self, hear: Callable[[LoaderStats], None], *, every_seconds: float) -> None:
        if not every_seconds > 0:
            raise ArgumentError(f"every_seconds must be positive, got {every_seconds}")
        self._hear = hear
        self._every_seconds = every_seconds
        self._next = time.monotonic() + every_seconds

    def look(self, now: float, snapshot: Callable[[], LoaderStats]) -> None:
        if now >= self._next:
            self._next = now + self._every_seconds
            self._hear(snapshot())


class Telemetry:
    """Counts for one loader. Belongs to its thread."""

    def __init__(self, *, with_page: bool) -> None:
        """Count from zero.

        Args:
            with_page: keep a page that others can read (Linux).
        """
        self.stats = LoaderStats()
        """What was counted; of workers and memory nothing, see `snapshot`."""
        self._last_taken: float | None = None
        self._listeners: list[_Listener] = []
        self._page = StatsPage() if with_page else None
        self._page_due = 0.0

    def take(self, take: Callable[[], Any]) -> Any:
        """Take a batch and count the time that it was waited for; nothing here keeps it."""
        asked = time.monotonic()
        batch = take()
        now = time.monotonic()
        stats = self.stats
        stats.wait_seconds += now - asked
        stats.latencies.add(now - asked)
        stats.elapsed_seconds += now - (self._last_taken or asked)
        stats.num_batches += 1
        self._last_taken = now
        return batch

    def pause(self) -> None:
        """Time that passes from now until the next batch is asked for is not the loader's."""
        self._last_taken = None

    def listen(self, hear: Callable[[LoaderStats], None], *, every_seconds: float) -> None:
        """Have `hear` called with a snapshot every so often, while batches are taken.

        Raises:
            ArgumentError: `every_seconds` is not positive.
        """
        self._listeners.append(_Listener(hear, every_seconds=every_seconds))

    def look(self, pool: WorkerPool | None, *, num_workers: int) -> None:
        """Tell whoever wants to hear now; most calls have nothing to do."""
        now = time.monotonic()
        for listener in self._listeners:
            listener.look(now, partial(self.snapshot, pool, num_workers=num_workers))
        if self._page is not None and now >= self._page_due:
            self._page_due = now + _PAGE_SECONDS
            self._page.write(page_facts(self.snapshot(pool, num_workers=num_workers, with_memory=False)))

    def snapshot(self, pool: WorkerPool | None, *, num_workers: int, with_memory: bool = True) -> LoaderStats:
        """Return a copy of what was counted, with what the workers have done and take."""
        stats = replace(
            self.stats,
            num_workers=num_workers,
            latencies=self.stats.latencies.copy(),
            timings=replace(self.stats.timings),
            memory=LoaderMemory(),
            workers=(),
        )
        if pool is not None:
            zygote, *workers = pool.pids.items()
            stats.num_copied_batches += pool.stats.num_copied_batches
            stats.num_deaths += pool.num_deaths
            stats.workers = tuple(
                WorkerStats(name=name, pid=pid, timings=replace(pool.stats.timings_of(int(name.rpartition("-")[2]))))
                for name, pid in workers
            )
            slots_bytes = pool.ring.used_bytes
            pids = [zygote[1], *(pid for _, pid in workers)]
            stats.memory = (
                LoaderMemory.of(pids, slots_bytes=slots_bytes) if with_memory else LoaderMemory(slots_bytes=slots_bytes)
            )
        return stats

    def keep(self, pool: WorkerPool) -> None:
        """Count what a pool has done as done, before it goes."""
        self.stats.num_copied_batches += pool.stats.num_copied_batches
        self.stats.num_deaths += pool.num_deaths

    def close(self) -> None:
        """Take the page away. May be called again."""
        if self._page is not None:
            self._page.close()


def page_facts(stats: LoaderStats) -> dict[str, Any]:
    """Return what a page says: the metrics, totals and the workers."""
    return {
        "pid": os.getpid(),
        "monotonic_seconds": time.monotonic(),
        "metrics": stats.metrics(),
        "wait_seconds": stats.wait_seconds,
        "elapsed_seconds": stats.elapsed_seconds,
        "limit": str(stats.limit),
        "timings": asdict(stats.timings),
        "workers": [
            {"name": worker.name, "pid": worker.pid, "timings": asdict(worker.timings)} for worker in stats.workers
        ],
    }
