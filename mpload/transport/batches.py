"""The input and output of a pool: tasks, batches, options, statistics."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from mpload.errors import ArgumentError
from mpload.transport.messages import Answer, Failure, Tally
from mpload.transport.queue import MAX_TASK_NUMBERS
from mpload.transport.ring import SlotArrays
from mpload.transport.slots import SlotLayout

__all__ = ["BatchTask", "FilledBatch", "KilledSample", "PendingBatch", "PoolOptions", "PoolStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """A batch to be made, described to the work by a few integers."""

    numbers: tuple[int, ...]
    num_samples: int
    input: bytes | None = None
    """Further input, if integers do not suffice. The parent writes it to the input field of the slot."""
    num_counted: int | None = None
    """Number of samples for the statistics, if it differs: a whole batch may be one sample of the slot."""
    layout: SlotLayout | None = None
    """The layout that slots should have from this batch on, if it can be used; None keeps the present one."""

    def __post_init__(self) -> None:
        if len(self.numbers) > MAX_TASK_NUMBERS:
            raise ArgumentError(f"a task may have at most {MAX_TASK_NUMBERS} numbers, got {len(self.numbers)}")
        if self.numbers and not -(1 << 63) <= min(self.numbers) <= max(self.numbers) < 1 << 63:
            raise ArgumentError(f"the numbers of a task must fit in 64 bits, got {self.numbers}")
        if self.num_samples < 1:
            raise ArgumentError(f"num_samples must be at least 1, got {self.num_samples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledSample:
    """A sample that, as the only one of its chunk, killed its worker twice (six times if by SIGKILL)."""

    task: tuple[int, ...]
    sample: int
    """Position in the batch."""
    at: int | None
    """The number that the work last passed to `ChunkReport.at`, if known: whole batches count their samples."""
    cause: str
    """For example `killed its worker (SIGSEGV)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledBatch:
    """A batch, delivered in the order of submission."""

    task: BatchTask
    arrays: SlotArrays
    """By field: an array [n, *shape] or a RaggedArray. Either views of a slot, which keep it reserved, or copies."""
    layout: SlotLayout
    """The layout that the slot had."""
    failures: tuple[Failure, ...]
    """Sorted by position in the batch. A failed sample's arrays are zero unless the work wrote something else.

    The last step of a batch is at the position after all samples.
    """
    tally: Tally = field(default_factory=Tally)
    """What workers counted while they made it. Work that a death has undone is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """How a loader runs its workers: time limits, restarts, new processes instead of forks.

    Raises:
        ArgumentError: a number is out of range.
    """

    starts_fresh: bool = False
    """Start each worker as a new process instead of a fork, for modules whose threads do not survive a fork. Workers
    then start more slowly and share less memory."""
    sample_timeout_seconds: float = 120.0
    """A worker that spends longer than this on one sample (between two calls of `ChunkReport.at`) is killed."""
    start_timeout_seconds: float = 120.0
    """Time limit for loading the work in the zygote, and for `Work.open` in a worker."""
    max_restarts: int = 100
    """More worker deaths than this within an hour end the job."""
    huge_pages: bool = False
    """Ask the kernel to back the slots with huge pages."""

    def __post_init__(self) -> None:
        for name in ("sample_timeout_seconds", "start_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")
        if self.max_restarts < 0:
            raise ArgumentError(f"max_restarts must not be negative, got {self.max_restarts}")


@dataclass(slots=True, kw_only=True)
class PoolStats:
    """Counters of a pool since it was made."""

    num_batches: int = 0
    num_samples: int = 0
    num_copied_batches: int = 0
    """Batches copied out of their slot because the user still held too many others."""
    by_worker: defaultdict[int, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """By worker number: all samples made under that number, by replaced workers and for undelivered batches too."""
    sample_ns: float = math.inf
    """Mean time that a worker takes for a sample, over all samples made; infinite before the first."""
    num_made: int = 0
    """Samples made, for undelivered batches too."""
    busy_ns: int = 0
    """Time that workers spent on them, summed over all workers."""

    def add(self, answer: Answer) -> None:
        """Add the counts of one answered chunk."""
        self.by_worker[answer.worker].add(answer.tally)
        self.num_made += answer.tally.num_samples
        self.busy_ns += answer.tally.busy_ns
        if self.num_made:
            self.sample_ns = self.busy_ns / self.num_made

    def add_batch(self, task: BatchTask, *, is_copy: bool) -> None:
        """Count a delivered batch."""
        self.num_copied_batches += is_copy
        self.num_batches += 1
        self.num_samples += task.num_samples if task.num_counted is None else task.num_counted


@dataclass(slots=True, kw_only=True)
class PendingBatch:
    """A batch in flight."""

    task: BatchTask
    slot: int
    num_left: int
    """Samples whose chunks have not been answered yet, and one more if the batch has a last step."""
    is_cancelled: bool = False
    failures: list[Failure] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def filled(self, arrays: SlotArrays, layout: SlotLayout) -> FilledBatch:
        """Return the batch for delivery, now that it is complete."""
        failures = tuple(sorted(self.failures, key=lambda failure: failure.sample)) if self.failures else ()
        return FilledBatch(task=self.task, arrays=arrays, layout=layout, failures=failures, tally=self.tally)
