"""The capacity of each part of a job, and hence its rate.

If a step takes `t` seconds and consumes `n` samples on each of `g` GPUs, then `n g / t` samples are needed per second.
For each sample a worker takes CPU time, waiting time and its share of the transport. All workers share the cores that
other processes leave. The storage delivers a rate that depends on the number of concurrent reads, shared by all jobs,
and serves only what is in neither the page cache nor a `PartialCache`. The slowest part determines the rate.
"""

import math
from dataclasses import dataclass
from enum import StrEnum, auto

from mpload.judgement.facts import Cost, Facts, Stage, Temperature
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES

__all__ = [
    "Part",
    "Rates",
    "cached_share",
    "cold_rate",
    "costs_of_worker",
    "free_cores",
    "hit_share",
    "miss_share",
    "mostly_waits",
    "needed_bytes",
    "predict",
    "roomy_bytes",
    "yielded_cores",
]

_PAGE_CACHE_READ_SECONDS = 200e-6
"""A read that waits longer than this was not served from memory."""
_SAMPLES_OF_WORKER = 2
"""A worker makes one sample while another one waits to be delivered."""
_ROOMY = 2.0
"""A budget must have this factor more than workers and slots are known to need: workers may take more."""
_MIN_CORES_SHARE = 0.1
"""The share of the cores that a job gets however busy its neighbours are."""


class Part(StrEnum):
    """A part of the job that may limit its rate."""

    READS = auto()
    BANDWIDTH = auto()
    WORKERS = auto()
    CORES = auto()
    DEVICE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rate of each part, in samples per second. Infinite if a part sets no limit."""

    reads: float = math.inf
    bandwidth: float = math.inf
    workers: float = math.inf
    cores: float = math.inf
    device: float = math.inf

    @property
    def limit(self) -> Part:
        """The slowest part."""
        return min(Part, key=lambda part: float(getattr(self, part)))

    @property
    def total(self) -> float:
        """The rate of the slowest part."""
        return float(getattr(self, self.limit))

    @property
    def storage(self) -> float:
        """The rate of reads and bandwidth together."""
        return min(self.reads, self.bandwidth)

    def without(self, *parts: Part) -> float:
        """Return the rate that the other parts would allow."""
        return min(float(getattr(self, other)) for other in Part if other not in parts)


def predict(facts: Facts) -> Rates:
    """Return the rate that each part allows."""
    environment, num_workers = facts.environment, facts.job.total_workers
    costs = costs_of_worker(facts).values()
    cpu_seconds, seconds = sum(cost.cpu_seconds for cost in costs), sum(cost.seconds for cost in costs)
    device = math.inf
    if environment.device_bytes_per_second is not None and facts.samples.output_bytes:
        device = environment.device_bytes_per_second / facts.samples.output_bytes
    cores = math.inf if environment.usable_cores is None else _quotient(free_cores(facts), cpu_seconds)
    bandwidth = math.inf
    if facts.storage.bytes_per_second is not None and facts.samples.mean_bytes:
        missed_bytes = miss_share(facts) * facts.samples.mean_bytes
        bandwidth = _quotient(facts.storage.bytes_per_second, missed_bytes) / facts.job.num_jobs
    return Rates(
        reads=_reads(facts, num_workers),
        bandwidth=bandwidth,
        workers=_quotient(num_workers, seconds),
        cores=cores,
        device=device,
    )


def free_cores(facts: Facts) -> float:
    """Return the cores that other processes leave to the job."""
    cores, contention = facts.environment.usable_cores, facts.environment.contention
    if cores is None:
        return math.inf
    return max(_MIN_CORES_SHARE * cores, cores - contention.neighbour_cores + contention.yielded_cores)


def yielded_cores(facts: Facts) -> float:
    """Return the cores that others took only because the workers wait. The job would get its fair share of them all."""
    cores, workers = facts.environment.usable_cores, facts.job.total_workers
    taken = facts.environment.contention.neighbour_cores
    if cores is None or math.isinf(workers) or not mostly_waits(facts):
        return 0.0
    return max(0.0, cores * workers / (workers + taken) - (cores - taken))


def mostly_waits(facts: Facts) -> bool:
    """Whether workers wait for longer than they compute."""
    costs = costs_of_worker(facts).values()
    return sum(cost.wait_seconds for cost in costs) > sum(cost.cpu_seconds for cost in costs)


def costs_of_worker(facts: Facts) -> dict[str, Cost]:
    """Return what each stage costs a worker, per sample."""
    read = facts.storage.read
    if facts.storage.reads_per_worker == 1:
        read = Cost(cpu_seconds=read.cpu_seconds, wait_seconds=_read_wait_seconds(facts))
    else:  # others are read meanwhile
        read = Cost(cpu_seconds=read.cpu_seconds)
    return {
        Stage.READ: read,
        Stage.DECODE: facts.decode,
        Stage.TRANSFORM: facts.transform,
        Stage.TRANSPORT: _transport(facts),
        "lookup": facts.lookup,
    }


def _transport(facts: Facts) -> Cost:
    """Return the cost to transport one sample: a cost per sample, plus its share of the cost per batch."""
    cores = facts.environment.usable_cores or 1
    empty = sorted(
        {
            trial.batch_size: trial.cpu_seconds or min(trial.num_workers, cores) / trial.samples_per_second
            for trial in facts.trials
            if trial.is_empty and trial.samples_per_second
        }.items()
    )
    if not empty:
        return facts.transport
    (small, small_seconds), (large, large_seconds) = empty[0], empty[-1]
    if small == large:
        return Cost(cpu_seconds=small_seconds)
    batch_seconds = max(0.0, (small_seconds - large_seconds) / (1 / small - 1 / large))
    sample_seconds = max(0.0, large_seconds - batch_seconds / large)
    return Cost(cpu_seconds=sample_seconds + batch_seconds / facts.job.batch_size)


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


def cached_share(facts: Facts) -> float:
    """Return the share of the dataset that fits into the page cache, at most 1. 0 if that is not known."""
    free_bytes, total_bytes = facts.environment.memory_free_bytes, facts.samples.total_bytes
    if free_bytes is None or total_bytes is None:
        return 0.0
    return min(1.0, max(0.0, (free_bytes - needed_bytes(facts)) / total_bytes))


def needed_bytes(facts: Facts) -> float:
    """Return the minimum memory of the job's loaders: their workers and slots."""
    job = facts.job
    slots_bytes = MIN_SLOTS * job.batch_size * (facts.samples.output_bytes or 0.0)
    return job.num_gpus * ((job.num_workers or 0) * WORKER_BYTES + slots_bytes)


def roomy_bytes(facts: Facts) -> float | None:
    """Return a memory budget of each loader with which every worker has samples to make. None if it is not known."""
    job, sample_bytes = facts.job, facts.samples.output_bytes
    if job.num_workers is None or sample_bytes is None:
        return None
    return _ROOMY * (needed_bytes(facts) / job.num_gpus + job.num_workers * _SAMPLES_OF_WORKER * sample_bytes)


def miss_share(facts: Facts) -> float:
    """Return the share of the samples that are read from storage."""
    share = cached_share(facts)
    hits = (facts.samples.cached_share or 0.0) if share >= 1 else hit_share(share)
    return (1 - hits) * (1 - facts.kept_share)


def cold_rate(facts: Facts, concurrency: float) -> float | None:
    """Return the samples per second that this many readers get from the storage, in the order of the job."""
    storage = facts.storage
    rates = [storage.rate(Temperature.COLD, concurrency)]
    if facts.job.reads_blocks:
        rates.append(storage.rate(Temperature.COLD, concurrency, is_sequential=True))
    return max((rate for rate in rates if rate is not None), default=None)


def _reads(facts: Facts, num_workers: float) -> float:
    concurrency = num_workers * facts.storage.reads_per_worker
    cold, warm = cold_rate(facts, concurrency), facts.storage.rate(Temperature.WARM, concurrency)
    rate = math.inf if cold is None else _quotient(cold, miss_share(facts))
    if warm is not None and facts.storage.read.wait_seconds > _PAGE_CACHE_READ_SECONDS:
        rate = min(rate, _quotient(warm, 1 - facts.kept_share))
    return rate / facts.job.num_jobs


def _read_wait_seconds(facts: Facts) -> float:
    cold = cold_rate(facts, 1)
    cold_seconds = 0.0 if cold is None else max(0.0, 1 / cold - facts.storage.read.seconds)
    return facts.storage.read.wait_seconds + miss_share(facts) * cold_seconds


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor > 0 else math.inf
