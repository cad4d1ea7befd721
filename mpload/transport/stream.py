"""The batches of one iteration, in order."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from mpload.transport.batches import BatchTask, FilledBatch
from mpload.transport.parts import CloseOnError

__all__ = ["LatestStream", "Stream", "StreamedPool"]


class StreamedPool(Protocol):
    """What a stream needs of its pool, which is a `WorkerPool`."""

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be submitted now."""
        ...

    @property
    def num_pending(self) -> int:
        """Number of batches submitted and not yet delivered."""
        ...

    def announce(self, task: BatchTask) -> bool:
        """Tell workers about a batch that will be submitted later; return False if they know of enough."""
        ...

    def submit(self, task: BatchTask) -> None:
        """Queue a batch for the workers."""
        ...

    def await_next(self) -> bool:
        """Wait for a short time; return whether the oldest pending batch is complete."""
        ...

    def next(self) -> FilledBatch:
        """Return the oldest pending batch, as soon as it is complete."""
        ...

    def wait(self) -> None:
        """Wait for a short time, or until a message arrives."""
        ...

    def cancel(self) -> None:
        """Drop all pending batches."""
        ...


class Stream(Iterator[FilledBatch]):
    """The batches of some tasks, in order. Each step keeps up to `depth` batches of the pool in flight.

    An error does not end the stream: the next step tries again, or reports that the pool is closed. If it ended the
    stream, a caller that catches errors would mistake the batches so far for the whole iteration.
    """

    def __init__(
        self,
        pool: StreamedPool,
        close_on_error: CloseOnError,
        tasks: Iterable[BatchTask],
        *,
        on_wait: Callable[[], object],
    ) -> None:
        self._pool = pool
        self._close_on_error = close_on_error
        self._tasks = iter(tasks)
        self._next_task = next(self._tasks, None)
        self._announced: deque[BatchTask] = deque()  # before `_next_task`
        self._on_wait = on_wait
        self._is_closed = False

    def __next__(self) -> FilledBatch:
        pool = self._pool
        while not self._is_closed and (self._next_task is not None or self._announced or pool.num_pending):
            with self._close_on_error:
                self._submit()
            if not pool.num_pending:
                pool.wait()
            elif pool.await_next():
                return pool.next()
            self._on_wait()
        self._is_closed = True
        raise StopIteration

    def _submit(self) -> None:
        """Submit the batches for which there is room, and announce some of those that come after them."""
        pool = self._pool
        while pool.has_room and (self._announced or self._next_task is not None):
            if self._announced:
                pool.submit(self._announced.popleft())
            elif self._next_task is not None:
                pool.submit(self._next_task)
                self._next_task = next(self._tasks, None)
        while self._next_task is not None and pool.announce(self._next_task):
            self._announced.append(self._next_task)
            self._next_task = next(self._tasks, None)

    def close(self) -> None:
        """Cancel the batches that have not been taken. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.cancel()

    def __del__(self) -> None:
        """Cancel them too when the caller breaks out of its loop and drops the stream."""
        if hasattr(self, "_is_closed"):  # not if the stream was copied without `__init__`
            self.close()


class LatestStream:
    """The one stream of a pool that has not ended, unless it was dropped."""

    def __init__(self) -> None:
        self._known: Callable[[], Stream | None] = lambda: None

    def begin(self, make: Callable[[], Stream]) -> Stream:
        """Return another stream, after ending the earlier one, which an exception may have kept."""
        if (earlier := self._known()) is not None:
            earlier.close()
        stream = make()
        self._known = weakref.ref(stream)
        return stream
