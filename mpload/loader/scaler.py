"""Measures how a loader's workers spend their time, from which `scaling` decides how many there should be."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mpload.loader.scaling import Bounds, ScalerState, Window, decide
from mpload.memory.core_times import CoreTimes, core_shares, read_core_times_of
from mpload.telemetry.counting import Waited
from mpload.transport.progress import Progress

__all__ = ["ScaledPool", "Scaler"]

_WINDOW_SECONDS = 0.6
_WINDOW_SAMPLES = 3
"""Samples of each worker in a window; with fewer, the rate would depend on who finished just in time."""
_MAX_WINDOW_SECONDS = 3.0
_PAUSED = 0.1
"""A window is dropped if iterations were paused for this fraction of it."""


class ScaledPool(Protocol):
    """What a `Scaler` needs of a worker pool."""

    @property
    def num_workers(self) -> int:
        """Wanted number of workers."""

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids by name. The first process is the one that the others were forked from."""

    def progress(self) -> Progress:
        """Return how far the workers have come."""


@dataclass(slots=True, kw_only=True)
class _Begun:
    """A window that has begun."""

    at_seconds: float
    waited: Waited
    progress: Progress
    core_times: dict[int, CoreTimes]
    num_idle: list[int]
    """At each check."""


class Scaler:
    """Measures the workers of a pool when polled. A measurement takes about 25 microseconds per worker."""

    def __init__(
        self,
        pool: ScaledPool,
        *,
        num_cores: int,
        max_workers: int,
        read_times: Callable[[Iterable[int]], dict[int, CoreTimes]] = read_core_times_of,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start from the pool's current number of workers.

        Args:
            pool: the pool.
            num_cores: cores available to the workers.
            max_workers: upper limit for the number of workers.
            read_times: returns what the kernel says about processes, by process id.
            monotonic: the clock.
        """
        self._read_times = read_times
        self._pool = pool
        self._num_cores = num_cores
        self._max_workers = max_workers
        self._monotonic = monotonic
        self._state = ScalerState(num_workers=pool.num_workers)
        self._begun: _Begun | None = None

    def check(self, waited: Waited, *, affordable: Callable[[], int]) -> int:
        """Take a measurement, and return the number of workers that the pool should have from now on.

        Call it several times a second while batches are requested. The caller then sets the number.

        Args:
            waited: how long the consumer has waited.
            affordable: returns the most workers for which there is memory now. Called only before workers are added.
        """
        now = self._monotonic()
        progress = self._pool.progress()
        if self._pool.num_workers != self._state.num_workers:  # the system refused to start more
            self._max_workers = self._pool.num_workers
            self._state = ScalerState(num_workers=self._pool.num_workers)
            self._begun = None
        if self._begun is None or self._is_disturbed(self._begun, progress, waited, now):
            self._begin(progress, waited, now)
            return self._state.num_workers
        self._begun.num_idle.append(progress.num_idle)
        if self._is_over(self._begun, progress, now):
            core_times = self._read_times(self._worker_pids())
            window = self._window(self._begun, progress, waited, core_times)
            self._begin(progress, waited, now, core_times)
            if window is not None:
                self._decide(window, affordable)
        return self._state.num_workers

    def _begin(
        self, progress: Progress, waited: Waited, now: float, core_times: dict[int, CoreTimes] | None = None
    ) -> None:  # fmt: skip
        self._begun = None
        if not progress.num_opening and len(pids := self._worker_pids()) == self._state.num_workers:
            self._begun = _Begun(
                at_seconds=now,
                waited=waited,
                progress=progress,
                core_times=core_times or self._read_times(pids),
                num_idle=[],
            )

    def _worker_pids(self) -> list[int]:
        return [*self._pool.pids.values()][1:]

    @staticmethod
    def _is_disturbed(begun: _Begun, progress: Progress, waited: Waited, now: float) -> bool:
        """Return whether a window says nothing: a worker was replaced, or iterations were paused."""
        seconds = now - begun.at_seconds
        return (
            progress.num_opening > 0 or waited.elapsed_seconds - begun.waited.elapsed_seconds < (1 - _PAUSED) * seconds
        )

    def _is_over(self, begun: _Begun, progress: Progress, now: float) -> bool:
        seconds = now - begun.at_seconds
        num_samples = progress.num_samples - begun.progress.num_samples
        num_wanted = _WINDOW_SAMPLES * self._state.num_workers
        return seconds >= (_WINDOW_SECONDS if num_samples >= num_wanted else _MAX_WINDOW_SECONDS)

    def _window(
        self, begun: _Begun, progress: Progress, waited: Waited, core_times: dict[int, CoreTimes]
    ) -> Window | None:
        """Return the measurements, or None if the kernel does not tell anything about the workers."""
        seconds = waited.elapsed_seconds - begun.waited.elapsed_seconds
        shares = [*core_shares(begun.core_times, core_times).values()]
        if not shares:
            return None
        per_share = self._state.num_workers / len(shares)
        return Window(
            seconds=seconds,
            num_samples=max(0, progress.num_samples - begun.progress.num_samples),
            wait_seconds=waited.wait_seconds - begun.waited.wait_seconds,
            running=per_share * sum(share.running for share in shares),
            delayed=per_share * sum(share.delayed for share in shares),
            idle=min(self._state.num_workers, sum(begun.num_idle) / len(begun.num_idle)),
            occupied=(progress.occupied_seconds - begun.progress.occupied_seconds) / seconds,
        )

    def _decide(self, window: Window, affordable: Callable[[], int]) -> None:
        before = self._state.num_workers
        state = decide(window, self._state, Bounds(num_cores=self._num_cores, max_workers=self._max_workers))
        if state.num_workers > before and (most := max(before, affordable())) < state.num_workers:
            state = decide(window, self._state, Bounds(num_cores=self._num_cores, max_workers=most))
        self._state = state
        if state.num_workers != before:
            self._begun = None
