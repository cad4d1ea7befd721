"""What goes into a pool and what comes out."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from mpload.errors import ArgumentError
from mpload.transport.messages import Answer, Failure, Tally
from mpload.transport.queue import MAX_TASK_NUMBERS
from mpload.transport.ring import SlotArrays

__all__ = ["BatchTask", "FilledBatch", "KilledSample", "PendingBatch", "PoolOptions", "PoolStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """What the work needs to know of a batch: a few integers."""

    numbers: tuple[int, ...]
    num_samples: int

    def __post_init__(self) -> None:
        if len(self.numbers) > MAX_TASK_NUMBERS:
            raise ArgumentError(f"a task has at most {MAX_TASK_NUMBERS} numbers, got {len(self.numbers)}")
        if self.numbers and not -(1 << 63) <= min(self.numbers) <= max(self.numbers) < 1 << 63:
            raise ArgumentError(f"numbers of a task must fit 64 bits, got {self.numbers}")
        if self.num_samples < 1:
            raise ArgumentError(f"num_samples must be at least 1, got {self.num_samples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledSample:
    """A sample that killed the workers that it was given to, alone, twice."""

    task: tuple[int, ...]
    sample: int
    """Its place in the batch."""
    cause: str
    """`killed its worker (SIGSEGV)`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledBatch:
    """A batch, in the order of its submission."""

    task: BatchTask
    arrays: SlotArrays
    """By field: array [n, *shape] or RaggedArray. Views of a slot, theirs as long as one of them lives, or copies."""
    failures: tuple[Failure, ...]
    """By place in the batch; a failed sample's arrays are zero unless the work wrote something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """How a loader treats its workers: time limits, restarts, fresh processes in place of forks.

    Raises:
        ArgumentError: a number is out of range.
    """

    starts_fresh: bool = False
    """A new process a worker instead of a fork, for modules whose threads do not survive forking. Workers then start
    slower and share less memory."""
    sample_timeout_seconds: float = 120.0
    """A worker that is at one sample (or between two calls of `ChunkReport.at`) for longer is killed."""
    start_timeout_seconds: float = 120.0
    """For loading the work in the zygote, and for `Work.open` in a worker."""
    max_restarts: int = 100
    """More deaths than this within an hour end the job."""
    huge_pages: bool = False
    """Ask the kernel for huge pages for the slots."""

    def __post_init__(self) -> None:
        for name in ("sample_timeout_seconds", "start_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")
        if self.max_restarts < 0:
            raise ArgumentError(f"max_restarts must not be negative, got {self.max_restarts}")


@dataclass(slots=True, kw_only=True)
class PoolStats:
    """What a pool has done so far."""

    num_batches: int = 0
    num_samples: int = 0
    num_copied_batches: int = 0
    """Batches that were copied out of their slot, because the user held on to the others."""
    by_worker: defaultdict[int, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """By number: what it, and any that it took the place of, has made, whether that was delivered or not."""
    sample_ns: float = math.inf
    """How long a worker takes for a sample, in the mean of all made; infinite before the first."""
    _num_made: int = field(default=0, init=False, repr=False)
    _busy_ns: int = field(default=0, init=False, repr=False)

    def add(self, answer: Answer) -> None:
        """Add what a chunk took."""
        self.by_worker[answer.worker].add(answer.tally)
        self._num_made += answer.tally.num_samples
        self._busy_ns += answer.tally.busy_ns
        if self._num_made:
            self.sample_ns = self._busy_ns / self._num_made


@dataclass(slots=True, kw_only=True)
class PendingBatch:
    """A batch under way."""

    task: BatchTask
    slot: int
    num_left: int
    """Samples that are not yet answered for."""
    is_cancelled: bool = False
    failures: list[Failure] = field(default_factory=list)
