"""Makes a read a second time if it is late: a hedged request.

The idea is that of J. Dean and L. A. Barroso, The Tail at Scale, Communications of the ACM 56 (2013).
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from mpload.storage.fetches import Fetch
from mpload.storage.latencies import Latencies
from mpload.storage.protocols import RemoteReads
from mpload.storage.read_threads import ReadThreads

__all__ = ["MAX_HEDGED_SHARE", "Hedging"]

MAX_HEDGED_SHARE = 0.02
"""Hedged requests, as a fraction of all reads so far."""
_MAX_SAVED = 16
"""Hedged requests that may be made at once after a time without any."""
_RETRY_SECONDS = 1.0
_THREAD_SECONDS = 0.1


class Hedging:
    """Watches the reads that have begun, and makes late ones a second time.

    No read is made a third time. Nothing is hedged while the server fails, since it would get even more requests.

    Args:
        storage: where the reads are made.
        threads: the threads that make them.
        latencies: the times of the reads so far.
        clock_ns: the clock.

    Process: use it in one thread, the one that uses the bytes.
    """

    def __init__(
        self,
        storage: RemoteReads,
        threads: ReadThreads,
        latencies: Latencies,
        clock_ns: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._threads = threads
        self._latencies = latencies
        self._clock_ns = clock_ns
        self._watched: deque[Fetch] = deque()  # in the order in which they begin
        self._running: list[Fetch] = []  # hedged, and both requests may still be in progress
        self._num_allowed = 0.0
        self.num_hedges = 0
        """Number of reads that were made a second time; the caller may reset it."""

    def begun(self, fetch: Fetch) -> None:
        """Watch a read that was passed to the threads."""
        self._watched.append(fetch)
        self._num_allowed = min(_MAX_SAVED, self._num_allowed + MAX_HEDGED_SHARE)

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
        while not fetch.wait(self._seconds_until_late(fetch)):
            late_ns = self._latencies.late_ns(fetch.item.length_bytes)
            if _needs_thread(fetch):
                self._threads.start(self._threads.num_started + 1)  # all others hang
            elif late_ns is not None and self._clock_ns() - fetch.began_ns >= late_ns:
                self._hedge(fetch, room_bytes)

    @property
    def running(self) -> list[Fetch]:
        """The hedged reads of which a request is still in progress. Each has room for a second answer."""
        if self._running:
            self._running = [fetch for fetch in self._running if fetch.is_running]
        return self._running

    def _seconds_until_late(self, fetch: Fetch) -> float:
        """Return for how long to wait before looking again; -1 if there will be nothing to do."""
        if _needs_thread(fetch):
            return _THREAD_SECONDS
        late_ns = self._latencies.late_ns(fetch.item.length_bytes)
        if fetch.is_hedged or late_ns is None or self._num_allowed < 1:
            return -1
        waited_ns = self._clock_ns() - fetch.began_ns
        return (late_ns - waited_ns) * 1e-9 if waited_ns < late_ns else _RETRY_SECONDS

    def _hedge(self, fetch: Fetch, room_bytes: int) -> bool:
        if fetch.is_hedged or self._num_allowed < 1 or fetch.held_bytes > room_bytes:
            return False
        if not self._storage.may_read_again(fetch.item):
            return False
        self._num_allowed -= 1
        self.num_hedges += 1
        fetch.is_hedged = fetch.is_hedging = True
        self._running.append(fetch)
        self._threads.put(partial(fetch.hedge, self._storage.read_again), is_urgent=True)
        return True


def _needs_thread(fetch: Fetch) -> bool:
    """Return whether a read, or the second one in its place, waits for a thread."""
    return not fetch.began_ns or (fetch.is_hedging and not fetch.has_hedge_begun)
