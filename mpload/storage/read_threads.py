"""Threads that run jobs, in order, for one owner."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["ReadThreads"]

_THREAD_NAME = "mpload-ahead"
_Job = Callable[[], object]


class ReadThreads:
    """Threads that run jobs. Results and exceptions are discarded.

    The threads end when this object is garbage-collected, or on `end`; jobs that have not begun are then dropped. They
    are daemons, so that a hanging read cannot prevent the interpreter from exiting.

    Args:
        max_threads: maximum number of threads.

    Memory: a stack for each thread.
    Process: threads do not survive in a forked child. Call `forget` there, and make another object.
    """

    def __init__(self, *, max_threads: int) -> None:
        self._max_threads = max_threads
        self._jobs: deque[_Job] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # one for each job
        self.num_started = 0
        self._end = weakref.finalize(self, _end, self._tokens, self._jobs)

    def put(self, job: _Job) -> None:
        """Run `job` after all others."""
        self._jobs.append(job)
        self._tokens.put(True)

    def start(self, num_threads: int) -> bool:
        """Start another thread unless there are so many. Return False if the system refuses it."""
        if self.num_started >= min(num_threads, self._max_threads):
            return True
        thread = threading.Thread(target=_serve, args=(self._tokens, self._jobs), name=_THREAD_NAME, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a limit on processes is reached, or the interpreter is exiting
            return False
        self.num_started += 1
        return True

    @property
    def num_waiting(self) -> int:
        """Number of jobs that have not begun."""
        return len(self._jobs)

    def end(self) -> None:
        """End the threads, each after its current job."""
        self._end()

    def forget(self) -> None:
        """Leave the threads alone, for a forked child, which has none."""
        self._end.detach()


def _serve(tokens: "SimpleQueue[bool]", jobs: deque[_Job]) -> None:
    """Run jobs until the end: the loop of each thread. It holds no reference to the `ReadThreads` it belongs to."""
    while tokens.get():
        job: _Job | None = None
        with suppress(Exception):
            job = jobs.popleft()
            job()
        job = None  # else the bytes it read would stay in memory while the thread waits
    tokens.put(False)


def _end(tokens: "SimpleQueue[bool]", jobs: deque[_Job]) -> None:
    jobs.clear()
    tokens.put(False)
