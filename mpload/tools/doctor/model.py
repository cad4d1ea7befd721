"""Predicts the rate of a job from the cost of its parts.

For each sample a worker takes CPU time, waiting time and its share of the transport. All workers share the cores. The
storage delivers a rate that depends on the number of concurrent reads, and serves only what is not in the page cache.
The slowest of these parts determines the rate of the job.
"""

import math
from dataclasses import dataclass
from enum import StrEnum, auto

from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES
from mpload.tools.doctor.facts import Findings, Temperature

__all__ = ["Limit", "Rates", "cached_share", "core_seconds_of_transport", "hit_share", "needed_bytes", "predict"]

_PAGE_CACHE_READ_SECONDS = 200e-6
"""A read that waits longer than this was not served from memory."""


class Limit(StrEnum):
    """A part of the job that may limit its rate."""

    STORAGE = auto()
    WORKERS = auto()
    CORES = auto()
    DEVICE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rate of each part, in samples per second. Infinite if a part sets no limit."""

    storage: float
    workers: float
    cores: float
    device: float

    @property
    def limit(self) -> Limit:
        """The slowest part."""
        return min(Limit, key=lambda limit: float(getattr(self, limit)))

    @property
    def total(self) -> float:
        """The rate of the slowest part."""
        return float(getattr(self, self.limit))

    def without(self, limit: Limit) -> float:
        """Return the rate that the other parts would allow."""
        return min(float(getattr(self, other)) for other in Limit if other is not limit)


def predict(findings: Findings) -> Rates:
    """Return the rate that each part allows."""
    job, cores = findings.job, findings.environment.usable_cores
    num_workers = job.num_workers * job.num_gpus
    transport_seconds = core_seconds_of_transport(findings)
    cpu_seconds = (
        findings.storage.read.cpu_seconds
        + findings.decode.cpu_seconds
        + findings.transform.cpu_seconds
        + findings.lookup.cpu_seconds
        + transport_seconds
    )
    wait_seconds = findings.decode.wait_seconds + findings.transform.wait_seconds + findings.lookup.wait_seconds
    if findings.storage.reads_per_worker == 1:
        wait_seconds += _read_wait_seconds(findings)
    device = math.inf
    if findings.environment.device_bytes_per_second is not None:
        device = findings.environment.device_bytes_per_second / findings.samples.output_bytes
    return Rates(
        storage=_storage(findings, num_workers),
        workers=_quotient(num_workers, cpu_seconds + wait_seconds),
        cores=_quotient(cores, cpu_seconds),
        device=device,
    )


def core_seconds_of_transport(findings: Findings) -> float:
    """Return the CPU time to transport one sample: a cost per sample, plus its share of the cost per batch."""
    cores = findings.environment.usable_cores
    empty = sorted(
        {
            trial.batch_size: min(trial.num_workers, cores) / trial.samples_per_second
            for trial in findings.trials
            if trial.is_empty and trial.samples_per_second
        }.items()
    )
    if not empty:
        return 0.0
    (small, small_seconds), (large, large_seconds) = empty[0], empty[-1]
    if small == large:
        return small_seconds
    batch_seconds = max(0.0, (small_seconds - large_seconds) / (1 / small - 1 / large))
    sample_seconds = max(0.0, large_seconds - batch_seconds / large)
    return sample_seconds + batch_seconds / findings.job.batch_size


def hit_share(share: float) -> float:
    """Return the hit rate of a page cache that holds `share` of a dataset read in a new order each epoch.

    The page cache keeps the data that was read last. Say a fraction `a` of an epoch remains after a sample, and the
    sample is read again after a fraction `v` of the next epoch. In between, `a + v - a v` of the dataset was read, and
    the sample is still cached if that fits. `a` and `v` are uniformly distributed. With half of the dataset in memory
    the hit rate is 15 %; a fixed half, as `PartialCache` keeps it, has a hit rate of 50 %.
    """
    if share >= 1:
        return 1.0
    return max(0.0, share + (1 - share) * math.log1p(-share)) if share > 0 else 0.0


def cached_share(findings: Findings) -> float:
    """Return the share of the dataset that fits into the page cache, at most 1."""
    cache_bytes = findings.environment.memory_free_bytes - needed_bytes(findings)
    return min(1.0, max(0.0, cache_bytes / findings.samples.total_bytes))


def needed_bytes(findings: Findings) -> float:
    """Return the minimum memory of the job's loaders: their workers and slots."""
    job = findings.job
    slots_bytes = MIN_SLOTS * job.batch_size * findings.samples.output_bytes
    return job.num_gpus * (job.num_workers * WORKER_BYTES + slots_bytes)


def _misses(findings: Findings) -> float:
    """Return the share of the samples that are read from storage."""
    share = cached_share(findings)
    hits = (findings.samples.cached_share or 0.0) if share >= 1 else hit_share(share)
    return (1 - hits) * (1 - findings.kept_share)


def _storage(findings: Findings, num_workers: int) -> float:
    storage = findings.storage
    concurrency = num_workers * storage.reads_per_worker
    cold, warm = storage.rate(Temperature.COLD, concurrency), storage.rate(Temperature.WARM, concurrency)
    misses = _misses(findings)
    rate = math.inf if cold is None else _quotient(cold, misses)
    if warm is not None and storage.read.wait_seconds > _PAGE_CACHE_READ_SECONDS:
        rate = min(rate, _quotient(warm, 1 - findings.kept_share))
    return rate / findings.job.num_jobs


def _read_wait_seconds(findings: Findings) -> float:
    cold = findings.storage.rate(Temperature.COLD, 1)
    warm_seconds = findings.storage.read.seconds
    cold_seconds = 0.0 if cold is None else max(0.0, 1 / cold - warm_seconds)
    return findings.storage.read.wait_seconds + _misses(findings) * cold_seconds


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor > 0 else math.inf
