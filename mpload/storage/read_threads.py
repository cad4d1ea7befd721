"""Threads that run jobs, in order, for one owner."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

__all__ = ["ReadThreads"]

_THREAD_NAME = "mpload-ahead"
_SPARE_IDLE = 4
_Job = Callable[[], object]


@dataclass(slots=True, kw_only=True)
class _Shared:
    """What the threads and their owner share."""

    changing: threading.Lock = field(default_factory=threading.Lock)
    """Held while anything below changes."""
    jobs: deque[_Job] = field(default_factory=deque)
    idle: list[threading.Lock] = field(default_factory=list)
    """A lock for each thread without a job. Releasing it wakes the thread."""
    num_running: int = 0
    num_wanted: int = 0
    is_ended: bool = False


class ReadThreads:
    """Threads that run jobs. Results and exceptions are discarded.

    The thread that became idle last gets the next job, since its stack and its part of the heap are still in the
    processor's caches. Threads that are not needed any more end.

    The threads also end when this object is garbage-collected, or on `end`; jobs that have not begun are then dropped.
    They are daemons, so that a hanging read cannot prevent the interpreter from exiting.

    Args:
        max_threads: maximum number of threads.

    Memory: a stack for each thread.
    Process: threads do not survive in a forked child. Call `forget` there, and make another object.
    """

    def __init__(self, *, max_threads: int) -> None:
        self._max_threads = max_threads
        self._shared = _Shared()
        self._end = weakref.finalize(self, _end, self._shared)

    def put(self, job: _Job, *, place: int | None = None) -> None:
        """Run `job` after all others, or at a place among those that wait for a thread."""
        shared = self._shared
        with shared.changing:
            shared.jobs.insert(len(shared.jobs) if place is None else place, job)
            woken = shared.idle.pop() if shared.idle else None
        if woken is not None:
            woken.release()

    def start(self, num_threads: int) -> bool:
        """Start another thread unless there are so many. Return False if the system refuses it."""
        self.keep(num_threads)
        shared = self._shared
        if shared.num_running >= shared.num_wanted:
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

    def keep(self, num_threads: int) -> None:
        """Let threads beyond so many end when they have nothing to do, though a few idle ones stay."""
        self._shared.num_wanted = min(num_threads, self._max_threads)

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
    while True:
        job: _Job | None = None
        with shared.changing:
            if shared.jobs:
                job = shared.jobs.popleft()
            elif shared.is_ended or _has_spare(shared):
                shared.num_running -= 1
                return
            else:
                shared.idle.append(mine)
        if job is not None:
            with suppress(BaseException):  # a panic of obstore's is no Exception
                job()
        elif not shared.is_ended:
            mine.acquire()


def _has_spare(shared: _Shared) -> bool:
    return len(shared.idle) >= _SPARE_IDLE and shared.num_running > shared.num_wanted


def _end(shared: _Shared) -> None:
    # Without `changing`: the garbage collector may call this in a thread that holds it.
    shared.is_ended = True
    shared.jobs.clear()
    with suppress(IndexError):
        while True:
            shared.idle.pop().release()
