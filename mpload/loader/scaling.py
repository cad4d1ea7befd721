"""Decides how many workers a loader has: the facts of a span of time in, a number of workers out.

If workers compute, more workers than cores gain nothing. If they wait for storage, their cores are idle, and more
workers help until something else becomes the limit. The kernel tells the two cases apart. It counts how long each
worker was on a core or waited for one (`memory.core_times`); a worker that was busy in the rest of the time waited.

The number doubles while the consumer waits and the workers wait too, but stays below the number that fills the cores.
Each step is tried: it is kept if the rate rises, and taken back if several windows show that it does not. A single
noisy window decides nothing. The number falls if workers compete for cores, or have too little to do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from statistics import median

__all__ = ["Bounds", "ScalerState", "Trial", "Verdict", "Window", "decide", "judge", "suited_to_cores"]

_WAITS = 0.1
"""Fraction of the time that the consumer must wait before more workers are considered."""
_NO_WAIT = 0.05
"""If the consumer waits less than this, it is the limit."""
_IDLE = 0.25
"""If more than this fraction of the workers have nothing to do, more workers cannot help."""
_COMPUTES = 0.9
"""Workers that compute for more than this fraction of their time gain nothing from more workers than cores."""
_LEAST_COMPUTING = 1e-4
"""Less than this cannot be measured in half a second."""
_SURPLUS = 1.2
"""Workers wanted, as a multiple of the number that would keep all cores busy if they took turns perfectly."""
_TOO_MANY = 1.5
"""The number falls only if it exceeds the number wanted by this factor, so that it does not swing."""
_WORTH = 0.15
"""Least gain of a step, as a fraction of the gain if nothing else were the limit."""
_NOISE = 0.2
"""Standard deviation of the rate of a window, as a fraction of the rate."""
_KEPT_WINDOWS, _FAILED_WINDOWS, _MOST_WINDOWS = 3, 4, 8
"""Least number of windows to keep a step that seems to help, and to take one back. After eight it must have helped."""
_CALLS = 2
"""Consecutive windows that must call for more workers before the first step."""
_COMPETING_WINDOWS = 2
_SPARE_WINDOWS, _MOST_SPARE_WINDOWS = 6, 96
_REST_WINDOWS, _MOST_REST_WINDOWS = 10, 640
_CHANGED, _LATEST = 2.0, 3
"""If the rate changes by this factor in so many windows, the work has changed: earlier ones say nothing about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a decision."""

    num_cores: int
    """Cores available to the workers."""
    max_workers: int
    """The most workers that memory, slots and the system allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measurements over a span of about half a second or more, with a constant number of workers."""

    seconds: float
    num_samples: int
    """Samples that the workers made."""
    wait_seconds: float
    """Time that the consumer waited for batches."""
    running: float
    """Mean number of workers on a core."""
    delayed: float
    """Mean number of workers that could have run, but had no core."""
    idle: float
    """Mean number of workers that had nothing to do, or waited for each other."""
    occupied: float
    """Mean number of workers with something to do, by their own clocks. Chunks count when they are finished."""

    @property
    def samples_per_second(self) -> float:
        """Samples made per second."""
        return self.num_samples / self.seconds

    @property
    def wait_fraction(self) -> float:
        """Fraction of the time that the consumer waited."""
        return self.wait_seconds / self.seconds


class Verdict(Enum):
    """What the rates before and after a step say about it."""

    HELPS = auto()
    UNKNOWN = auto()
    FAILS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A step up that has yet to show that it helps."""

    num_before: int
    """Number of workers before the step."""
    rates_before: tuple[float, ...]
    hoped: float
    """Factor by which the rate would rise if only the number of workers were the limit."""
    is_first: bool
    """Whether no step has failed yet for this work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerState:
    """The state that one decision passes on to the next."""

    num_workers: int
    rates: tuple[float, ...] = ()
    """Samples per second in the latest windows that called for more workers, the newest last."""
    trial: Trial | None = None
    num_rest: int = 0
    """Windows left in which nothing is tried, after a step that did not help."""
    rest_windows: int = _REST_WINDOWS
    """Length of the next such rest. It doubles each time."""
    num_competing: int = 0
    """Consecutive windows in which more workers than useful competed for cores."""
    occupied: tuple[float, ...] = ()
    """`Window.occupied` of the latest consecutive windows in which workers had too little to do."""
    spare_windows: int = _SPARE_WINDOWS
    """Number of such windows before workers are stopped. It doubles if that proves too early."""
    has_stopped_some: bool = False
    """Whether workers with too little to do were stopped, and none was added since."""


def suited_to_cores(window: Window, *, num_workers: int, num_cores: int) -> int:
    """Return how many workers keep all cores busy: one per core if they compute, and more if they wait."""
    undelayed = num_workers - window.idle - window.delayed
    if undelayed <= 0:
        return num_cores
    computing = max(window.running / undelayed, _LEAST_COMPUTING)
    return num_cores if computing > _COMPUTES else math.ceil(_SURPLUS * num_cores / computing)


def judge(trial: Trial, rates: Sequence[float]) -> Verdict:
    """Return whether a step has helped, given the rates of the windows since then.

    Medians are compared, so that a single bad window does not count. The difference must exceed what noise explains,
    but a first step that seems to help after three windows is kept: that costs less than to wait.
    """
    gain = median(rates) / max(median(trial.rates_before), 1e-9)
    error = gain * _NOISE * math.sqrt(1 / len(trial.rates_before) + 1 / len(rates))
    least = 1 + _WORTH * (trial.hoped - 1)
    seems_to_help = trial.is_first and len(rates) >= _KEPT_WINDOWS and gain > least
    if gain - error > least or seems_to_help:
        return Verdict.HELPS
    fails = len(rates) >= _FAILED_WINDOWS and gain + error < least
    return Verdict.FAILS if fails or len(rates) >= _MOST_WINDOWS else Verdict.UNKNOWN


def decide(window: Window, state: ScalerState, bounds: Bounds) -> ScalerState:
    """Return the number of workers from now on, in [1, `bounds.max_workers`], and what the next decision needs."""
    fewer = _with_fewer(window, state, bounds)
    if fewer.num_workers < state.num_workers:
        return fewer
    state = fewer
    suited = suited_to_cores(window, num_workers=state.num_workers, num_cores=bounds.num_cores)
    if suited <= bounds.num_cores:  # the work computes: what was tried before was other work
        state = replace(state, num_rest=0, rest_windows=_REST_WINDOWS)
    goal = _goal(window, state.num_workers, min(suited, bounds.max_workers))
    if state.trial is None and goal <= state.num_workers:
        return replace(state, rates=())
    state = replace(state, rates=(*state.rates, window.samples_per_second)[-_MOST_WINDOWS:])
    if window.wait_fraction <= _WAITS:
        return replace(state, trial=None)
    if state.trial is not None:
        verdict = judge(state.trial, state.rates)
        if verdict is Verdict.FAILS:
            return _taken_back(state, state.trial)
        if verdict is Verdict.UNKNOWN:
            return state
        state = replace(state, trial=None, rest_windows=_REST_WINDOWS)
    elif len(state.rates) < _CALLS:
        return state
    if _has_changed(state.rates):
        state = replace(state, rates=state.rates[-_LATEST:], num_rest=0, rest_windows=_REST_WINDOWS)
    if state.num_rest:
        return replace(state, num_rest=state.num_rest - 1)
    return state if goal <= state.num_workers else _raised(window, state, goal)


def _goal(window: Window, num_workers: int, most: int) -> int:
    """Return the number of workers to try, at most twice as many and at most `most`, or `num_workers` for no more."""
    if window.wait_fraction <= _WAITS or window.idle > _IDLE * num_workers or not window.num_samples:
        return num_workers
    needed = math.ceil(_SURPLUS * num_workers / max(1 - window.wait_fraction, 1e-3))
    return max(num_workers, min(2 * num_workers, needed, most))


def _raised(window: Window, state: ScalerState, goal: int) -> ScalerState:
    hoped = min(goal / state.num_workers, 1 / max(1 - window.wait_fraction, 1e-3))
    is_first = state.rest_windows == _REST_WINDOWS
    trial = Trial(num_before=state.num_workers, rates_before=state.rates, hoped=hoped, is_first=is_first)
    factor = 2 if state.has_stopped_some else 1
    spare_windows = min(factor * state.spare_windows, _MOST_SPARE_WINDOWS)
    return replace(_resized(state, goal), trial=trial, spare_windows=spare_windows)


def _taken_back(state: ScalerState, trial: Trial) -> ScalerState:
    longer = min(2 * state.rest_windows, _MOST_REST_WINDOWS)
    back = _resized(state, trial.num_before)
    return replace(back, rates=trial.rates_before, num_rest=state.rest_windows, rest_windows=longer)


def _with_fewer(window: Window, state: ScalerState, bounds: Bounds) -> ScalerState:
    """Return a state with fewer workers if that is certain to lose nothing, or one that is a window closer to that."""
    number, num_cores = state.num_workers, bounds.num_cores
    if number > bounds.max_workers:
        return _resized(state, bounds.max_workers)
    suited = suited_to_cores(window, num_workers=number, num_cores=num_cores)
    if window.running + window.delayed > num_cores and number > _TOO_MANY * suited:
        if state.num_competing + 1 >= _COMPETING_WINDOWS:
            return _resized(state, suited)
        return replace(state, num_competing=state.num_competing + 1, occupied=())
    if window.wait_fraction >= _NO_WAIT and window.idle <= _IDLE * number:
        return replace(state, num_competing=0, occupied=())
    occupied = (*state.occupied, window.occupied)[-state.spare_windows :]
    enough = max(num_cores, math.ceil(_TOO_MANY * sum(occupied) / len(occupied)))
    if len(occupied) == state.spare_windows and number > _TOO_MANY * enough:
        return replace(_resized(state, enough), has_stopped_some=True)
    return replace(state, num_competing=0, occupied=occupied)


def _resized(state: ScalerState, num_workers: int) -> ScalerState:
    """Return a state with another number of workers, about which nothing is known yet."""
    return ScalerState(num_workers=num_workers, rest_windows=state.rest_windows, spare_windows=state.spare_windows)


def _has_changed(rates: Sequence[float]) -> bool:
    """Return whether the latest rates all differ from the usual one by the same large factor."""
    earlier, latest = rates[:-_LATEST], rates[-_LATEST:]
    if len(earlier) < _LATEST:
        return False
    usual = median(earlier)
    return min(latest) > _CHANGED * usual or max(latest) * _CHANGED < usual
