"""Does several reads at the same time: each in a thread, or most of them without one."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from mpload.storage.fetches import Fetch, Read
from mpload.storage.protocols import BeginningReads, RemoteReads
from mpload.storage.read_threads import ReadThreads

__all__ = ["FetchThreads", "InFlight", "OneThreadEach", "new_threads"]


def new_threads(
    remote: RemoteReads | None, read: Read, *, max_reads: int, clock_ns: Callable[[], int]
) -> "FetchThreads":
    """Return what does reads. A storage behind a network may need no thread for each.

    Args:
        remote: that storage; None means that the storage is another one.
        read: reads a range.
        max_reads: maximum number of reads in progress.
        clock_ns: the clock.
    """
    if isinstance(remote, BeginningReads):
        return InFlight(remote, max_reads=max_reads, clock_ns=clock_ns)
    return OneThreadEach(read, max_reads=max_reads, clock_ns=clock_ns)


class OneThreadEach(ReadThreads):
    """Does each read in a thread. Arguments are those of `new_threads`."""

    def __init__(self, read: Read, *, max_reads: int, clock_ns: Callable[[], int]) -> None:
        super().__init__(max_threads=max_reads)
        self._read = read
        self._clock_ns = clock_ns

    def put_fetch(self, fetch: Fetch, *, place: int | None = None) -> None:
        """Do a read after all others, or at a place among those that have not begun."""
        self.put(partial(fetch.perform, self._read, self._clock_ns), place=place)


class InFlight:
    """Begins reads in order, so many at the same time. Results and exceptions are kept in each `Fetch`.

    When a read ends, the next one begins at once, in the thread that has received the bytes. A read that the storage
    cannot begin in this way, or that has failed, takes a thread.

    Args:
        storage: where the reads are made.
        max_reads: maximum number of reads in progress.
        clock_ns: the clock.

    Process: reads do not survive in a forked child. Call `forget` there, and make another object.
    """

    def __init__(self, storage: BeginningReads, *, max_reads: int, clock_ns: Callable[[], int]) -> None:
        self._storage = storage
        self._max_reads = max_reads
        self._clock_ns = clock_ns
        self._threads = ReadThreads(max_threads=max_reads)
        self._changing = threading.Lock()  # held while anything below changes
        self._waiting = deque[Fetch]()
        self._running = set[Fetch]()
        self._num_in_threads = 0
        self._most_running = 0

    def put_fetch(self, fetch: Fetch, *, place: int | None = None) -> None:
        """Begin a read after all others, or at a place among those that wait."""
        with self._changing:
            self._waiting.insert(len(self._waiting) if place is None else place, fetch)
        self._begin_next()

    def put(self, job: Callable[[], object]) -> None:
        """Run a job in a thread."""
        self._run_in_thread(job)

    def start(self, num_reads: int) -> bool:
        """Let one more read be in progress, up to so many: a server is not to get many connections at once."""
        if self._most_running < min(num_reads, self._max_reads):
            self._most_running += 1
            self._begin_next()
        return True

    def limit(self, num_reads: int) -> None:
        """From now on, let no more reads begin than so many at the same time, until `start` names more."""
        self._most_running = min(self._most_running, num_reads)

    @property
    def num_started(self) -> int:
        """Number of reads that may be in progress."""
        return self._most_running

    @property
    def num_waiting(self) -> int:
        """Number of reads that have not begun."""
        return len(self._waiting)

    def end(self) -> None:
        """Begin no further read."""
        self._waiting.clear()
        self._threads.end()

    def forget(self) -> None:
        """Leave everything alone, for a forked child."""
        self._threads.forget()

    def _begin_next(self) -> None:
        """Begin reads as long as more may be in progress."""
        while True:
            with self._changing:
                if not self._waiting or len(self._running) >= self._most_running:
                    return
                fetch = self._waiting.popleft()
                self._running.add(fetch)
            try:
                if fetch.take(self._clock_ns()):
                    self._begin(fetch)
                else:  # it was cancelled
                    self._end_one(fetch)
            except BaseException:  # such as Ctrl-C
                self._fail(fetch)
                raise

    def _begin(self, fetch: Fetch) -> None:
        # The storage must not keep this object, so that no further read begins when nobody wants any.
        ended = partial(_ended, weakref.ref(self), fetch)
        if not self._storage.begin(fetch.item, fetch.is_wanted, ended):
            self._read_in_thread(fetch, partial(self._storage.read_wanted, fetch.item, fetch.is_wanted))

    def ended(self, fetch: Fetch, data: bytes | None, rest: Callable[[], bytes] | None) -> None:
        """Go on after the storage has ended a read, or has found that the rest of it takes a thread."""
        try:
            if rest is not None:
                self._read_in_thread(fetch, rest)
            else:
                self._end_one(fetch)
                fetch.end(data, self._clock_ns())
        except BaseException:  # such as a lack of memory
            self._fail(fetch)
            raise
        finally:
            self._begin_next()

    def _read_in_thread(self, fetch: Fetch, read: Callable[[], bytes]) -> None:
        here, clock_ns = weakref.ref(self), self._clock_ns

        def finish() -> None:
            fetch.finish(read, clock_ns)
            if (in_flight := here()) is not None:
                in_flight._end_one(fetch)  # noqa: SLF001
                in_flight._begin_next()  # noqa: SLF001

        if not self._run_in_thread(finish):
            self._fail(fetch)

    def _fail(self, fetch: Fetch) -> None:
        """End a read without its bytes. It is made again when they are requested."""
        self._end_one(fetch)
        fetch.end(None, self._clock_ns())

    def _run_in_thread(self, job: Callable[[], object]) -> bool:
        """Run a job in a thread of its own. Return False if the system refuses it."""
        here = weakref.ref(self)

        def run() -> None:
            try:
                job()
            finally:
                if (in_flight := here()) is not None:
                    in_flight._count_thread(-1)  # noqa: SLF001

        self._count_thread(1)
        if self._threads.start(self._num_in_threads):
            self._threads.put(run)
            return True
        self._count_thread(-1)
        return False

    def _count_thread(self, change: int) -> None:
        with self._changing:
            self._num_in_threads += change

    def _end_one(self, fetch: Fetch) -> None:
        with self._changing:
            self._running.discard(fetch)


def _ended(here: "weakref.ref[InFlight]", fetch: Fetch, data: bytes | None, rest: Callable[[], bytes] | None) -> None:
    in_flight = here()
    if in_flight is None:
        fetch.end(data, 0)
    else:
        in_flight.ended(fetch, data, rest)


FetchThreads = OneThreadEach | InFlight
