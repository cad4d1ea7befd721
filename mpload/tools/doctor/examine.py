"""The examination: measures, judges, and tries the first remedies that are settings of the loader."""

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.judgement.facts import Alternative, Cost, Facts, Job, Trial
from mpload.judgement.model import predict
from mpload.judgement.remedies import Remedy, remedies
from mpload.judgement.verdict import Verdict, judge
from mpload.memory.contention import contention_between, read_pressure
from mpload.tools.doctor.environment import read_environment
from mpload.tools.doctor.subject import Subject
from mpload.tools.trials import device_copy, run_trial
from mpload.units import format_counted

__all__ = ["Diagnosis", "diagnose", "examine"]

_MEASURED_SHARE, _TRIAL_SHARE = 0.5, 0.06
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
    num_tries: int = 1,
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
        num_tries: The number of remedies to try, of those that are settings of the loader.
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
    if (copied := device_copy()) is not None:
        name, bytes_per_second = copied
        environment = replace(environment, device=name, device_bytes_per_second=bytes_per_second)
    facts = replace(facts, environment=environment)
    with tempfile.TemporaryDirectory(prefix="mpload-doctor-") as name:
        tries = _Tries(subject=subject, seconds=_TRIAL_SHARE * seconds, folder=Path(name), announce=announce)
        return diagnose(tries.run(facts, num_tries=num_tries))


@dataclass(kw_only=True)
class _Tries:
    """Runs trials of the loader."""

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
        for batch_size in sorted({job.batch_size, max(job.batch_size, _LARGER_BATCH)}):
            trial = self._try(facts, replace(job, batch_size=batch_size), is_empty=True)
            facts = _with(facts, trial)
            if trial.is_short_of_files:
                return facts
        facts = _as_in_workers(self._try_job(facts, job, observes=True))
        verdict = judge(facts)
        if not verdict.samples_per_second:
            return facts
        settings = [each for each in remedies(facts, verdict) if each.num_workers or each.batch_size]
        first = (
            settings[:num_tries]
            if num_tries > 1
            else [each for each in remedies(facts, verdict)[:1] if each in settings]
        )
        for remedy in first:
            changed = replace(
                job, num_workers=remedy.num_workers or job.num_workers, batch_size=remedy.batch_size or job.batch_size
            )
            # If there is time, alternate the two: the load by other processes varies over time.
            again = (job, changed, job, changed) if self.seconds >= _ENOUGH_SECONDS else ()
            for each in (changed, *again):
                facts = self._try_job(facts, each)
        return facts

    def _try_job(self, facts: Facts, job: Job, *, observes: bool = False) -> Facts:
        """Try a job, unless too few batches are expected in the time of a trial. See what else uses the machine."""
        expected_rate = predict(replace(facts, job=job)).total / job.num_gpus
        if expected_rate * self.seconds < _MIN_BATCHES * job.batch_size:
            return facts
        self.announce(f"loader: {format_counted(job.num_workers or 1, 'worker')}, batches of {job.batch_size:.0f}")
        before = read_pressure(own_seconds=sum(os.times()[:4]))
        facts = _with(facts, self._try(facts, job))
        if not observes:
            return facts
        found = contention_between(
            before, read_pressure(own_seconds=sum(os.times()[:4])), num_cores=facts.environment.usable_cores or 1
        )
        return replace(facts, environment=replace(facts.environment, contention=found))

    def _try(self, facts: Facts, job: Job, *, is_empty: bool = False) -> Trial:
        subject = self.subject
        trial = run_trial(
            lambda: (
                subject.empty_loader(facts, job, folder=self.folder)
                if is_empty
                else subject.loader(job, folder=self.folder)
            ),
            seconds=self.seconds,
        )
        return Trial(
            num_workers=job.num_workers or 1,
            batch_size=int(job.batch_size),
            samples_per_second=trial.samples_per_second,
            error=trial.error,
            decode_seconds=trial.decode_seconds,
            transform_seconds=trial.transform_seconds,
            busy_share=trial.busy_share,
            cpu_seconds=trial.cpu_seconds,
            is_short_of_files=trial.is_short_of_files,
            is_empty=is_empty,
        )


def _as_in_workers(facts: Facts) -> Facts:
    """Replace the costs of decode and transform by those in workers, which compete for memory bandwidth.

    If there are more workers than free cores, their times include waiting for a core, and nothing is replaced.
    """
    job, environment = facts.job, facts.environment
    tried = facts.trial(job.num_workers, job.batch_size)
    free = (environment.usable_cores or 1) - environment.contention.neighbour_cores
    if tried is None or (job.num_workers or 1) > free + 0.5:
        return facts
    decode_factor = _factor(facts.decode, tried.decode_seconds)
    alternatives: list[Alternative] = [
        replace(each, decode=each.decode.times(decode_factor)) for each in facts.alternatives
    ]
    return replace(
        facts,
        decode=facts.decode.times(decode_factor),
        alternatives=tuple(alternatives),
        transform=facts.transform.times(_factor(facts.transform, tried.transform_seconds)),
    )


def _factor(cost: Cost, seconds: float) -> float:
    return seconds / cost.seconds if seconds and cost.seconds else 1.0


def _with(facts: Facts, trial: Trial) -> Facts:
    return replace(facts, trials=(*facts.trials, trial))
