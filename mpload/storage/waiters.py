"""The threads of this process that wait for answers from a network.

If no thread waits, several answers can be handled together, which takes less processor time.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["WAITERS", "Waiters"]


class Waiters:
    """The threads that wait. Use `WAITERS`, so that those who wait and those who receive know of each other."""

    def __init__(self) -> None:
        # Without a lock: a set is changed, and copied, in one step.
        self._threads = set[int]()
        self._receivers = set[Callable[[], None]]()

    def __bool__(self) -> bool:
        """Whether any thread waits."""
        return bool(self._threads)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block, this thread waits for an answer."""
        thread = threading.get_ident()
        try:
            self._threads.add(thread)
            for hurry in self._receivers.copy():
                hurry()
            yield
        finally:
            self._threads.discard(thread)

    @contextmanager
    def called(self, hurry: Callable[[], None]) -> Iterator[None]:
        """Inside the block, call `hurry`, which must not wait, in each thread that begins to wait."""
        self._receivers.add(hurry)
        try:
            yield
        finally:
            self._receivers.discard(hurry)

    def forget(self) -> None:
        """Forget all threads, for a forked child, which does not have them."""
        self._threads.clear()
        self._receivers.clear()


WAITERS = Waiters()
os.register_at_fork(after_in_child=WAITERS.forget)
