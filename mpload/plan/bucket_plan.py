"""Which positions each batch of a rank holds if all samples of a global batch are of one bucket.

The positions of a bucket are consecutive. The order of the epoch puts the bucket's samples at them. A global batch
holds the next positions of its bucket, and `BucketTurns` says whose turn it is. At the end of the epoch, each bucket
has one global batch more with the samples that do not fill one, unless they are dropped.

A run may resume with another number of ranks. What is left of each bucket is then laid out anew. So where a run is
follows from *segments*: pairs of the size of global batches and how many of them were done, since the last change.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from math import gcd

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.bucket_turns import BucketTurns
from mpload.plan.order import round_keys
from mpload.plan.plan import Tail
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range
from mpload.plan.topology import Topology

__all__ = ["MAX_SEGMENTS", "BucketPlan", "BucketSizes", "Segments", "position_of", "positions_from"]

MAX_SEGMENTS = 12
"""How many numbers of ranks an epoch may have, one after another."""

Segments = tuple[tuple[int, int], ...]
"""Pairs: the size of a global batch, divided by the relative batch size of its bucket, and how many were done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSizes:
    """The buckets of an index.

    Attributes:
        counts: the number of samples in each bucket.
        batch_sizes: the number of samples in a full batch of one rank, for each bucket, at least 1.

    Raises:
        ArgumentError: a value is out of range.
    """

    counts: tuple[int, ...]
    batch_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.batch_sizes) or not self.counts:
            raise ArgumentError(
                f"each bucket needs a batch size: got {len(self.batch_sizes)} for {len(self.counts)} buckets"
            )
        for count, batch_size in zip(self.counts, self.batch_sizes, strict=True):
            check_range("the number of samples of a bucket", count, 0, MAX_NUM_SAMPLES)
            check_range("the batch size of a bucket", batch_size, 1, MAX_NUM_SAMPLES)

    @property
    def unit(self) -> int:
        """The greatest number of which all batch sizes are multiples."""
        return gcd(*self.batch_sizes)

    @property
    def relative(self) -> tuple[int, ...]:
        """The batch sizes, divided by `unit`."""
        return tuple(batch_size // self.unit for batch_size in self.batch_sizes)

    @property
    def starts(self) -> list[int]:
        """The first position of each bucket."""
        return [0, *accumulate(self.counts)][:-1]


class _Layout:
    """How what is left of each bucket is divided into global batches of one size."""

    def __init__(self, sizes: BucketSizes, scale: int, done: list[int], keys: tuple[int, ...]) -> None:
        self.global_sizes = [relative * scale for relative in sizes.relative]
        self.done = done
        left = [count - before for count, before in zip(sizes.counts, done, strict=True)]
        parts = [divmod(number, size) for number, size in zip(left, self.global_sizes, strict=True)]
        self.turns = BucketTurns(tuple(full for full, _ in parts), keys)
        self.rests = [rest for _, rest in parts]
        # The fullest comes first, so that a rank without samples in one global batch has none in the following ones.
        fullness = [Fraction(rest, size) for rest, size in zip(self.rests, self.global_sizes, strict=True)]
        with_rest = [bucket for bucket, rest in enumerate(self.rests) if rest]
        self.tails = sorted(with_rest, key=lambda bucket: (-fullness[bucket], bucket))

    @property
    def num_full(self) -> int:
        return self.turns.num_batches

    @property
    def num_batches(self) -> int:
        return self.num_full + len(self.tails)

    def at(self, batch: int) -> tuple[int, int]:
        """Return the bucket of a global batch, and how many of its samples come before it."""
        if batch < self.num_full:
            bucket, turn = self.turns.at(batch)
            return bucket, self.done[bucket] + turn * self.global_sizes[bucket]
        bucket = self.tails[batch - self.num_full]
        return bucket, self.done_before(self.num_full)[bucket]

    def done_before(self, batch: int) -> list[int]:
        """Return how many samples of each bucket come before a global batch."""
        turns = self.turns.counts_before(min(batch, self.num_full))
        done = [before + turn * size for before, turn, size in zip(self.done, turns, self.global_sizes, strict=True)]
        for bucket in self.tails[: max(0, batch - self.num_full)]:
            done[bucket] += self.rests[bucket]
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """Which positions batch `k` of a rank holds, in place of `Plan` if there are buckets.

    Attributes:
        sizes: the buckets.
        topology: the rank that this plan is for.
        tail: what happens to the samples of each bucket that do not fill a global batch. A padded one is filled with
            the first samples of its bucket.
        seed: the run's seed.
        epoch: the epoch.
        segments: where the run resumed.

    Raises:
        ArgumentError: a value is out of range, or there are too many segments.
    """

    sizes: BucketSizes
    topology: Topology
    tail: Tail
    seed: int
    epoch: int
    segments: Segments = ()
    past: Segments = field(init=False)
    """The segments that have ended, because global batches had another size."""
    first_batch: int = field(init=False)
    """How many global batches of the present segment were done before."""
    _layout: _Layout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Tail(self.tail)
        keys = round_keys("buckets", self.seed, self.epoch)
        past, first_batch = self.segments, 0
        if past and past[-1][0] == self._scale:
            (*before, (_, first_batch)) = past
            past = tuple(before)
        if len(past) >= MAX_SEGMENTS:
            raise ArgumentError(
                f"epoch {self.epoch} was resumed with {len(past)} other numbers of ranks or batch sizes, which is the "
                f"limit. Resume with those of the last run: batch_size * world_size = {past[-1][0]}, or begin the next "
                "epoch"
            )
        layout = _Layout(self.sizes, self._scale, _done_after(self.sizes, past, keys), keys)
        check_range("the number of global batches of a segment", first_batch, 0, layout.num_batches + 1)
        for name, value in (("past", past), ("first_batch", first_batch), ("_layout", layout)):
            object.__setattr__(self, name, value)

    @property
    def _scale(self) -> int:
        return self.sizes.unit * self.topology.world_size

    @property
    def batch_size(self) -> int:
        """Number of samples in the largest full batch of one rank."""
        return max(self.sizes.batch_sizes)

    @property
    def num_samples(self) -> int:
        """Number of positions in an epoch."""
        return sum(self.sizes.counts)

    @property
    def num_batches(self) -> int:
        """Number of batches to the end of the epoch. It is the same for every rank."""
        layout = self._layout
        return max(0, (layout.num_full if self.tail == Tail.DROP else layout.num_batches) - self.first_batch)

    def positions(self, batch: int) -> NDArray[np.int64]:
        """Return the positions of this rank's batch, `int64[n]`.

        `n` is the batch size of the bucket, or less (even 0) in a ragged last batch of the bucket.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        first, bucket = self.task(batch)
        return positions_from(self.sizes, bucket, first, tail=self.tail)

    def task(self, batch: int) -> tuple[int, int]:
        """Return the numbers `start` and `batch` of a batch's `BatchNumber`.

        They are the place of this rank's first sample in the batch's bucket, and that bucket. `positions_from` finds
        the batch's positions from them, without the plan.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        check_range("batch", batch, 0, self.num_batches)
        bucket, first = self._layout.at(self.first_batch + batch)
        return first + self.topology.rank * self.sizes.batch_sizes[bucket], bucket

    def num_real_samples(self, batch: int) -> int:
        """Return how many of `positions(batch)` are not padding. The padding comes last."""
        first, bucket = self.task(batch)
        return min(max(self.sizes.counts[bucket] - first, 0), self.sizes.batch_sizes[bucket])

    def size(self, batch: int) -> int:
        """Return the length of `positions(batch)`."""
        _, bucket = self.task(batch)
        return self.sizes.batch_sizes[bucket] if self.tail == Tail.PAD else self.num_real_samples(batch)

    @property
    def remainder(self) -> int:
        """Number of real samples in the last global batch, if that is padded; otherwise 0."""
        tails = self._layout.tails
        return self._layout.rests[tails[-1]] if tails and self.tail == Tail.PAD else 0

    def position_after(self, num_batches: int) -> int:
        """Return how many samples the epoch's runs have consumed after `num_batches` global batches of this plan.

        Raises:
            ArgumentError: `num_batches` is not in `[0, self.num_batches]`.
        """
        check_range("num_batches", num_batches, 0, self.num_batches + 1)
        return sum(self._layout.done_before(self.first_batch + num_batches))

    def segments_after(self, num_batches: int) -> Segments:
        """Return the segments with which a run resumes after `num_batches` global batches of this plan."""
        done = self.first_batch + num_batches
        return (*self.past, (self._scale, done)) if done else self.past


def position_of(sizes: BucketSizes, segments: Segments, *, seed: int, epoch: int) -> int:
    """Return how many samples of an epoch were consumed in these segments.

    Raises:
        ArgumentError: there cannot be such segments.
    """
    check_range("the number of segments", len(segments), 0, MAX_SEGMENTS + 1)
    return sum(_done_after(sizes, segments, round_keys("buckets", seed, epoch)))


def _done_after(sizes: BucketSizes, segments: Segments, keys: tuple[int, ...]) -> list[int]:
    """Return how many samples of each bucket were consumed in these segments."""
    done = [0] * len(sizes.counts)
    for scale, number in segments:
        layout = _Layout(sizes, scale, done, keys)
        check_range("the number of global batches of a segment", number, 0, layout.num_batches + 1)
        done = layout.done_before(number)
    return done


def positions_from(sizes: BucketSizes, bucket: int, first: int, *, tail: Tail) -> NDArray[np.int64]:
    """Return the positions of a rank's batch whose first sample is at place `first` of a bucket, `int64[n]`."""
    count, batch_size = sizes.counts[bucket], sizes.batch_sizes[bucket]
    places = np.arange(first, first + batch_size, dtype=np.int64)
    places = places % count if tail == Tail.PAD else places[places < count]
    return places + sizes.starts[bucket]
