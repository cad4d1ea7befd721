"""The examination: measures, judges, and tries the first remedy if it is a setting of the loader."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpload.errors import ArgumentError
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.tools.doctor.empty import EmptyDecoder, write_empty_index
from mpload.tools.doctor.environment import read_environment
from mpload.tools.doctor.facts import Cost, Findings, Job, StorageSpeed, Trial
from mpload.tools.doctor.lookup import lookup_cost
from mpload.tools.doctor.model import predict
from mpload.tools.doctor.remedies import remedies
from mpload.tools.doctor.samples import measure_samples
from mpload.tools.doctor.storage import Files, measure_rates, packed_rate, size_classes
from mpload.tools.doctor.verdict import Verdict, judge
from mpload.tools.remedy import Remedy
from mpload.tools.trials import device_copy, run_loader
from mpload.units import format_counted

__all__ = ["Diagnosis", "examine"]

_SAMPLES_SHARE, _STORAGE_SHARE, _TRIAL_SHARE = 0.25, 0.25, 0.06
_LARGER_BATCH = 64
_MIN_BATCHES = 4
_ENOUGH_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The measurements, what limits the job, and what would help."""

    findings: Findings
    verdict: Verdict
    remedies: tuple[Remedy, ...]


def examine(
    index: Index,
    *,
    decode: Callable[..., Any],
    transform: Callable[..., Any] | None,
    job: Job,
    seconds: float = 30.0,
    seed: int = 0,
    announce: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Find out what limits a job, in about `seconds` plus the time that loaders take to start.

    Reads a few hundred random samples of the index, runs `decode` and `transform` in this process and in workers,
    evicts the files it has read from the page cache, and writes only to a temporary folder.

    Args:
        index: The data.
        decode: As in `MPDataset`.
        transform: As in `MPDataset`.
        job: The job to be examined.
        seconds: The duration of the measurements.
        seed: The seed of the random choice of samples.
        announce: Called with the name of each measurement before it starts.

    Raises:
        ArgumentError: `seconds` is not positive.
        SampleError: None of the samples can be made.
    """
    if not 0 < seconds < math.inf:
        raise ArgumentError(f"seconds must be positive, got {seconds}")
    files = Files(index)
    environment = read_environment(index.root)
    announce("samples: decode and transform")
    costs = measure_samples(
        index, files, decode=decode, transform=transform, seconds=_SAMPLES_SHARE * seconds, seed=seed
    )
    announce("storage: cold and warm")
    storage = StorageSpeed(
        rates=measure_rates(index, files, seconds=_STORAGE_SHARE * seconds, seed=seed + 1),
        read=costs.read,
        size_classes=size_classes(costs.read_times),
        reads_per_worker=files.reads_per_worker,
        packed_samples_per_second=packed_rate(costs.read_times),
    )
    findings = Findings(
        job=job,
        samples=costs.samples,
        storage=storage,
        environment=environment,
        decode=costs.decode,
        transform=costs.transform,
        lookup=lookup_cost(index, memory_bytes=environment.memory_free_bytes, seed=seed + 2),
        resized_short=costs.resized_short,
        resized_decode=costs.resized_decode,
        resized_bytes=costs.resized_bytes,
        progressive=costs.progressive,
        index_path=str(index.path),
    )
    if (copied := device_copy()) is not None:
        name, bytes_per_second = copied
        environment = replace(environment, device=name, device_bytes_per_second=bytes_per_second)
        findings = replace(findings, environment=environment)
    with tempfile.TemporaryDirectory(prefix="mpload-doctor-") as name:
        tries = _Tries(
            index=index, decode=decode, transform=transform, seconds=_TRIAL_SHARE * seconds, folder=Path(name)
        )
        findings = tries.run(findings, announce)
    verdict = judge(findings)
    return Diagnosis(findings=findings, verdict=verdict, remedies=tuple(remedies(findings, verdict)))


@dataclass(kw_only=True)
class _Tries:
    """Runs trials of the loader."""

    index: Index
    decode: Callable[..., Any]
    transform: Callable[..., Any] | None
    seconds: float
    folder: Path

    def run(self, findings: Findings, announce: Callable[[str], None]) -> Findings:
        """Try the transport alone, then the job as it is, then the job with its first remedy."""
        if not judge(findings).samples_per_second:  # the job cannot start
            return findings
        job = findings.job
        announce("transport")
        empty = open_index(write_empty_index(self.folder))
        for batch_size in sorted({job.batch_size, max(job.batch_size, _LARGER_BATCH)}):
            trial = self._try(findings, batch_size=batch_size, num_workers=job.num_workers, empty=empty)
            findings = _with(findings, trial)
            if trial.is_short_of_files:
                return findings
        announce(f"loader: {format_counted(job.num_workers, 'worker')}, batches of {job.batch_size}")
        findings = self._try_job(findings, job)
        verdict = judge(findings)
        if not verdict.samples_per_second:
            return findings
        findings = _as_in_workers(findings)
        for remedy in remedies(findings, judge(findings))[:1]:
            changed = replace(
                job,
                num_workers=remedy.num_workers or job.num_workers,
                batch_size=remedy.batch_size or job.batch_size,
            )
            if changed != job:
                announce(f"loader: {format_counted(changed.num_workers, 'worker')}, batches of {changed.batch_size}")
                # If there is time, alternate the two: the load by other processes varies over time.
                again = (job, changed, job, changed) if self.seconds >= _ENOUGH_SECONDS else ()
                for each in (changed, *again):
                    findings = self._try_job(findings, each)
        return findings

    def _try_job(self, findings: Findings, job: Job) -> Findings:
        """Try a job, unless too few batches are expected in the time of a trial."""
        expected_rate = predict(replace(findings, job=job)).total / job.num_gpus
        if expected_rate * self.seconds < _MIN_BATCHES * job.batch_size:
            return findings
        return _with(findings, self._try(findings, batch_size=job.batch_size, num_workers=job.num_workers))

    def _try(self, findings: Findings, *, batch_size: int, num_workers: int, empty: Index | None = None) -> Trial:
        shape = getattr(self.decode, "output_shape", None) or (round(findings.samples.output_bytes),)
        dtype = getattr(self.decode, "output_dtype", "uint8")
        trial = run_loader(
            self.index if empty is None else empty,
            decode=self.decode if empty is None else EmptyDecoder(output_shape=shape, output_dtype=dtype),
            transform=self.transform if empty is None else None,
            num_workers=num_workers,
            batch_size=batch_size,
            seconds=self.seconds,
            report=self.folder / "errors.jsonl",
        )
        return Trial(
            num_workers=num_workers,
            batch_size=batch_size,
            samples_per_second=trial.samples_per_second,
            error=trial.error,
            decode_seconds=trial.decode_seconds,
            transform_seconds=trial.transform_seconds,
            is_short_of_files=trial.is_short_of_files,
            is_empty=empty is not None,
        )


def _as_in_workers(findings: Findings) -> Findings:
    """Replace the costs of decode and transform by those in workers, which compete for memory bandwidth.

    If there are more workers than cores, their times include waiting for a core, and nothing is replaced.
    """
    job = findings.job
    tried = findings.trial(job.num_workers, job.batch_size)
    if tried is None or job.num_workers > findings.environment.usable_cores:
        return findings
    decode_factor = _factor(findings.decode, tried.decode_seconds)
    resized = findings.resized_decode
    return replace(
        findings,
        decode=_scaled(findings.decode, decode_factor),
        resized_decode=None if resized is None else _scaled(resized, decode_factor),
        transform=_scaled(findings.transform, _factor(findings.transform, tried.transform_seconds)),
    )


def _factor(cost: Cost, seconds: float) -> float:
    return seconds / cost.seconds if seconds and cost.seconds else 1.0


def _scaled(cost: Cost, factor: float) -> Cost:
    return Cost(cpu_seconds=factor * cost.cpu_seconds, wait_seconds=factor * cost.wait_seconds)


def _with(findings: Findings, trial: Trial) -> Findings:
    return replace(findings, trials=(*findings.trials, trial))
