"""Counts what a loader does, and publishes it: to a page that other processes can read, and to listeners."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mpload.errors import ArgumentError
from mpload.telemetry.page import StatsPage, page_facts
from mpload.telemetry.server_stats import stats_by_server
from mpload.telemetry.stats import LoaderMemory, LoaderStats, SourceStats, WorkerStats, timings_of
from mpload.transport.messages import Tally, sum_of
from mpload.transport.pool import WorkerPool

__all__ = ["Telemetry", "Waited"]

_PAGE_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class _Listener:
    callback: Callable[[LoaderStats], None]
    every_seconds: float
    due: float
    """Time of the next call, on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """The time that the consumer has waited until now."""

    wait_seconds: float
    """Time that it waited for batches."""
    elapsed_seconds: float
    """Time since the first request, without the time between iterations."""


class Telemetry:
    """Counts for one loader. Not thread-safe: for the thread that iterates the loader."""

    def __init__(
        self,
        *,
        made_here: Tally,
        with_page: bool,
        by_source: Callable[[], Mapping[str, SourceStats]] = dict,
        server_urls: Sequence[str] = (),
    ) -> None:
        """Count from zero.

        Args:
            made_here: the samples that this process itself makes.
            with_page: publish a page that other processes can read (Linux only).
            by_source: returns the samples of each source of a mixture.
            server_urls: the servers of samples, in the order of their numbers.
        """
        self._made_here = made_here
        self._by_source = by_source
        self._server_urls = server_urls
        self._by_closed_pools = Tally()
        self._stats = LoaderStats()
        self._last_answer: float | None = None
        self.asked: float | None = None
        """When the batch was requested that the consumer now waits for, on the monotonic clock."""
        self._listeners: list[_Listener] = []
        self._page = StatsPage() if with_page else None
        self.due = time.monotonic() if with_page else math.inf
        """Time when `notify` next has something to do, on the monotonic clock."""

    def count_batch(self, asked: float) -> None:
        """Count a batch that was requested at `asked`, on the monotonic clock, and has just been received."""
        waited = self.count_wait(asked)
        self._stats.latencies.add(waited)
        self._stats.num_batches += 1

    def count_wait(self, asked: float) -> float:
        """Count the time since `asked` as waiting, even if no batch came, and return it."""
        now, stats = time.monotonic(), self._stats
        stats.wait_seconds += now - asked
        stats.elapsed_seconds += now - (self._last_answer or asked)
        self._last_answer, self.asked = now, None
        return now - asked

    def waited(self) -> Waited:
        """Return how long the consumer has waited until now, even if it is waiting for a batch."""
        now, stats = time.monotonic(), self._stats
        ongoing = 0.0 if self.asked is None else now - self.asked
        since = self._last_answer or self.asked or now
        return Waited(wait_seconds=stats.wait_seconds + ongoing, elapsed_seconds=stats.elapsed_seconds + now - since)

    def pause(self) -> None:
        """Exclude the time from now until the next batch is requested."""
        self._last_answer = self.asked = None

    def listen(self, callback: Callable[[LoaderStats], None], *, every_seconds: float) -> None:
        """Call `callback` with a snapshot every `every_seconds`, as long as batches are taken.

        Raises:
            ArgumentError: `every_seconds` is not positive.
        """
        if not every_seconds > 0:
            raise ArgumentError(f"every_seconds must be positive, got {every_seconds}")
        due = time.monotonic() + every_seconds
        self._listeners.append(_Listener(callback=callback, every_seconds=every_seconds, due=due))
        self.due = min(self.due, due)

    def notify(self, pool: WorkerPool | None, *, num_workers: int) -> LoaderStats:
        """Notify the listeners that are due and update the page; return a snapshot without the memory of processes."""
        now = time.monotonic()
        if due := [listener for listener in self._listeners if now >= listener.due]:
            stats = self.snapshot(pool, num_workers=num_workers)  # takes tens of milliseconds on a busy machine
            for listener in due:
                listener.due = now + listener.every_seconds
                listener.callback(stats)
        stats = self.snapshot(pool, num_workers=num_workers, with_memory=False)
        self.due = min((listener.due for listener in self._listeners), default=math.inf)
        if self._page is not None:
            self._page.write(page_facts(stats))
            self.due = min(self.due, now + _PAGE_SECONDS)
        return stats

    def snapshot(self, pool: WorkerPool | None, *, num_workers: int, with_memory: bool = True) -> LoaderStats:
        """Return a copy of the counts, with those of the workers and, if wanted, the memory of processes."""
        tallies = [self._made_here, self._by_closed_pools]
        stats = replace(self._stats, num_workers=num_workers, latencies=self._stats.latencies.copy())
        stats.num_samples += self._made_here.num_samples
        if pool is not None:
            zygote, *workers = pool.pids.items()
            by_worker = {f"mpload-worker-{worker}": tally for worker, tally in pool.stats.by_worker.items()}
            tallies += by_worker.values()
            _add_pool(stats, pool)
            stats.workers = tuple(
                WorkerStats(name=name, pid=pid, timings=timings_of(by_worker.get(name, Tally())))
                for name, pid in workers
            )
            slots_bytes = 0 if pool.is_closed else pool.ring.used_bytes  # an error may have closed it
            pids = [zygote[1], *(pid for _, pid in workers)]
            stats.memory = (
                LoaderMemory.of(pids, slots_bytes=slots_bytes) if with_memory else LoaderMemory(slots_bytes=slots_bytes)
            )
        total = sum_of(tallies)
        stats.timings = timings_of(total)
        stats.servers = stats_by_server(self._server_urls, total.numbered)
        stats.sources = self._by_source()
        return stats

    def keep(self, pool: WorkerPool) -> None:
        """Add the counts of a pool that is about to be closed."""
        _add_pool(self._stats, pool)
        for tally in pool.stats.by_worker.values():
            self._by_closed_pools.add(tally)

    def close(self) -> None:
        """Remove the page. May be called again."""
        if self._page is not None:
            self._page.close()


def _add_pool(stats: LoaderStats, pool: WorkerPool) -> None:
    stats.num_samples += pool.stats.num_samples
    stats.num_copied_batches += pool.stats.num_copied_batches
    stats.num_deaths += pool.num_deaths
