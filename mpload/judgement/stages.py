"""What each stage of a job needs, and what it delivers."""

import math
from dataclasses import dataclass

from mpload.judgement.facts import Facts, Stage
from mpload.judgement.model import Rates, costs_of_worker, free_cores, miss_share

__all__ = ["StageRate", "stage_rates"]

_HARDLY_READ = 0.02
"""The speed of the storage says nothing about a job that reads less than this share of its samples from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRate:
    """The rate that a stage needs and the rate that it delivers, per second, of all jobs that share it."""

    name: str
    unit: str = "samples/s"
    need: float | None
    """None if the time of a training step is not known."""
    have: float | None
    """None if it is not known, or if no limit was found."""

    @property
    def share(self) -> float | None:
        """The share of the need that is met, at most 1. None if one of the rates is not known."""
        return None if self.need is None or self.have is None else min(1.0, self.have / self.need)


def stage_rates(facts: Facts, rates: Rates) -> tuple[StageRate, ...]:
    """Return what each stage needs and delivers, in the order in which a sample passes through them."""
    job, storage = facts.job, facts.storage
    need = None if math.isinf(job.needed_rate) else job.needed_rate
    shared = None if need is None else need * job.num_jobs
    reads = rates.reads * job.num_jobs if miss_share(facts) >= _HARDLY_READ else math.inf
    found = [("reads", "reads/s", shared, reads)]
    if facts.samples.mean_bytes is not None and (storage.bytes_per_second is not None or job.num_workers is None):
        per_second = None if shared is None else shared * facts.samples.mean_bytes
        found.append(("bandwidth", "B/s", per_second, rates.bandwidth * job.num_jobs * facts.samples.mean_bytes))
    cores = math.inf if facts.environment.usable_cores is None else free_cores(facts)
    for name, cost in costs_of_worker(facts).items():
        if cost.seconds and name != Stage.READ and job.num_workers is not None:
            by_cores = cores / cost.cpu_seconds if cost.cpu_seconds else math.inf
            found.append((str(name), "samples/s", need, min(job.total_workers / cost.seconds, by_cores)))
    if job.num_workers is not None:
        found.append(("workers", "samples/s", need, rates.workers))
    found.append(("cores", "samples/s", need, rates.cores))
    if facts.environment.device_bytes_per_second is not None:
        found.append(("device copy", "samples/s", need, rates.device))
    return tuple(
        StageRate(name=name, unit=unit, need=wanted, have=None if math.isinf(have) else have)
        for name, unit, wanted, have in found
    )
