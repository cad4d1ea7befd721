"""Work that waits for disks, done by some threads at once."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from mpload.errors import ArgumentError

__all__ = ["map_in_threads"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_threads(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, num_workers: int
) -> Iterator[_Result]:
    """Yield `function(item)` for each item, in order.

    Memory: at most `2 * num_workers` items and results at a time.
    """
    if num_workers < 1:
        raise ArgumentError(f"num_workers must be positive, got {num_workers}")
    with ThreadPoolExecutor(num_workers, thread_name_prefix="mpload-index") as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 2 * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
