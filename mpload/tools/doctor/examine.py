"""The examination: measures, judges, and tries the first remedies."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mpload.errors import ArgumentError, MploadError
from mpload.judgement.facts import Change, Cost, Facts, Job
from mpload.judgement.model import predict, yielded_cores
from mpload.judgement.remedies import fits, remedies
from mpload.judgement.remedy import Remedy
from mpload.judgement.verdict import Verdict, judge
from mpload.loader.loader import MPLoader
from mpload.memory.contention import Contention, contention_between, read_pressure
from mpload.tools.doctor.environment import read_environment
from mpload.tools.doctor.subject import Subject
from mpload.tools.trials import device_facts, new_trial, run_trial
from mpload.units import format_counted

__all__ = ["Diagnosis", "Tries", "as_in_workers", "diagnose", "examine"]

_MEASURED_SHARE, _TRIAL_SHARE = 0.5, 0.06
_PREPARED_SHARE = 2.0
"""The time to prepare a sample for a remedy, in durations of a trial."""
_ROUNDS = 2
_PATIENCE = 2.0
"""Remedies are tried for up to this many times the time that was given: loaders start slowly on a busy machine."""
_LARGER_BATCH = 64
_MIN_BATCHES = 4
_ENOUGH_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The facts, what limits the job, and what would help."""

    findings: Facts
    verdict: Verdict
    remedies: tuple[Remedy, ...]


def diagnose(facts: Facts) -> Diagnosis:
    """Return what the facts say."""
    verdict = judge(facts)
    return Diagnosis(findings=facts, verdict=verdict, remedies=tuple(remedies(facts, verdict)))


def examine(
    subject: Subject,
    *,
    job: Job,
    seconds: float = 30.0,
    num_tries: int = 0,
    seed: int = 0,
    announce: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Find out what limits a job, in about `seconds` plus the time that loaders take to start.

    Makes a few hundred random samples in this process and in workers, evicts the files it has read from the page cache,
    and writes only to a temporary folder.

    Args:
        subject: The dataset.
        job: The job to be examined.
        seconds: The duration of the measurements.
        num_tries: The number of remedies to try, by applying them to a sample of the data. With 0, the first remedy is
            tried if that takes no files: another number, or another decoder. Tries take about `seconds` more, and up to
            twice as much on a busy machine.
        seed: The seed of the random choice of samples.
        announce: Called with the name of each measurement before it starts.

    Raises:
        ArgumentError: `seconds` is not positive.
        SampleError: None of the samples can be made.
    """
    if not 0 < seconds < math.inf:
        raise ArgumentError(f"seconds must be positive, got {seconds}")
    environment = read_environment(subject.root)
    facts = subject.measure(job, seconds=_MEASURED_SHARE * seconds, seed=seed, announce=announce)
    facts = replace(facts, environment=replace(environment, **device_facts()))
    with tempfile.TemporaryDirectory(prefix="mpload-doctor-") as name:
        tries = Tries(subject=subject, seconds=_TRIAL_SHARE * seconds, folder=Path(name), announce=announce)
        return diagnose(tries.run(facts, num_tries=num_tries))


@dataclass(kw_only=True)
class Tries:
    """Runs trials of the loader.

    Attributes:
        subject: The dataset.
        seconds: The duration of a trial.
        folder: An empty folder for samples that are prepared.
        announce: Called with the name of each trial before it starts.
    """

    subject: Subject
    seconds: float
    folder: Path
    announce: Callable[[str], None]

    def run(self, facts: Facts, *, num_tries: int) -> Facts:
        """Try the transport alone, then the job as it is, then the job with its first remedies."""
        verdict, job = judge(facts), facts.job
        if not verdict.samples_per_second and verdict.bottleneck != "broken samples":  # the job cannot start
            return facts
        self.announce("transport")
        larger = replace(job, batch_size=max(job.batch_size, _LARGER_BATCH))
        for each in (job, larger) if larger != job and fits(replace(facts, job=larger)) else (job,):
            start = partial(self.subject.empty_loader, facts, each, folder=self.folder)
            facts = self._try(facts, each, start, is_empty=True)
            if facts.trials[-1].is_short_of_files:
                return facts
        before = read_pressure(own_seconds=sum(os.times()[:4]))
        facts = self._try_job(facts, job)
        after = read_pressure(own_seconds=sum(os.times()[:4]))
        found = contention_between(before, after, num_cores=facts.environment.usable_cores or 1)
        if facts.trial() is not None:
            facts = _with_contention(facts, found)
            facts = _with_contention(facts, replace(found, yielded_cores=yielded_cores(facts)))
        facts = as_in_workers(facts)
        verdict = judge(facts)
        if not verdict.samples_per_second:
            return facts
        advice = remedies(facts, verdict)
        chosen = [each for each in advice if each.change or _takes_no_files(each)][:num_tries]
        return self.run_remedies(facts, chosen or list(filter(_takes_no_files, advice[:1])))

    def run_remedies(self, facts: Facts, chosen: Sequence[Remedy]) -> Facts:
        """Try each remedy. A trial with an error says why one could not be tried."""
        started, seconds = time.monotonic(), self.seconds / _TRIAL_SHARE
        for number, remedy in enumerate(chosen, start=1):
            try:
                if time.monotonic() > started + _PATIENCE * seconds:
                    raise MploadError("no time was left. Give more with --seconds")
                facts = self._try_remedy(facts, remedy, enough_at=started + seconds * number / len(chosen))
            except (MploadError, OSError) as error:
                why = getattr(error, "strerror", None) or str(error)
                trial = replace(new_trial(remedy.changed(facts.job), change=remedy.change), error=why)
                facts = replace(facts, trials=(*facts.trials, trial))
        return facts

    def _try_remedy(self, facts: Facts, remedy: Remedy, *, enough_at: float) -> Facts:
        """Alternate trials with and without a remedy, since the load by other processes varies. Stop at `enough_at`."""
        subject = self.subject
        if any(self._is_too_slow(facts, job) for job in (facts.job, remedy.changed(facts.job))):
            raise MploadError(
                f"{_MIN_BATCHES} batches take longer than a trial of {self.seconds:.1f} s. Give more with --seconds"
            )
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            if remedy.change is not None:
                self.announce(f"a sample, prepared for: {remedy.text}")
                subject = subject.changed(facts, remedy, seconds=_PREPARED_SHARE * self.seconds, folder=Path(folder))
            for number in range(_ROUNDS if self.seconds >= _ENOUGH_SECONDS else 1):
                if number and time.monotonic() > enough_at:
                    break
                facts = self._try_job(facts, remedy.changed(facts.job), subject, change=remedy.change)
                facts = self._try_job(facts, facts.job) if self.seconds >= _ENOUGH_SECONDS else facts
        return facts

    def _try_job(
        self, facts: Facts, job: Job, subject: Subject | None = None, *, change: Change | None = None
    ) -> Facts:
        """Try a job, unless it is too slow for a trial."""
        if self._is_too_slow(facts, job):
            return facts
        self.announce(f"loader: {format_counted(job.num_workers or 1, 'worker')}, batches of {job.batch_size:.0f}")
        start = partial((subject or self.subject).loader, job, folder=self.folder)
        return self._try(facts, job, start, change=change)

    def _is_too_slow(self, facts: Facts, job: Job) -> bool:
        """Whether too few batches are expected in the time of a trial."""
        expected_rate = predict(replace(facts, job=job)).total / job.num_gpus
        return expected_rate * self.seconds < _MIN_BATCHES * job.batch_size

    def _try(self, facts: Facts, job: Job, start: Callable[[], MPLoader[Any]], **marks: Any) -> Facts:
        trial = run_trial(start, job=job, seconds=self.seconds, **marks)
        return replace(facts, trials=(*facts.trials, trial))


def _with_contention(facts: Facts, contention: Contention) -> Facts:
    return replace(facts, environment=replace(facts.environment, contention=contention))


def _takes_no_files(remedy: Remedy) -> bool:
    return bool(remedy.num_workers or remedy.batch_size or remedy.change is Change.NATIVE)


def as_in_workers(facts: Facts) -> Facts:
    """Replace the costs of decode and transform by those in workers, which compete for memory bandwidth.

    Another decoder does not compete in the same way, so its cost stays as measured: mpload's own writes less memory. So
    does the cost of decoding without the transform: the gain of removing a transform is stated as an upper bound.
    If there are more workers than free cores, their times include waiting for a core, and nothing is replaced.
    """
    job, environment = facts.job, facts.environment
    tried = facts.trial()
    free = (environment.usable_cores or 1) - environment.contention.neighbour_cores
    if tried is None or (job.num_workers or 1) > free + 0.5:
        return facts
    decode_factor = _factor(facts.decode, tried.decode_seconds)
    return replace(
        facts,
        decode=facts.decode.times(decode_factor),
        alternatives=tuple(
            each if each.change is Change.NATIVE else replace(each, decode=each.decode.times(decode_factor))
            for each in facts.alternatives
        ),
        transform=facts.transform.times(_factor(facts.transform, tried.transform_seconds)),
    )


def _factor(cost: Cost, seconds: float) -> float:
    return seconds / cost.seconds if seconds and cost.seconds else 1.0
