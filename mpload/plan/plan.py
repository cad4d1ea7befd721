"""Which positions of an epoch each batch of a rank holds, computed from a few integers.

A global batch contains the samples that all ranks together consume in one step. It depends only on the position where
the run started and on batch_size times world_size. The number of workers does not matter, nor does the number of ranks
if that product stays the same.
"""

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range
from mpload.plan.topology import Topology

__all__ = ["Plan", "Tail"]


class Tail(StrEnum):
    """What happens to the samples at the end of an epoch that do not fill a global batch."""

    DROP = auto()
    """These samples are left out of the epoch."""
    PAD = auto()
    """The last batch is filled from the start of the epoch. Every rank gets the same number of full batches."""
    RAGGED = auto()
    """Every sample is visited exactly once. A rank's last batch may be short or empty."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        names = ", ".join(repr(str(tail)) for tail in cls)
        raise ArgumentError(f"tail must be one of {names}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which positions batch `k` of a rank holds.

    With batch size B and R ranks, global batch `k` holds the positions `[start + k*B*R, start + (k+1)*B*R)`. Rank `r`
    takes the `r`-th B of these, counting from 0.

    Attributes:
        num_samples: number of positions in an epoch, in `[0, 2**62]`.
        batch_size: number of samples in a full batch of one rank, at least 1.
        topology: the rank that this plan is for.
        tail: what happens to the samples that do not fill a global batch.
        start: the position at which the run started or resumed, in `[0, num_samples]`.

    Raises:
        ArgumentError: a value is out of range.
    """

    num_samples: int
    batch_size: int
    topology: Topology
    tail: Tail
    start: int = 0

    def __post_init__(self) -> None:
        check_range("num_samples", self.num_samples, 0, MAX_NUM_SAMPLES + 1)
        check_range("batch_size", self.batch_size, 1, MAX_NUM_SAMPLES)
        check_range("start", self.start, 0, self.num_samples + 1)
        Tail(self.tail)

    @property
    def global_batch_size(self) -> int:
        """Number of samples that all ranks together consume in one step."""
        return self.batch_size * self.topology.world_size

    @property
    def num_batches(self) -> int:
        """Number of batches from `start` to the end of the epoch. It is the same for every rank."""
        full, rest = divmod(self.num_samples - self.start, self.global_batch_size)
        return full + (rest > 0 and self.tail != Tail.DROP)

    @property
    def num_samples_of_rank(self) -> int:
        """Number of samples of this rank from `start` to the end of the epoch, without padding."""
        full, rest = divmod(self.num_samples - self.start, self.global_batch_size)
        of_tail = min(max(rest - self.topology.rank * self.batch_size, 0), self.batch_size)
        return full * self.batch_size + (0 if self.tail == Tail.DROP else of_tail)

    def positions(self, batch: int) -> NDArray[np.int64]:
        """Return the positions of this rank's batch, `int64[n]`.

        `n` is `batch_size`, or less (even 0) in a ragged last batch. A padded batch continues at position 0, and wraps
        around again if the epoch is shorter than the padding.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        first, num_real = self._first_position(batch), self.num_real_samples(batch)
        if self.tail == Tail.PAD and num_real < self.batch_size:
            return (np.arange(self.batch_size, dtype=np.int64) + first % self.num_samples) % self.num_samples
        return np.arange(first, first + num_real, dtype=np.int64)

    def single_positions(self, batches: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of many batches at once, `int64[n]`. `batch_size` must be 1.

        Empty ragged batches are left out.
        """
        first = self.start + batches * self.global_batch_size + self.topology.rank
        if self.tail == Tail.RAGGED:
            return first[first < self.num_samples]
        return first % self.num_samples

    def num_real_samples(self, batch: int) -> int:
        """Return how many of `positions(batch)` are not padding. The padding comes last.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        return min(max(self.num_samples - self._first_position(batch), 0), self.batch_size)

    def size(self, batch: int) -> int:
        """Return the length of `positions(batch)`.

        Raises:
            ArgumentError: `batch` is not in `[0, num_batches)`.
        """
        num_real = self.num_real_samples(batch)
        return self.batch_size if self.tail == Tail.PAD else num_real

    @property
    def remainder(self) -> int:
        """Number of real samples in the last global batch, if that is padded; otherwise 0."""
        return (self.num_samples - self.start) % self.global_batch_size if self.tail == Tail.PAD else 0

    def position_after(self, num_batches: int) -> int:
        """Return the position at which a run resumes after it has consumed `num_batches` global batches of this plan.

        Raises:
            ArgumentError: `num_batches` is not in `[0, self.num_batches]`.
        """
        check_range("num_batches", num_batches, 0, self.num_batches + 1)
        return min(self.start + num_batches * self.global_batch_size, self.num_samples)

    def segments_after(self, num_batches: int) -> tuple[tuple[int, int], ...]:
        """Return no segments; only a plan of buckets has some."""
        del num_batches
        return ()

    def task(self, batch: int) -> tuple[int, int]:
        """Return the numbers `start` and `batch` of a batch's `BatchNumber`."""
        return self.start, batch

    def _first_position(self, batch: int) -> int:
        check_range("batch", batch, 0, self.num_batches)
        return self.start + batch * self.global_batch_size + self.topology.rank * self.batch_size
