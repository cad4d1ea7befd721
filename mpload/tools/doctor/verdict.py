"""What limits the job, stage by stage, by the findings alone."""

import math
from dataclasses import dataclass
from enum import StrEnum

from mpload.memory.budget import MIN_SLOTS
from mpload.tools.doctor.facts import Cost, Findings, Temperature
from mpload.tools.doctor.model import (
    Limit,
    Rates,
    cached_share,
    core_seconds_of_transport,
    hit_share,
    needed_bytes,
    predict,
)
from mpload.units import format_bytes

__all__ = ["Bottleneck", "StageRate", "Verdict", "judge", "needed_descriptors"]

_WORTH_IT = 1.15
_CACHE_MATTERS = 0.1
_MUCH_CHEAPER = 0.6
_HELPS = 2.0
_DESCRIPTORS_OF_LOADER = 22  # in the consumer's process: 13, and some more while it starts
_DESCRIPTORS_OF_ZYGOTE = 18  # and one for each worker
_DESCRIPTORS_OF_WORKER = 28  # 12, and one for each of the threads that read ahead
_MOST_SHARDS_OPEN = 64


class Bottleneck(StrEnum):
    """What sets the rate."""

    CONSUMER = "consumer"
    """Data comes faster than it is wanted."""
    STORAGE = "storage"
    COLD_CACHE = "cold page cache"
    """The data set fits into memory, and is not there yet."""
    PAGE_CACHE = "page cache too small"
    """The data set does not fit, and what is read drives out what will be wanted."""
    WORKERS = "too few workers"
    DECODE = "decode"
    LARGE_IMAGES = "images larger than the crop needs"
    TRANSFORM = "transform"
    BATCH_SIZE = "small batches"
    TRANSPORT = "transport"
    DEVICE_COPY = "device copy"
    MEMORY = "memory limit"
    DESCRIPTORS = "descriptor limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRate:
    """Need beside have, in samples a second."""

    name: str
    need: float | None
    """None where no step was told."""
    have: float | None
    """None where it sets no limit that was seen."""

    @property
    def share(self) -> float | None:
        """Part of the need that is met, 1 where all is; None where need or have is not known."""
        return None if self.need is None or self.have is None else min(1.0, self.have / self.need)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the job."""

    bottleneck: Bottleneck
    reason: str
    """A sentence with numbers."""
    samples_per_second: float
    """What the job gets, once epochs follow each other; 0 where it cannot start."""
    stages: tuple[StageRate, ...]


def judge(findings: Findings) -> Verdict:
    """Return what limits the job."""
    rates = predict(findings)
    stages = _stages(findings, rates)
    if (stopped := _stopped(findings)) is not None:
        bottleneck, reason = stopped
        return Verdict(bottleneck=bottleneck, reason=reason, samples_per_second=0.0, stages=stages)
    rate = rates.total
    tried = findings.trial(findings.job.num_workers, findings.job.batch_size)
    if tried is not None:
        rate = min(rate, tried.samples_per_second * findings.job.num_gpus)
    need = findings.job.needed_rate
    if rate >= need:
        bottleneck, reason = Bottleneck.CONSUMER, f"data comes at {rate:,.0f} samples/s, {need:,.0f} are wanted"
    else:
        bottleneck, reason = _slowest(findings, rates)
    return Verdict(bottleneck=bottleneck, reason=reason, samples_per_second=rate, stages=stages)


def needed_descriptors(findings: Findings) -> int:
    """Return how many files the process that needs most has open at once: consumer, zygote or worker."""
    return max(
        findings.environment.used_descriptors + _DESCRIPTORS_OF_LOADER,
        _DESCRIPTORS_OF_ZYGOTE + findings.job.num_workers,
        _DESCRIPTORS_OF_WORKER + min(findings.samples.num_shards, _MOST_SHARDS_OPEN),
    )


def _stopped(findings: Findings) -> tuple[Bottleneck, str] | None:
    """Return what keeps the job from starting at all."""
    environment, job = findings.environment, findings.job
    needed = needed_descriptors(findings)
    if needed > environment.max_descriptors or any(trial.is_short_of_files for trial in findings.trials):
        return Bottleneck.DESCRIPTORS, (
            f"a process may have {environment.max_descriptors:,} files open, a loader with {job.num_workers} workers "
            f"takes about {needed:,}"
        )
    wanted_bytes = 2 * needed_bytes(findings)  # a budget of "auto" is half of what is free
    if wanted_bytes > environment.memory_free_bytes:
        return Bottleneck.MEMORY, (
            f"{job.num_workers * job.num_gpus} workers and {MIN_SLOTS * job.num_gpus} batches of "
            f"{format_bytes(job.batch_size * findings.samples.output_bytes)} take {format_bytes(wanted_bytes / 2)}, "
            f"and the training as much again; {format_bytes(environment.memory_free_bytes)} are free of the limit of "
            f"{format_bytes(environment.memory_limit_bytes)}"
        )
    return None


def _slowest(findings: Findings, rates: Rates) -> tuple[Bottleneck, str]:
    job, cores = findings.job, findings.environment.usable_cores
    match rates.limit:
        case Limit.STORAGE:
            return _slow_storage(findings)
        case Limit.DEVICE:
            return Bottleneck.DEVICE_COPY, f"copies to the device carry {rates.device:,.0f} samples/s"
        case Limit.WORKERS if job.num_workers * job.num_gpus < cores:
            if rates.without(Limit.WORKERS) >= _WORTH_IT * rates.workers:
                num_workers = job.num_workers * job.num_gpus
                make = "worker makes" if num_workers == 1 else "workers make"
                return Bottleneck.WORKERS, (
                    f"{num_workers} {make} {rates.workers:,.0f} samples/s and leave cores idle: there are {cores}"
                )
    costs = _costs(findings)
    name = max(costs, key=lambda stage: costs[stage].seconds)
    return _slow_stage(findings, name, costs)


def _costs(findings: Findings) -> dict[str, Cost]:
    costs = {
        "decode": findings.decode,
        "transform": findings.transform,
        "transport": Cost(cpu_seconds=core_seconds_of_transport(findings)),
    }
    cold = findings.storage.rate(Temperature.COLD, 1)
    if findings.storage.reads_per_worker == 1 and cold is not None:
        costs["read"] = Cost(wait_seconds=1 / cold)
    return costs


def _slow_stage(findings: Findings, name: str, costs: dict[str, Cost]) -> tuple[Bottleneck, str]:
    seconds = costs[name].seconds
    everything = sum(cost.seconds for cost in costs.values())
    takes = f"{name} takes {_micros(seconds)} of a worker's {_micros(everything)} for a sample"
    match name:
        case "read":
            return Bottleneck.STORAGE, takes
        case "transform":
            waits = f", {findings.transform.wait_seconds / seconds:.0%} of it waiting" if seconds else ""
            return Bottleneck.TRANSFORM, takes + waits
        case "transport" if _is_small(findings):
            return Bottleneck.BATCH_SIZE, f"{takes}: batches of {findings.job.batch_size} are many messages"
        case "transport":
            return Bottleneck.TRANSPORT, takes
    resized = findings.resized_decode
    if resized is not None and resized.cpu_seconds < _MUCH_CHEAPER * findings.decode.cpu_seconds:
        side = f" of {findings.samples.mean_short_side:,.0f} pixels" if findings.samples.mean_short_side else ""
        return Bottleneck.LARGE_IMAGES, f"{takes}; of images with a short side{side}, resized ones take " + _micros(
            resized.seconds
        )
    return Bottleneck.DECODE, takes


def _is_small(findings: Findings) -> bool:
    """Whether larger batches would be carried at much less cost a sample."""
    empty = [trial for trial in findings.trials if trial.is_empty and trial.samples_per_second]
    here = findings.trial(findings.job.num_workers, findings.job.batch_size, is_empty=True)
    return here is not None and any(
        trial.batch_size > here.batch_size and trial.samples_per_second > 1.3 * here.samples_per_second
        for trial in empty
    )


def _slow_storage(findings: Findings) -> tuple[Bottleneck, str]:
    storage, job = findings.storage, findings.job
    at_once = job.num_workers * job.num_gpus * storage.reads_per_worker
    cold = storage.rate(Temperature.COLD, at_once) or 0.0
    cold_alone, warm_alone = storage.rate(Temperature.COLD, 1), storage.rate(Temperature.WARM, 1)
    gives = f"the storage gives {cold:,.0f} samples/s to {at_once} readers"
    if job.num_jobs > 1:
        gives += f", shared by {job.num_jobs} jobs"
    if cold_alone is not None and warm_alone is not None and warm_alone < _HELPS * cold_alone:
        again = f"{1 / warm_alone * 1e3:,.2f} ms a read, and {1 / cold_alone * 1e3:,.2f} ms the first time"
        return Bottleneck.STORAGE, f"{gives}, and what was just read takes as long again: {again}"
    room = cached_share(findings)
    if room >= 1:
        there = findings.samples.cached_share or 0.0
        size = format_bytes(findings.samples.total_bytes)
        return Bottleneck.COLD_CACHE, (
            f"{gives}, and {there:.0%} of {size} lie in memory; all would fit: the first epoch is the slow one"
        )
    fits = f"{room:.0%} of {format_bytes(findings.samples.total_bytes)} fit into memory"
    if room >= _CACHE_MATTERS:
        return Bottleneck.PAGE_CACHE, (
            f"{gives}; {fits}, and a shuffled epoch finds {hit_share(room):.0%} of its samples there"
        )
    return Bottleneck.STORAGE, f"{gives}; {fits}"


def _stages(findings: Findings, rates: Rates) -> tuple[StageRate, ...]:
    job, cores = findings.job, findings.environment.usable_cores
    num_workers = job.num_workers * job.num_gpus
    need = None if math.isinf(job.needed_rate) else job.needed_rate
    haves = {"storage": rates.storage}
    costs = _costs(findings)
    costs.pop("read", None)
    for name, cost in costs.items():
        by_workers = num_workers / cost.seconds if cost.seconds else math.inf
        haves[name] = min(by_workers, cores / cost.cpu_seconds if cost.cpu_seconds else math.inf)
    haves |= {"workers": rates.workers, "cores": rates.cores}
    if findings.environment.device_bytes_per_second is not None:
        haves["device copy"] = rates.device
    return tuple(
        StageRate(name=name, need=need, have=None if math.isinf(have) else have) for name, have in haves.items()
    )


def _micros(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} us"
