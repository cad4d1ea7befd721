"""What a pool makes, one batch after another."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mpload.transport.batches import BatchTask, FilledBatch
from mpload.transport.parts import Whole

if TYPE_CHECKING:  # which makes streams
    from mpload.transport.pool import WorkerPool

__all__ = ["Stream"]


class Stream(Iterator[FilledBatch]):
    """The batches of some tasks, in order; while they are taken, the pool's `depth` are kept under way.

    An error does not end it: the next step tries again, or says that the pool is closed. Else whoever catches one would
    take what was made so far for all there is.
    """

    def __init__(self, pool: "WorkerPool", whole: Whole, tasks: Iterable[BatchTask]) -> None:
        self._pool = pool
        self._whole = whole
        self._todo = iter(tasks)
        self._task = next(self._todo, None)
        self._is_closed = False

    def __next__(self) -> FilledBatch:
        pool = self._pool
        while not self._is_closed and (self._task is not None or pool.num_pending):
            while self._task is not None and pool.has_room:
                with self._whole:
                    pool.submit(self._task)
                    self._task = next(self._todo, None)
            if pool.num_pending:
                return pool.next()
            pool.wait()
        self._is_closed = True
        raise StopIteration

    def close(self) -> None:
        """Cancel the batches that are not yet taken, where some are left. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.cancel()

    def __del__(self) -> None:
        """Do so where its user has broken off."""
        self.close()
