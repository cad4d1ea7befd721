"""Makes a read a second time if it is late: a hedged request.

The idea is that of J. Dean and L. A. Barroso, The Tail at Scale, Communications of the ACM 56 (2013).
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from mpload.storage.fetches import Fetch
from mpload.storage.in_flight import InFlight
from mpload.storage.latencies import Latencies
from mpload.storage.protocols import RemoteReads
from mpload.storage.read_threads import ReadThreads
from mpload.storage.waiters import WAITERS

__all__ = ["MAX_HEDGED_SHARE", "MAX_OWED", "Hedging"]

MAX_HEDGED_SHARE = 0.02
"""Hedged requests, as a fraction of all reads so far."""
_READS_PER_HEDGE = round(1 / MAX_HEDGED_SHARE)
_MAX_SAVED = 16
"""Hedged requests that may be made at once after a time without any."""
MAX_OWED = 4
"""Hedged requests that may be made before their turn, each for a read that everything waits for."""
_MAX_THREADS = 8
_RETRY_SECONDS = 1.0
_THREAD_SECONDS = 0.1


class Hedging:
    """Watches the reads that have begun, and makes late ones a second time.

    No read is made a third time. Nothing is hedged while the server fails, since it would get even more requests.

    Args:
        storage: where the reads are made.
        threads: the threads that make them. The second requests have threads of their own, since all of these may hang.
        latencies: the times of the reads so far.
        clock_ns: the clock.

    Process: use it in one thread, the one that uses the bytes.
    """

    def __init__(
        self,
        storage: RemoteReads,
        threads: ReadThreads | InFlight,
        latencies: Latencies,
        clock_ns: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._threads = threads
        self._second_threads = ReadThreads(max_threads=_MAX_THREADS)
        self._latencies = latencies
        self._clock_ns = clock_ns
        self._watched: deque[Fetch] = deque()  # in the order in which they begin
        self._running: list[Fetch] = []  # hedged, and both requests may still be in progress
        self._num_counted = 0  # reads that no hedged request has been made for; negative if some are owed
        self.num_hedges = 0
        """Number of reads that were made a second time since the last `take_hedges`."""

    def take_hedges(self) -> int:
        """Return `num_hedges`, and reset it."""
        num_hedges, self.num_hedges = self.num_hedges, 0
        return num_hedges

    def begun(self, fetch: Fetch) -> None:
        """Watch a read that was passed to the threads."""
        self._watched.append(fetch)
        self._num_counted = min(_MAX_SAVED * _READS_PER_HEDGE, self._num_counted + 1)

    def check(self, room_bytes: int) -> None:
        """Hedge the reads that are late, as far as `room_bytes` of memory allow."""
        watched = self._watched
        now_ns = 0
        while watched:
            fetch = watched[0]
            if fetch.num_wanting and fetch.unfinished.locked():
                late_ns = self._latencies.late_ns(fetch.item.length_bytes)
                if not fetch.began_ns or late_ns is None:
                    return
                now_ns = now_ns or self._clock_ns()
                if now_ns - fetch.began_ns < late_ns:
                    return
                if self._hedge(fetch, room_bytes):
                    room_bytes -= fetch.held_bytes
            watched.popleft()

    def wait(self, fetch: Fetch, room_bytes: int) -> None:
        """Wait for a read that has begun, and hedge it when it is late."""
        if fetch.wait(0):
            return
        with WAITERS.waiting():
            self._hedge_if_late(fetch, room_bytes)
            while not fetch.wait(self._seconds_until_late(fetch)):
                if not fetch.began_ns:
                    self._threads.start(self._threads.num_started + 1)  # all others hang
                self._hedge_if_late(fetch, room_bytes)

    def _hedge_if_late(self, fetch: Fetch, room_bytes: int) -> None:
        late_ns = self._latencies.late_ns(fetch.item.length_bytes)
        if not fetch.began_ns or late_ns is None:
            return
        late_by_ns = self._clock_ns() - fetch.began_ns - late_ns
        if late_by_ns >= 0:
            self._hedge(fetch, room_bytes, max_owed=MAX_OWED if late_by_ns >= _RETRY_SECONDS * 1e9 else 0)

    @property
    def running(self) -> list[Fetch]:
        """The hedged reads of which a request is still in progress. Each has room for a second answer."""
        if self._running:
            self._running = [fetch for fetch in self._running if fetch.is_running]
        return self._running

    def _seconds_until_late(self, fetch: Fetch) -> float:
        """Return for how long to wait before looking again; -1 if there will be nothing to do."""
        if not fetch.began_ns:
            return _THREAD_SECONDS
        late_ns = self._latencies.late_ns(fetch.item.length_bytes)
        if fetch.is_hedged or late_ns is None or not self._is_allowed(max_owed=MAX_OWED):
            return -1
        waited_ns = self._clock_ns() - fetch.began_ns
        return (late_ns - waited_ns) * 1e-9 if waited_ns < late_ns else _RETRY_SECONDS

    def _has_thread(self) -> bool:
        threads = self._second_threads
        num_busy = sum(fetch.is_hedging for fetch in self.running)
        return num_busy < _MAX_THREADS and threads.start(num_busy + 1)

    def _is_allowed(self, *, max_owed: int = 0) -> bool:
        return self._num_counted >= (1 - max_owed) * _READS_PER_HEDGE

    def _hedge(self, fetch: Fetch, room_bytes: int, *, max_owed: int = 0) -> bool:
        if fetch.is_hedged or not self._is_allowed(max_owed=max_owed) or fetch.held_bytes > room_bytes:
            return False
        if not self._storage.may_read_again(fetch.item) or not self._has_thread():
            return False
        self._num_counted -= _READS_PER_HEDGE
        self.num_hedges += 1
        fetch.is_hedged = fetch.is_hedging = True
        self._running.append(fetch)
        self._second_threads.put(partial(fetch.hedge, self._storage.read_again))
        return True

    def forget(self) -> None:
        """Leave the threads of the second requests alone, for a forked child, which has none."""
        self._second_threads.forget()
