"""The sequence of buckets in an epoch: which bucket each global batch is of. It is computed, never stored.

Time runs from 0 to 1. A bucket of n batches divides it into n equal intervals, and has one batch at a random moment of
each. All batches come in the order of their moments. So any prefix holds each bucket's share of batches, to within the
number of buckets, and the sequence shows no pattern. How many batches of a bucket come before a moment follows from the
interval that the moment is in.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.plan.permutation import mixed
from mpload.plan.ranges import check_range

__all__ = ["BucketTurns"]

_BLOCK = 1024
_MOMENT_BITS = 12
_MAX_BATCHES = 1 << 40  # with the bits of a moment, doubles hold it exactly


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """The buckets of consecutive global batches."""

    first: int
    counts: NDArray[np.int64]
    """int64 [num_buckets]: how many batches of each bucket come before the first one."""
    buckets: NDArray[np.int64]
    """int64 [n]: the bucket of each batch."""


class BucketTurns:
    """The buckets of all global batches of an epoch, in which each bucket has a given number of batches.

    Memory: some numbers for each bucket, and for 1,024 batches.

    Raises:
        ArgumentError: a bucket has 2**40 batches or more.
    """

    def __init__(self, nums_batches: tuple[int, ...], keys: tuple[int, ...]) -> None:
        """Begin an epoch.

        Args:
            nums_batches: the number of batches of each bucket.
            keys: what the moments depend on.
        """
        for number in nums_batches:
            check_range("the number of batches of a bucket", number, 0, _MAX_BATCHES)
        self.num_batches = sum(nums_batches)
        self._nums = nums_batches
        buckets = np.arange(len(nums_batches), dtype=np.uint64)
        self._salts = mixed(buckets ^ np.uint64(keys[0])) ^ np.uint64(keys[1])
        self._latest: _Block | None = None

    def at(self, batch: int) -> tuple[int, int]:
        """Return the bucket of a global batch, and how many batches of that bucket come before it."""
        check_range("batch", batch, 0, self.num_batches)
        block = self._block_of(batch)
        place = batch - block.first
        bucket = int(block.buckets[place])
        return bucket, int(block.counts[bucket]) + int(np.count_nonzero(block.buckets[:place] == bucket))

    def counts_before(self, batch: int) -> list[int]:
        """Return how many batches of each bucket come before a global batch, or before the end."""
        check_range("batch", batch, 0, self.num_batches + 1)
        if batch == self.num_batches:
            return list(self._nums)
        block = self._block_of(batch)
        here = np.bincount(block.buckets[: batch - block.first], minlength=len(self._nums))
        counts: list[int] = (block.counts + here).tolist()
        return counts

    def _block_of(self, batch: int) -> _Block:
        block = self._latest
        if block is None or not 0 <= batch - block.first < len(block.buckets):
            self._latest = block = self._made(batch // _BLOCK * _BLOCK)
        return block

    def _made(self, first: int) -> _Block:
        stop = min(first + _BLOCK, self.num_batches)
        # Before a moment t come t * num_batches batches, give or take the number of buckets.
        slack, total = len(self._nums), self.num_batches
        lows = [max(0, (first - slack) * number // total - 1) for number in self._nums]
        highs = [min(number, (stop + slack) * number // total + 2) for number in self._nums]
        counts = np.array(lows, np.int64)
        sizes = np.array(highs, np.int64) - counts
        buckets = np.repeat(np.arange(slack), sizes)
        turns = np.arange(len(buckets)) - np.repeat(np.cumsum(sizes) - sizes - counts, sizes)
        buckets = buckets[np.argsort(self._moments(buckets, turns), kind="stable")]
        before = first - sum(lows)
        counts += np.bincount(buckets[:before], minlength=slack)
        return _Block(first=first, counts=counts, buckets=buckets[before : before + stop - first])

    def _moments(self, buckets: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the moment of each turn of a bucket, float64 [n]; exact numerators, so that all machines agree."""
        drawn = mixed(turns.view(np.uint64) ^ self._salts[buckets]) >> np.uint64(64 - _MOMENT_BITS)
        numerators = (turns << _MOMENT_BITS) + drawn.view(np.int64)
        moments: NDArray[np.float64] = numerators / np.array(self._nums, np.float64)[buckets]
        return moments
