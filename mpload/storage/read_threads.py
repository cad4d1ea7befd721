"""Threads that run jobs, in order, for one owner."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

__all__ = ["ReadThreads"]

_THREAD_NAME = "mpload-ahead"
_IDLE_SECONDS = 2.0
_Job = Callable[[], object]


@dataclass(slots=True, kw_only=True)
class _Shared:
    """What the threads and their owner share."""

    idle_seconds: float
    changing: threading.Lock = field(default_factory=threading.Lock)
    """Held while anything below changes."""
    jobs: deque[_Job] = field(default_factory=deque)
    idle: list[threading.Lock] = field(default_factory=list)
    """A lock for each thread without a job. Releasing it wakes the thread."""
    num_running: int = 0
    max_busy: int = 0
    is_waking: bool = False
    """Whether a thread is being woken, which will wake the next one if there is a job for that too."""
    is_ended: bool = False

    @property
    def num_busy(self) -> int:
        return self.num_running - len(self.idle)

    def wake_next(self) -> None:
        """Wake an idle thread, if there is a job for one and none is being woken."""
        if self.jobs and not self.is_waking and self.num_busy < self.max_busy:
            with suppress(IndexError):  # none is idle
                self.idle.pop().release()
                self.is_waking = True

    def next_job(self) -> _Job | None:
        """Return the next job for a thread without one; None if there is none, or too many threads are busy."""
        if self.num_busy > self.max_busy:  # this thread is one of them
            return None
        with suppress(IndexError):
            return self.jobs.popleft()
        return None

    def may_end(self, mine: "threading.Lock") -> bool:
        """Let an idle thread end, unless it is being woken, or is the last one: a job may be about to be put."""
        if len(self.idle) < 2:
            return False
        with suppress(ValueError):  # it is being woken
            self.idle.remove(mine)
            self.num_running -= 1
            return True
        return False


class ReadThreads:
    """Threads that run jobs. Results and exceptions are discarded.

    The thread that became idle last gets the next job, since its stack and its part of the heap are still in the
    processor's caches. The owner wakes one thread only, and each thread wakes the next: while the owner holds the GIL,
    all threads that it had woken would wait for that. A thread without a job for `idle_seconds` ends, unless it is the
    only idle one. It does not end at once, since the owner waits while a new one starts.

    The threads also end when this object is garbage-collected, or on `end`; jobs that have not begun are then dropped.
    They are daemons, so that a hanging read cannot prevent the interpreter from exiting.

    Args:
        max_threads: maximum number of threads.
        idle_seconds: time without a job after which a thread ends.

    Memory: a stack for each thread.
    Process: threads do not survive in a forked child. Call `forget` there, and make another object.
    """

    def __init__(self, *, max_threads: int, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._max_threads = max_threads
        self._shared = _Shared(idle_seconds=idle_seconds)
        self._end = weakref.finalize(self, _end, self._shared)

    def put(self, job: _Job, *, place: int | None = None) -> None:
        """Run `job` after all others, or at a place among those that wait for a thread."""
        shared = self._shared
        with shared.changing:
            shared.jobs.insert(len(shared.jobs) if place is None else place, job)
            shared.wake_next()

    def start(self, num_threads: int) -> bool:
        """Start another thread unless there are so many. Return False if the system refuses it."""
        shared = self._shared
        num_threads = min(num_threads, self._max_threads)
        shared.max_busy = max(shared.max_busy, num_threads)
        if shared.jobs:
            with shared.changing:
                shared.wake_next()
        if shared.num_running >= num_threads:
            return True
        with shared.changing:
            shared.num_running += 1
        try:
            threading.Thread(target=_serve, args=(shared,), name=_THREAD_NAME, daemon=True).start()
        except RuntimeError:  # a limit on processes is reached, or the interpreter is exiting
            with shared.changing:
                shared.num_running -= 1
            return False
        return True

    def limit(self, num_threads: int) -> None:
        """From now on, let only so many threads begin jobs, until `start` names more."""
        self._shared.max_busy = num_threads

    @property
    def num_started(self) -> int:
        """Number of threads."""
        return self._shared.num_running

    @property
    def num_waiting(self) -> int:
        """Number of jobs that have not begun."""
        return len(self._shared.jobs)

    def end(self) -> None:
        """End the threads, each after its current job."""
        self._end()

    def forget(self) -> None:
        """Leave the threads alone, for a forked child, which has none."""
        self._end.detach()


def _serve(shared: _Shared) -> None:
    """Run jobs until the end: the loop of each thread. It holds no reference to the `ReadThreads` it belongs to."""
    mine = threading.Lock()
    mine.acquire()
    is_woken = False
    while True:
        job = None  # the last one is dropped here, not while others wait for the lock
        with shared.changing:
            if is_woken:
                shared.is_waking = is_woken = False
            job = shared.next_job()
            if job is not None:
                shared.wake_next()
            elif shared.is_ended:
                shared.num_running -= 1
                return
            else:
                shared.idle.append(mine)
        if job is not None:
            with suppress(BaseException):  # a panic of obstore's is no Exception
                job()
        elif not shared.is_ended:
            is_woken = True
            while not mine.acquire(timeout=shared.idle_seconds):
                with shared.changing:
                    if shared.may_end(mine):
                        return


def _end(shared: _Shared) -> None:
    # Without `changing`: the garbage collector may call this in a thread that holds it.
    shared.is_ended = True
    shared.jobs.clear()
    with suppress(IndexError):
        while True:
            shared.idle.pop().release()
