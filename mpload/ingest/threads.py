"""Runs work that waits for disks in several threads."""

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
    """Yield `function(item)` for each item, in the order of the items.

    Memory: at most `2 * num_workers` items and results at a time.
    """
    if num_workers < 1:
        raise ArgumentError(f"num_workers must be positive, got {num_workers}")
    with ThreadPoolExecutor(num_workers, thread_name_prefix="mpload-index") as pool:
        pending: deque[Future[_Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= 2 * num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
