"""Warnings that explain what slows a loader down, with numbers and remedies. Each is shown once."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mpload.errors import warn
from mpload.judgement.facts import Alternative, Change, Facts, Stage
from mpload.judgement.remedies import remedies
from mpload.judgement.verdict import judge
from mpload.memory.contention import PressureReading, contention_between, read_pressure, shares_of_span
from mpload.memory.core_times import CoreTimes, read_core_times_of
from mpload.memory.machine import refaulted_bytes
from mpload.telemetry.stats import LoaderStats, running_facts
from mpload.units import format_seconds

__all__ = ["ADVICE_SECONDS", "Adviser", "advise"]

ADVICE_SECONDS = 20.0
"""How often a loader looks for advice."""

_WAITS = 0.1
_MIN_BATCHES = 20
_COMPUTES = 0.7
_LARGE_IMAGES = 6.0
_NUM_REMEDIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What was counted until one moment."""

    stats: LoaderStats
    workers: Mapping[int, CoreTimes]
    pressure: PressureReading
    refaulted_bytes: int


def advise(facts: Facts, *, image_excess: Callable[[], float] = lambda: 1.0) -> dict[str, str]:
    """Return advice about a span of a run: a message per subject.

    Args:
        facts: the statistics of the span.
        image_excess: returns the ratio of stored to decoded pixels. Called only if decoding is the bottleneck.
    """
    found: dict[str, str] = {}
    running, job, cores = facts.running, facts.job, facts.environment.usable_cores
    assert running is not None
    assert cores is not None
    if (text := _surplus(facts)) is not None:
        found["workers"] = text
    if running.waiting_share <= _WAITS:
        return found
    verdict = judge(facts)
    is_computing = facts.decode.cpu_seconds > facts.decode.wait_seconds
    if verdict.stage == Stage.DECODE and is_computing and (excess := image_excess()) > _LARGE_IMAGES:
        smaller = Alternative(change=Change.RESIZED, decode=facts.decode.times(1 / excess), detail="256", is_bound=True)
        facts = replace(facts, alternatives=(smaller,))
        verdict = judge(facts)
    helpful = remedies(facts, verdict)[:_NUM_REMEDIES]
    change = "; ".join(f"{remedy.text} ({remedy.gain_text})" for remedy in helpful) or verdict.next_step.rstrip(".")
    found["waits"] = (
        f"batches come too slowly: the loop waited for {running.waiting_share:.0%} of the last "
        f"{format_seconds(running.seconds)}, while {job.num_workers} workers on {cores:.3g} cores made "
        f"{running.samples_per_second:,.0f} samples/s. {verdict.headline}. {verdict.reason}. What would help: "
        f"{change}. Shown once"
    )
    return found


def _surplus(facts: Facts) -> str | None:
    """Return a message if there are more workers than cores although they compute. None if there are not."""
    num_workers, cores = facts.job.num_workers or 0, facts.environment.usable_cores or 1
    costs = (facts.storage.read, facts.decode, facts.transform, facts.transport)
    seconds, delayed = sum(cost.seconds for cost in costs), facts.environment.contention.delayed_share
    computing = sum(cost.cpu_seconds for cost in costs) / seconds * (1 - delayed) + delayed if seconds else 0.0
    if facts.job.is_auto or num_workers <= cores or computing <= _COMPUTES:
        return None
    return (
        f"{num_workers} workers share {cores:.3g} cores, and compute for {min(1.0, computing):.0%} of their time: more "
        f'than {cores:.3g} workers only use more memory. Use num_workers="auto" or {cores:.3g}'
    )


class Adviser:
    """Checks the statistics of a loader whenever it is called, and warns once per subject."""

    def __init__(self, *, is_auto: bool, num_cores: int, image_excess: Callable[[], float]) -> None:
        """Advise one loader.

        Args:
            is_auto: whether the loader chooses the number of workers.
            num_cores: number of cores available to the workers.
            image_excess: returns the ratio of stored to decoded pixels.
        """
        self._is_auto = is_auto
        self._num_cores = num_cores
        self._image_excess = image_excess
        self._last: _Reading | None = None
        self._said: set[str] = set()

    def __call__(self, stats: LoaderStats) -> None:
        """Check the span since the last call."""
        workers = read_core_times_of(worker.pid for worker in stats.workers)
        own = os.times()
        own_seconds = own.user + own.system + sum(times.running_seconds for times in workers.values())
        now = _Reading(
            stats=stats,
            workers=workers,
            pressure=read_pressure(own_seconds=own_seconds),
            refaulted_bytes=refaulted_bytes(),
        )
        last, self._last = self._last, now
        if last is None:
            return
        span = stats.since(last.stats)
        if span.num_batches < _MIN_BATCHES or not span.num_workers:
            return
        facts = running_facts(
            span,
            shares=shares_of_span(last.workers, now.workers, begun_seconds=last.pressure.at_seconds).values(),
            num_cores=self._num_cores,
            is_auto=self._is_auto,
            contention=contention_between(last.pressure, now.pressure, num_cores=self._num_cores),
            refaulted_bytes=now.refaulted_bytes - last.refaulted_bytes,
        )
        for subject, text in advise(facts, image_excess=self._image_excess).items():
            if subject not in self._said:
                self._said.add(subject)
                warn(text)
