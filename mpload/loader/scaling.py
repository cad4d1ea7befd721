"""Scales the number of workers: starts with one per core, and adds more only while that makes batches arrive faster.

If workers compute, more workers than cores gain nothing. If workers wait for storage, their cores are idle, and more
workers help until something else becomes the limit. The kernel tells the two cases apart: it counts how long each
worker was on a core or waited for one (`/proc/PID/schedstat`), which is compared with the time the worker was busy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mpload.telemetry.stats import LoaderStats

__all__ = ["Scaler", "ScalerState", "Window", "decide", "runnable_seconds"]

_WINDOW_SECONDS = 0.9  # statistics arrive every half second
_WINDOW_BATCHES = 4
_WAITS = 0.1
"""Fraction of the time that the consumer must wait before more workers are considered."""
_BLOCKED = 0.3
"""Minimum fraction of a worker's busy time in which it neither computes nor waits for a core."""
_WORTH = 0.3
"""Minimum gain from more workers, as a fraction of the gain if nothing else were the limit."""
_REST_WINDOWS = 20
_MAX_REST_WINDOWS = 640


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measurements over about one second."""

    num_samples: int
    seconds: float
    wait_seconds: float
    """Time that the consumer waited for batches."""
    busy_seconds: float
    """Time that the workers spent on samples, summed over all workers."""
    runnable_seconds: float
    """Time that the workers were on a core or waited for one, summed over all workers."""

    @property
    def samples_per_second(self) -> float:
        """Samples delivered to the consumer per second."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        """Fraction of the time that the consumer waited."""
        return self.wait_seconds / self.seconds if self.seconds else 0.0

    @property
    def blocked_fraction(self) -> float:
        """Fraction of the workers' busy time in which they waited for something other than a core."""
        return max(0.0, 1 - self.runnable_seconds / self.busy_seconds) if self.busy_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerState:
    """The state that one decision passes on to the next."""

    num_workers: int
    tried_from: int = 0
    """Number of workers before the increase being tried out; 0 if none is being tried."""
    rate_before: float = 0.0
    """Samples per second before that increase."""
    num_rest: int = 0
    """Windows left in which nothing is tried, after an increase that did not help."""
    rest_windows: int = _REST_WINDOWS
    """Length of the next such rest. It doubles each time."""


def decide(window: Window, state: ScalerState, *, max_workers: int) -> ScalerState:
    """Return the number of workers from now on, in [1, max_workers]: raised by half, or back if that did not help."""
    if state.tried_from:
        gain = window.samples_per_second / state.rate_before - 1
        hoped = state.num_workers / state.tried_from - 1
        if gain < _WORTH * hoped and window.wait_fraction > _WAITS:
            rest, longer = state.rest_windows, min(2 * state.rest_windows, _MAX_REST_WINDOWS)
            return ScalerState(num_workers=state.tried_from, num_rest=rest, rest_windows=longer)
        state = replace(state, tried_from=0, rate_before=0.0)
    if state.num_rest:
        return replace(state, num_rest=state.num_rest - 1)
    more = min(state.num_workers + max(1, state.num_workers // 2), max_workers)
    helps = window.wait_fraction > _WAITS and window.blocked_fraction > _BLOCKED and window.num_samples > 0
    if not helps or more <= state.num_workers:
        return state
    return replace(
        state, num_workers=more, tried_from=state.num_workers, rate_before=window.samples_per_second
    )  # fmt: skip


class Scaler:
    """Adjusts the number of workers of a loader when polled. A check costs about 20 microseconds per worker."""

    def __init__(self, resize: Callable[[int], None], *, num_workers: int, max_workers: int) -> None:
        """Start from `num_workers`.

        Args:
            resize: sets the number of workers.
            num_workers: current number of workers.
            max_workers: upper limit for the number of workers.
        """
        self._resize = resize
        self._max_workers = max_workers
        self._state = ScalerState(num_workers=num_workers)
        self._is_settling = True  # workers that have just started are not representative
        self._since: LoaderStats | None = None
        self._runnable: dict[int, float] = {}

    def check(self, stats: LoaderStats) -> None:
        """Adjust the number of workers to the time since the last check, unless that is less than a second.

        Args:
            stats: statistics of the loader so far; a copy, because it is kept until the next check.
        """
        since = self._since
        if since is not None:
            seconds = stats.elapsed_seconds - since.elapsed_seconds
            if seconds < _WINDOW_SECONDS or stats.num_batches - since.num_batches < _WINDOW_BATCHES:
                return
        runnable = {worker.pid: runnable_seconds(worker.pid) for worker in stats.workers}
        window = None if since is None else _window(since, stats, self._runnable, runnable)
        self._since, self._runnable = stats, runnable
        if window is None:
            return
        if self._is_settling:
            self._is_settling = False
            return
        before = self._state.num_workers
        self._state = decide(window, self._state, max_workers=self._max_workers)
        if self._state.num_workers != before:
            self._is_settling = True
            self._resize(self._state.num_workers)


def _window(
    since: LoaderStats, stats: LoaderStats, before: dict[int, float], runnable: dict[int, float]
) -> Window:  # fmt: skip
    return Window(
        num_samples=stats.num_samples - since.num_samples,
        seconds=stats.elapsed_seconds - since.elapsed_seconds,
        wait_seconds=stats.wait_seconds - since.wait_seconds,
        busy_seconds=(stats.timings.total_ns - since.timings.total_ns) * 1e-9,
        runnable_seconds=sum(seconds - before.get(pid, 0.0) for pid, seconds in runnable.items()),
    )


def runnable_seconds(pid: int) -> float:
    """Return how long the main thread of a process was on a core or waited for one; 0 if unknown."""
    try:
        on_core_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0.0
    return (int(on_core_ns) + int(waited_ns)) * 1e-9
