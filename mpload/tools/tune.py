"""Find the fastest loader settings by trying them one after another, within the memory budget."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mpload.errors import ArgumentError
from mpload.index.index import Index, require_files
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES, MemoryBudget
from mpload.memory.machine import MemoryGauge, num_usable_cores
from mpload.tools.trials import LoaderTrial, check_samples, run_loader
from mpload.units import MIB, format_counted

__all__ = ["Outcome", "Point", "Tuning", "pick", "tune", "worker_counts"]

_MAX_WORKERS = 64
_BETTER = 1.05
"""More workers are worth it only if they are faster by this factor."""
_PATIENCE = 2
"""The search ends after this many increases in a row without a gain."""
_CPU_BOUND_WAITING = 0.25
"""Workers that wait for less than this share of the time are CPU-bound."""
_NUM_RIVALS = 2
_LABEL_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The settings of one trial."""

    num_workers: int
    batch_size: int
    memory_budget: int | str = "auto"

    def __post_init__(self) -> None:
        for name in ("num_workers", "batch_size"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one point."""

    point: Point
    samples_per_second: float
    """The median of all trials; 0 if the loader could not start."""
    first_batch_seconds: float = 0.0
    memory_bytes: int = 0
    waiting_share: float = 0.0
    """The share of time in which workers neither ran nor waited for a core."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All results, and the best one."""

    outcomes: tuple[Outcome, ...]
    best: Outcome
    reason: str
    """Why no more workers were tried: a clause without a full stop."""


def tune(
    index: Index,
    *,
    decode: Callable[..., Any],
    transform: Callable[..., Any] | None,
    batch_sizes: Sequence[int],
    memory_budget: int | str = "auto",
    max_workers: int = _MAX_WORKERS,
    seconds: float = 2.0,
    announce: Callable[[Point], None] = lambda _: None,
) -> Tuning:
    """Try numbers of workers, then batch sizes, then the smallest sufficient memory budget.

    The number of workers is doubled until that has brought no gain twice in a row, until the workers are CPU-bound, or
    until the budget has no room for more. The best point and its nearest rivals are then tried again, and compared by
    their medians.

    Args:
        index: The data.
        decode: As in `MPDataset`.
        transform: As in `MPDataset`.
        batch_sizes: The batch sizes to choose from. The first one is preferred.
        memory_budget: The memory budget of the loader, as in `MPLoader`.
        max_workers: The largest number of workers to try.
        seconds: The duration of each trial.
        announce: Called with each point before it is tried.

    Memory: Within the budget. Points that do not fit are not tried.

    Raises:
        ArgumentError: An argument is illegal, or the budget is too small for one worker.
        SampleError: No sample can be made.
    """
    if seconds <= 0 or not batch_sizes:
        raise ArgumentError(f"seconds must be positive and batch_sizes not empty, got {seconds} and {batch_sizes}")
    require_files(index, what="mpload tune")
    check_samples(index, decode=decode, transform=transform)
    budget = MemoryBudget.parse(memory_budget, available_bytes=MemoryGauge().read().free_bytes)
    with TemporaryDirectory(prefix="mpload-tune-") as folder:
        tries = _Tries(
            index=index, decode=decode, transform=transform, seconds=seconds, folder=Path(folder), announce=announce
        )
        cores = num_usable_cores()
        first = Point(num_workers=1, batch_size=batch_sizes[0], memory_budget=memory_budget)
        reason = tries.workers(first, budget=budget, cores=cores, max_workers=max_workers)
        if not any(outcome.samples_per_second for outcome in tries.outcomes()):
            raise ArgumentError(next(outcome.error for outcome in tries.outcomes()))
        best = pick(tries.outcomes())
        for batch_size in batch_sizes[1:]:
            tries.run(replace(best.point, batch_size=batch_size))
        tries.repeat_best(pick(tries.outcomes()))
        best = pick(tries.outcomes())
        # Is it worth the memory to make more than the fewest possible batches ahead?
        least = _least_bytes(tries, best)
        if least is not None and least < budget.total_bytes:
            tries.run(replace(best.point, memory_budget=least))
        outcomes = tries.outcomes()
        return Tuning(outcomes=outcomes, best=pick(outcomes), reason=reason)


def worker_counts(cores: int, max_workers: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... with `cores` among them, up to `max_workers`."""
    numbers = {1 << power for power in range(max_workers.bit_length())} | {cores}
    yield from sorted(number for number in numbers if number <= max_workers)


def pick(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the cheapest of the outcomes that are nearly the fastest: the fewest workers, then the first tried.

    Raises:
        ArgumentError: No loader could start.
    """
    fastest = max((outcome.samples_per_second for outcome in outcomes), default=0.0)
    if not fastest:
        raise ArgumentError("no loader could start. Raise the memory budget or lower the batch size")
    good = [outcome for outcome in outcomes if outcome.samples_per_second * _BETTER >= fastest]
    return min(good, key=lambda outcome: outcome.point.num_workers)  # the first one, if several are equal


@dataclass(kw_only=True)
class _Tries:
    """Runs trials and keeps their results."""

    index: Index
    decode: Callable[..., Any]
    transform: Callable[..., Any] | None
    seconds: float
    folder: Path
    announce: Callable[[Point], None]

    def __post_init__(self) -> None:
        self._trials: dict[Point, list[LoaderTrial]] = {}

    def run(self, point: Point) -> Outcome:
        """Run a trial of a point, in addition to any earlier ones, and return the outcome of all of them."""
        self.announce(point)
        try:
            trial = run_loader(
                self.index,
                decode=self.decode,
                transform=self.transform,
                num_workers=point.num_workers,
                batch_size=point.batch_size,
                memory_budget=point.memory_budget,
                seconds=self.seconds,
                report=self.folder / "errors.jsonl",
            )
        except ArgumentError as error:  # the budget is too small
            trial = LoaderTrial(samples_per_second=0.0, error=str(error))
        self._trials.setdefault(point, []).append(trial)
        return self._outcome(point)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the outcome of every point, in the order of their first trials."""
        return tuple(map(self._outcome, self._trials))

    def workers(self, point: Point, *, budget: MemoryBudget, cores: int, max_workers: int) -> str:
        """Try increasing numbers of workers. Return why no more were tried."""
        best, num_without_gain = 0.0, 0
        for num_workers in worker_counts(cores, max_workers):
            if num_workers > 1 and num_workers * WORKER_BYTES > budget.total_bytes:
                return f"the memory budget has no room for {format_counted(num_workers, 'worker')}"
            outcome = self.run(replace(point, num_workers=num_workers))
            if not outcome.samples_per_second:
                return outcome.error
            num_without_gain = 0 if outcome.samples_per_second > _BETTER * best else num_without_gain + 1
            best = max(best, outcome.samples_per_second)
            if num_workers >= cores and outcome.waiting_share < _CPU_BOUND_WAITING:
                workers = format_counted(num_workers, "worker")
                return f"{workers} saturate the cores; only {outcome.waiting_share:.0%} of worker time is waiting"
            if num_without_gain >= _PATIENCE:
                return f"{format_counted(num_workers, 'worker')} are no faster than fewer"
        return f"the limit of {format_counted(max_workers, 'worker')} was reached"

    def repeat_best(self, best: Outcome) -> None:
        """Try the best point and the points nearest to it once more."""
        rivals = sorted(self.outcomes(), key=lambda outcome: -outcome.samples_per_second)
        for outcome in {best.point: best} | {rival.point: rival for rival in rivals[:_NUM_RIVALS]}:
            self.run(outcome)

    def _outcome(self, point: Point) -> Outcome:
        trials = self._trials[point]
        return Outcome(
            point=point,
            samples_per_second=median(trial.samples_per_second for trial in trials),
            first_batch_seconds=median(trial.start_seconds for trial in trials),
            memory_bytes=max(trial.memory_bytes for trial in trials),
            waiting_share=median(trial.waiting_share for trial in trials),
            error=next((trial.error for trial in trials if trial.error), ""),
        )


def _least_bytes(tries: _Tries, best: Outcome) -> int | None:
    """Return the smallest budget for the workers of `best`, in whole MiB. None if the size of a sample varies."""
    shape = getattr(tries.decode, "output_shape", None)
    if shape is None or tries.transform is not None:
        return None
    sample_bytes = math.prod(shape) * np.dtype(getattr(tries.decode, "output_dtype", np.uint8)).itemsize
    slots_bytes = (MIN_SLOTS + 1) * best.point.batch_size * (sample_bytes + _LABEL_BYTES)
    least_bytes: int = slots_bytes + best.point.num_workers * WORKER_BYTES
    return -(-least_bytes // MIB) * MIB
