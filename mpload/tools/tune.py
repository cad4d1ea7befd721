"""Which numbers make a loader fastest here: tried one after another, within the memory budget."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from mpload.errors import ArgumentError
from mpload.index.index import Index
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES, MemoryBudget
from mpload.memory.machine import MemoryGauge, num_usable_cores
from mpload.tools.trials import LoaderTrial, check_samples, run_loader
from mpload.units import MIB

__all__ = ["Outcome", "Point", "Tuning", "pick", "tune", "worker_counts"]

_MOST_WORKERS = 64
_BETTER = 1.05
"""A larger number has to give so much more to be worth it."""
_PATIENCE = 2
"""Larger numbers that give no more before none larger is tried."""
_WAITING = 0.25
"""Where workers wait less than this, cores are what they lack."""
_NUM_AGAIN = 2
_LABEL_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Arguments of a loader."""

    num_workers: int
    batch_size: int
    memory_budget: int | str = "auto"

    def __post_init__(self) -> None:
        for name in ("num_workers", "batch_size"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a point gave."""

    point: Point
    samples_per_second: float
    """Median, where it was tried several times; 0 where it could not be."""
    first_batch_seconds: float = 0.0
    memory_bytes: int = 0
    waiting_share: float = 0.0
    """Of the workers' time: neither on a core nor wanting one."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All that was tried, and what is best."""

    outcomes: tuple[Outcome, ...]
    best: Outcome
    reason: str
    """Why no more workers were tried."""


def tune(
    index: Index,
    *,
    decode: Callable[..., Any],
    transform: Callable[..., Any] | None,
    batch_sizes: Sequence[int],
    memory_budget: int | str = "auto",
    max_workers: int = _MOST_WORKERS,
    seconds: float = 2.0,
    tell: Callable[[Point], None] = lambda _: None,
) -> Tuning:
    """Try numbers of workers, then sizes of batches, then how little memory is enough.

    Workers are doubled while that helps: until twice in a row it does not, until they lack cores and not work, or
    until the budget holds no more. The best and its nearest rivals are tried again, and compared by their medians.

    Args:
        index: the data.
        decode: as in `MPDataset`.
        transform: as in `MPDataset`.
        batch_sizes: those that may be chosen; the first is preferred.
        memory_budget: what the loader may take, as in `MPLoader`.
        max_workers: never more.
        seconds: for each trial.
        tell: told each point before it is tried.

    Memory: never more than the budget: points that do not fit are not tried.

    Raises:
        ArgumentError: an argument breaks a rule, or not even one worker fits the budget.
        SampleError: no sample can be made.
    """
    if seconds <= 0 or not batch_sizes:
        raise ArgumentError(f"seconds must be positive and batch_sizes not empty, got {seconds} and {batch_sizes}")
    check_samples(index, decode=decode, transform=transform)
    budget = MemoryBudget.parse(memory_budget, available_bytes=MemoryGauge().read().free_bytes)
    with TemporaryDirectory(prefix="mpload-tune-") as folder:
        tries = _Tries(index=index, decode=decode, transform=transform, seconds=seconds, folder=Path(folder), tell=tell)
        cores = num_usable_cores()
        first = Point(num_workers=1, batch_size=batch_sizes[0], memory_budget=memory_budget)
        reason = tries.workers(first, budget=budget, cores=cores, max_workers=max_workers)
        if not any(outcome.samples_per_second for outcome in tries.outcomes()):
            raise ArgumentError(next(outcome.error for outcome in tries.outcomes()))
        best = pick(tries.outcomes())
        for batch_size in batch_sizes[1:]:
            tries.run(replace(best.point, batch_size=batch_size))
        tries.again(pick(tries.outcomes()))
        best = pick(tries.outcomes())
        # As many batches as have to be: is it worth more to make others ahead?
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
    """Return the cheapest of those that are nearly the fastest: fewest workers, then first tried.

    Raises:
        ArgumentError: none ran.
    """
    fastest = max((outcome.samples_per_second for outcome in outcomes), default=0.0)
    if not fastest:
        raise ArgumentError("no point could be tried")
    good = [outcome for outcome in outcomes if outcome.samples_per_second * _BETTER >= fastest]
    return min(good, key=lambda outcome: outcome.point.num_workers)  # the first, of several


@dataclass(kw_only=True)
class _Tries:
    """Runs points and keeps what they gave."""

    index: Index
    decode: Callable[..., Any]
    transform: Callable[..., Any] | None
    seconds: float
    folder: Path
    tell: Callable[[Point], None]

    def __post_init__(self) -> None:
        self._trials: dict[Point, list[LoaderTrial]] = {}

    def run(self, point: Point) -> Outcome:
        """Try a point, once more where it was tried before."""
        self.tell(point)
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
        except ArgumentError as error:  # the budget does not hold it
            trial = LoaderTrial(samples_per_second=0.0, error=str(error))
        self._trials.setdefault(point, []).append(trial)
        return self._outcome(point)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return what every point gave, in the order they were first tried."""
        return tuple(map(self._outcome, self._trials))

    def workers(self, point: Point, *, budget: MemoryBudget, cores: int, max_workers: int) -> str:
        """Try more and more workers; return why no more were."""
        best, num_useless = 0.0, 0
        for num_workers in worker_counts(cores, max_workers):
            if num_workers > 1 and num_workers * WORKER_BYTES > budget.total_bytes:
                return f"the budget holds no {num_workers} workers"
            outcome = self.run(replace(point, num_workers=num_workers))
            if not outcome.samples_per_second:
                return outcome.error
            num_useless = 0 if outcome.samples_per_second > _BETTER * best else num_useless + 1
            best = max(best, outcome.samples_per_second)
            if num_workers >= cores and outcome.waiting_share < _WAITING:
                share = f"{outcome.waiting_share:.0%}"
                return f"{num_workers} workers are CPU-bound: they wait {share} of the time"
            if num_useless >= _PATIENCE:
                return f"{num_workers} workers give no more than fewer"
        return f"{max_workers} workers are the most that were allowed"

    def again(self, best: Outcome) -> None:
        """Try the best and what comes near it once more."""
        rivals = sorted(self.outcomes(), key=lambda outcome: -outcome.samples_per_second)
        for outcome in {best.point: best} | {rival.point: rival for rival in rivals[:_NUM_AGAIN]}:
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
    """Return the smallest budget for as many workers, in whole MiB; None where the size of a sample varies."""
    shape = getattr(tries.decode, "output_shape", None)
    if shape is None or tries.transform is not None:
        return None
    slots_bytes = (MIN_SLOTS + 1) * best.point.batch_size * (math.prod(shape) + _LABEL_BYTES)
    least_bytes: int = slots_bytes + best.point.num_workers * WORKER_BYTES
    return -(-least_bytes // MIB) * MIB
