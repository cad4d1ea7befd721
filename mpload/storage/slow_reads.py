"""Finds out whether reads are slow, from those that are made when their bytes are needed."""

from collections.abc import Callable
from typing import TypeVar

from mpload.storage.many import SLOW_NS, ManyRead

__all__ = ["SlowReads"]

_SLOW_SHARE = 1 / 8
_MEMORY_READS = 32
_Read = TypeVar("_Read")


class SlowReads:
    """The share of slow reads among the latest ones.

    A read during which this thread never waited is not slow. If cores are scarce, other processes ran meanwhile.

    Args:
        clock_ns: the clock.
        count_waits: returns how often this thread has waited so far.
    """

    def __init__(self, *, clock_ns: Callable[[], int], count_waits: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._count_waits = count_waits
        self._share = 0.0
        self._num_watched = _MEMORY_READS  # how many of the next reads to check for waits; a check takes a microsecond

    def watch(self, read: Callable[[], _Read], *, always: bool) -> tuple[_Read, int, bool | None]:
        """Call `read`. Return its result, its time, and whether it was slow: None if that was not looked at.

        It is looked at for a while after a read that took long, or `always`.
        """
        is_watched = always or self._num_watched > 0
        num_waits = self._count_waits() if is_watched else 0
        start_ns = self._clock_ns()
        data = read()
        read_ns = self._clock_ns() - start_ns
        self._num_watched = _MEMORY_READS if read_ns > SLOW_NS else self._num_watched - 1
        if not is_watched:
            return data, read_ns, None
        return data, read_ns, self._count_waits() > num_waits and read_ns > SLOW_NS

    def watch_many(self, read: Callable[[], ManyRead]) -> tuple[ManyRead, bool]:
        """Call `read`, which makes many reads. Return its result, and whether slow reads have become usual."""
        num_waits = self._count_waits()
        result = read()
        num_slow = min(result.num_slow, self._count_waits() - num_waits)
        num_reads = len(result.lengths)
        if num_reads:
            weight = 1 - (1 - 1 / _MEMORY_READS) ** num_reads
            self._share += (num_slow / num_reads - self._share) * weight
        return result, num_slow > 0 and self._share > _SLOW_SHARE

    def are_usual(self, *, is_slow: bool) -> bool:
        """Count one more read, and return whether slow reads have become usual."""
        self._share += (is_slow - self._share) / _MEMORY_READS
        return is_slow and self._share > _SLOW_SHARE

    def forget(self) -> None:
        """Begin anew."""
        self._share = 0.0
