"""Decides from the findings alone what limits the job, stage by stage."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
from mpload.units import format_bytes, format_counted

__all__ = ["Bottleneck", "StageRate", "Verdict", "judge", "needed_descriptors"]

_WORTH_IT = 1.15
_CACHE_MATTERS = 0.1
_MUCH_CHEAPER = 0.6
_HELPS = 2.0
_DESCRIPTORS_OF_LOADER = 22  # in the training process: 13, and some more while the loader starts
_DESCRIPTORS_OF_ZYGOTE = 18  # plus one for each worker
_DESCRIPTORS_OF_WORKER = 28  # 12, plus one for each thread that reads ahead
_MAX_OPEN_SHARDS = 64


class Bottleneck(StrEnum):
    """What limits the job."""

    CONSUMER = "consumer"
    """The training step: the loader is faster."""
    STORAGE = "storage"
    COLD_CACHE = "cold page cache"
    """The dataset fits into the page cache, but is not cached yet."""
    PAGE_CACHE = "page cache too small"
    """The dataset does not fit into the page cache, and new reads evict samples that are needed again."""
    INDEX = "index larger than memory"
    """Samples are visited in random order, and their lines are looked up on the disk."""
    WORKERS = "too few workers"
    DECODE = "decode"
    LARGE_IMAGES = "images larger than the crop needs"
    PROGRESSIVE = "progressive JPEGs"
    TRANSFORM = "transform"
    BATCH_SIZE = "small batches"
    TRANSPORT = "transport"
    DEVICE_COPY = "device copy"
    MEMORY = "memory limit"
    DESCRIPTORS = "descriptor limit"


_HEADLINES: Final = {
    Bottleneck.CONSUMER: "Not limited by data: the training step is slower than the loader",
    Bottleneck.STORAGE: "Limited by storage",
    Bottleneck.COLD_CACHE: "Limited by storage until the dataset is in the page cache",
    Bottleneck.PAGE_CACHE: "Limited by storage, because the page cache is too small for the dataset",
    Bottleneck.INDEX: "Limited by lookups in the index, which is larger than the memory",
    Bottleneck.WORKERS: "Limited by too few workers",
    Bottleneck.DECODE: "Limited by decoding",
    Bottleneck.LARGE_IMAGES: "Limited by decoding, because the images are larger than the crop needs",
    Bottleneck.PROGRESSIVE: "Limited by decoding, because of progressive JPEGs",
    Bottleneck.TRANSFORM: "Limited by the transform",
    Bottleneck.BATCH_SIZE: "Limited by transport, because the batches are small",
    Bottleneck.TRANSPORT: "Limited by transport from the workers to the training process",
    Bottleneck.DEVICE_COPY: "Limited by copies to the device",
    Bottleneck.MEMORY: "Cannot start: the memory limit is too low",
    Bottleneck.DESCRIPTORS: "Cannot start: the limit of open files is too low",
}
_STAGE_NAMES: Final = {
    "read": "Reading",
    "decode": "Decoding",
    "transform": "The transform",
    "transport": "Transport",
    "lookup": "Looking up the line",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRate:
    """The rate that a stage needs, and the rate that it delivers, in samples per second."""

    name: str
    need: float | None
    """None if the time of a training step is not known."""
    have: float | None
    """None if no limit was found."""

    @property
    def share(self) -> float | None:
        """The share of the need that is met, at most 1. None if one of the rates is not known."""
        return None if self.need is None or self.have is None else min(1.0, self.have / self.need)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the job."""

    bottleneck: Bottleneck
    reason: str
    """The figures behind it, in one or two sentences, without the last full stop."""
    samples_per_second: float
    """The rate of the job after the first epoch. 0 if the job cannot start."""
    stages: tuple[StageRate, ...]

    @property
    def headline(self) -> str:
        """What limits the job, as a sentence without its full stop."""
        return _HEADLINES[self.bottleneck]

    @property
    def advice_without_remedies(self) -> str:
        """What to do if there are no remedies."""
        if self.bottleneck is Bottleneck.CONSUMER:
            return "The data pipeline needs no change."
        return "No single change would help much. Change the slowest stages in the table together."


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
        bottleneck = Bottleneck.CONSUMER
        reason = f"The loader delivers {rate:,.0f} samples/s, and training needs {need:,.0f}"
    else:
        bottleneck, reason = _slowest(findings, rates)
    return Verdict(bottleneck=bottleneck, reason=reason, samples_per_second=rate, stages=stages)


def needed_descriptors(findings: Findings) -> int:
    """Return the largest number of files that any process has open: training process, zygote or worker."""
    return max(
        findings.environment.used_descriptors + _DESCRIPTORS_OF_LOADER,
        _DESCRIPTORS_OF_ZYGOTE + findings.job.num_workers,
        _DESCRIPTORS_OF_WORKER + min(findings.samples.num_shards, _MAX_OPEN_SHARDS),
    )


def _stopped(findings: Findings) -> tuple[Bottleneck, str] | None:
    """Return what prevents the job from starting. None if it can start."""
    environment, job = findings.environment, findings.job
    needed = needed_descriptors(findings)
    if needed > environment.max_descriptors or any(trial.is_short_of_files for trial in findings.trials):
        return Bottleneck.DESCRIPTORS, (
            f"A process may have {environment.max_descriptors:,} files open. A loader with "
            f"{format_counted(job.num_workers, 'worker')} needs about {needed:,}"
        )
    loader_bytes = needed_bytes(findings)
    if 2 * loader_bytes > environment.memory_free_bytes:
        return Bottleneck.MEMORY, (
            f"{format_counted(job.num_workers * job.num_gpus, 'worker')} and {MIN_SLOTS * job.num_gpus} batches of "
            f"{format_bytes(job.batch_size * findings.samples.output_bytes)} need {format_bytes(loader_bytes)}. "
            f"The default memory budget is half of the free memory: {format_bytes(environment.memory_free_bytes)} of "
            f"the limit of {format_bytes(environment.memory_limit_bytes)} are free"
        )
    return None


def _slowest(findings: Findings, rates: Rates) -> tuple[Bottleneck, str]:
    job, cores = findings.job, findings.environment.usable_cores
    match rates.limit:
        case Limit.STORAGE:
            return _slow_storage(findings)
        case Limit.DEVICE:
            return Bottleneck.DEVICE_COPY, f"Copies to the device carry {rates.device:,.0f} samples/s"
        case Limit.WORKERS if job.num_workers * job.num_gpus < cores:
            if rates.without(Limit.WORKERS) >= _WORTH_IT * rates.workers:
                workers = format_counted(job.num_workers * job.num_gpus, "worker")
                return Bottleneck.WORKERS, (
                    f"{workers} can make {rates.workers:,.0f} samples/s, and cannot use all {cores} cores"
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
    if findings.lookup.seconds:
        costs["lookup"] = findings.lookup
    cold = findings.storage.rate(Temperature.COLD, 1)
    if findings.storage.reads_per_worker == 1 and cold is not None:
        costs["read"] = Cost(wait_seconds=1 / cold)
    return costs


def _slow_stage(findings: Findings, name: str, costs: dict[str, Cost]) -> tuple[Bottleneck, str]:
    seconds = costs[name].seconds
    total_seconds = sum(cost.seconds for cost in costs.values())
    takes = f"{_STAGE_NAMES[name]} takes {_duration(seconds)} of a worker's {_duration(total_seconds)} per sample"
    match name:
        case "read":
            return Bottleneck.STORAGE, takes
        case "lookup":
            return Bottleneck.INDEX, f"{takes}. Neighbours share their lookups, so BlockShuffle needs none of this"
        case "transform":
            waits = f"; {findings.transform.wait_seconds / seconds:.0%} of this is waiting" if seconds else ""
            return Bottleneck.TRANSFORM, takes + waits
        case "transport" if _is_small(findings):
            held = format_counted(findings.job.batch_size, "sample")
            return Bottleneck.BATCH_SIZE, f"{takes}. Part of this is a cost per batch, and a batch holds only {held}"
        case "transport":
            return Bottleneck.TRANSPORT, takes
    progressive, decode = findings.progressive, findings.decode
    if progressive is not None and progressive.rewritten(decode).cpu_seconds < _MUCH_CHEAPER * decode.cpu_seconds:
        return Bottleneck.PROGRESSIVE, (
            f"{takes}. {progressive.share:.0%} of the images are progressive JPEGs, which take "
            f"{progressive.slowdown:.1f} times as long to decode as baseline ones"
        )
    resized = findings.resized_decode
    if resized is not None and resized.cpu_seconds < _MUCH_CHEAPER * decode.cpu_seconds:
        short = findings.samples.mean_short_side
        side = f"The short side of the images is {short:,.0f} pixels on average. " if short else ""
        return Bottleneck.LARGE_IMAGES, f"{takes}. {side}Shrunk images would take {_duration(resized.seconds)}"
    return Bottleneck.DECODE, takes


def _is_small(findings: Findings) -> bool:
    """Whether larger batches would have a much lower transport cost per sample."""
    empty = [trial for trial in findings.trials if trial.is_empty and trial.samples_per_second]
    current = findings.trial(findings.job.num_workers, findings.job.batch_size, is_empty=True)
    return current is not None and any(
        trial.batch_size > current.batch_size and trial.samples_per_second > 1.3 * current.samples_per_second
        for trial in empty
    )


def _slow_storage(findings: Findings) -> tuple[Bottleneck, str]:
    storage, job = findings.storage, findings.job
    concurrency = job.num_workers * job.num_gpus * storage.reads_per_worker
    cold = storage.rate(Temperature.COLD, concurrency) or 0.0
    cold_alone, warm_alone = storage.rate(Temperature.COLD, 1), storage.rate(Temperature.WARM, 1)
    rate = f"The storage delivers {cold:,.0f} samples/s to {format_counted(concurrency, 'concurrent reader')}"
    if job.num_jobs > 1:
        rate += f", shared by {job.num_jobs} jobs"
    if cold_alone is not None and warm_alone is not None and warm_alone < _HELPS * cold_alone:
        first, second = (f"{1e3 / alone:,.2f} ms" for alone in (cold_alone, warm_alone))
        return Bottleneck.STORAGE, f"{rate}. The page cache helps little: a first read takes {first}, the next {second}"
    share = cached_share(findings)
    size = format_bytes(findings.samples.total_bytes)
    if share >= 1:
        cached = findings.samples.cached_share or 0.0
        return Bottleneck.COLD_CACHE, (
            f"{rate}. The dataset of {size} fits into memory, and {cached:.0%} of it is cached: only the first "
            "epoch is slow"
        )
    fits = f"{share:.0%} of the {size} fit into memory"
    if share >= _CACHE_MATTERS:
        return Bottleneck.PAGE_CACHE, (
            f"{rate}. Only {fits}, and a shuffled epoch finds {hit_share(share):.0%} of its samples there"
        )
    return Bottleneck.STORAGE, f"{rate}. Only {fits}"


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


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} us"
