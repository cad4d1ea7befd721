"""A loader without processes: what a `Window` of it would say, for any work, consumer and number of workers.

A worker alternates between waiting and computing. Its rate is limited by its own time per sample, by the cores, by the
storage and by the consumer, whichever is slowest. Noise multiplies what the workers achieve.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mpload.loader.scaling import Bounds, ScalerState, Window, decide

__all__ = ["SimulatedLoader", "Work", "best_rate", "noisy"]

WINDOW_SECONDS = 0.6
SETTLE_SECONDS = 0.3
"""Time after each change of the number of workers in which nothing is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a sample costs, and what else limits the rate."""

    wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    storage_samples_per_second: float = 1e9
    consumer_samples_per_second: float = 1e9
    neighbours: float = 0.0
    """Cores that other processes take."""
    is_slowed_by_competition: bool = False
    """Whether more requests at once make the storage slower, as on a disk with a moving head."""
    slots_for_workers: int = 1 << 20
    """Number of workers for which there are chunks."""

    def rate(self, num_workers: int, *, num_cores: int) -> float:
        """Return the samples per second that so many workers make, if the consumer takes them all."""
        able = min(num_workers, self.slots_for_workers)
        alone = able / (self.wait_seconds + self.compute_seconds)
        cores = max(0.25, num_cores - self.neighbours)
        by_cores = cores / self.compute_seconds if self.compute_seconds else 1e9
        storage = self.storage_samples_per_second
        if self.is_slowed_by_competition:
            storage *= min(1.0, 8 / able)
        return min(alone, by_cores, storage)

    def slowed(self, factor: float) -> "Work":
        """Return the same work on a day when everything but the consumer is `factor` times as fast."""
        return replace(
            self,
            wait_seconds=self.wait_seconds / factor,
            compute_seconds=self.compute_seconds / factor,
            storage_samples_per_second=self.storage_samples_per_second * factor,
        )

    def window(self, num_workers: int, *, num_cores: int) -> Window:
        """Return the measurements of one window."""
        made = self.rate(num_workers, num_cores=num_cores)
        rate = min(made, self.consumer_samples_per_second)
        able = min(num_workers, self.slots_for_workers) * rate / made
        running = rate * self.compute_seconds
        # What keeps workers from being faster: a queue for the cores, or one in the storage, where they sleep.
        delayed = 0.0
        if self.compute_seconds and made >= 0.999 * max(0.25, num_cores - self.neighbours) / self.compute_seconds:
            delayed = max(0.0, able - running - rate * self.wait_seconds)
        return Window(
            seconds=WINDOW_SECONDS,
            num_samples=round(rate * WINDOW_SECONDS),
            wait_seconds=max(0.0, 1 - rate / self.consumer_samples_per_second) * WINDOW_SECONDS,
            running=running,
            delayed=delayed,
            idle=num_workers - able,
            occupied=able,
        )


def best_rate(work: Work, bounds: Bounds) -> float:
    """Return the rate of the best fixed number of workers."""
    rates = [work.rate(number, num_cores=bounds.num_cores) for number in range(1, bounds.max_workers + 1)]
    return min(max(rates), work.consumer_samples_per_second)


@dataclass(slots=True, kw_only=True)
class SimulatedLoader:
    """Lets `decide` run a work for a while, and records what it did."""

    bounds: Bounds
    noise: Callable[[], float] = lambda: 1.0
    state: ScalerState = field(init=False)
    seconds: float = 0.0
    history: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the start, and the number of workers, after each window."""

    def __post_init__(self) -> None:
        self.state = ScalerState(num_workers=min(self.bounds.num_cores, self.bounds.max_workers))

    def run(self, work: Work, *, seconds: float) -> "SimulatedLoader":
        """Run a work for so long, and return this loader."""
        end = self.seconds + seconds
        while self.seconds < end:
            number = self.state.num_workers
            window = work.slowed(self.noise()).window(number, num_cores=self.bounds.num_cores)
            self.state = decide(window, self.state, self.bounds)
            self.seconds += WINDOW_SECONDS + SETTLE_SECONDS * (self.state.num_workers != number)
            self.history.append((self.seconds, self.state.num_workers))
        return self

    def seconds_to(self, work: Work, *, share: float, since: float = 0.0) -> float:
        """Return the time after `since` when the number of workers was first good for `share` of the best rate."""
        wanted = share * best_rate(work, self.bounds)
        for seconds, number in self.history:
            rate = min(work.rate(number, num_cores=self.bounds.num_cores), work.consumer_samples_per_second)
            if seconds > since and rate >= wanted:
                return seconds - since
        return float("inf")

    def last(self, num_windows: int) -> list[int]:
        """Return the number of workers after each of the latest windows."""
        return [number for _, number in self.history[-num_windows:]]

    def num_changes(self, *, since: float = 0.0) -> int:
        """Return how often the number of workers changed after `since`."""
        numbers = [number for seconds, number in self.history if seconds > since]
        return sum(a != b for a, b in itertools.pairwise(numbers))


def noisy(seed: int, *, share: float = 0.2) -> Callable[[], float]:
    """Return a source of noise with a standard deviation of `share`, in which one window in 30 is a third as fast."""
    random_numbers = random.Random(seed)

    def draw() -> float:
        if random_numbers.random() < 1 / 30:
            return 1 / 3
        return max(0.2, random_numbers.gauss(1.0, share))

    return draw
