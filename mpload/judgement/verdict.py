"""Decides from the facts alone what limits a job, stage by stage."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mpload.judgement.causes import best_alternative, slow_stage, slow_storage
from mpload.judgement.facts import Facts, Stage
from mpload.judgement.model import (
    Part,
    Rates,
    costs_of_worker,
    free_cores,
    mostly_waits,
    needed_bytes,
    predict,
    roomy_bytes,
)
from mpload.judgement.stages import StageRate, stage_rates
from mpload.judgement.words import HEADLINES, STAGE_NAMES, Bottleneck, counted_cores, duration
from mpload.memory.budget import MIN_SLOTS
from mpload.memory.contention import Contention
from mpload.units import format_bytes, format_counted

__all__ = ["Verdict", "budget_bytes", "judge", "needed_descriptors"]

_WORTH_IT = 1.15
_NO_WAIT = 0.05
_IDLE = 0.5
"""Workers that are busy for less than this share of the time are not the limit."""
_TAKEN = 0.2
"""The share of the cores, or of the time, that something else must take to be blamed."""
_SWAPS_BYTES_PER_SECOND = 1 << 20
_AGREE = 1.5
"""Predictions and measurements may differ by this factor."""
_ALMOST_ALL = 0.95
_DESCRIPTORS_OF_LOADER = 22  # in the training process: 13, and some more while the loader starts
_DESCRIPTORS_OF_ZYGOTE = 18  # plus one for each worker
_DESCRIPTORS_OF_WORKER = 28  # 12, plus one for each thread that reads ahead
_MAX_OPEN_SHARDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the job."""

    bottleneck: Bottleneck
    slowest: Bottleneck
    """What limits the loader, whether or not the loader limits the job. The bottleneck itself, if it does."""
    stage: str
    """The stage that takes most of a worker's time, or the consumer."""
    reason: str
    """The figures behind it, in one or two sentences, without the last full stop."""
    samples_per_second: float
    """The rate of the job after the first epoch. 0 if the job cannot run."""
    stages: tuple[StageRate, ...]
    next_step: str = ""
    """What to look at if there are no remedies: a sentence."""
    notes: tuple[str, ...] = ()
    """What else to know: other processes that take resources, or a trial that contradicts the other measurements."""

    @property
    def headline(self) -> str:
        """What limits the job, as a sentence without its full stop."""
        return HEADLINES[self.bottleneck]


def judge(facts: Facts) -> Verdict:
    """Return what limits the job."""
    rates = predict(facts)
    stages = stage_rates(facts, rates)
    costs = costs_of_worker(facts)
    longest = max(costs, key=lambda name: costs[name].seconds)
    if (stopped := _stopped(facts)) is not None:
        bottleneck, reason = stopped
        return Verdict(
            bottleneck=bottleneck,
            slowest=bottleneck,
            stage=longest,
            reason=reason,
            samples_per_second=0.0,
            stages=stages,
        )
    rate = _rate(facts, rates)
    if _is_enough(facts, rate):
        return Verdict(
            bottleneck=Bottleneck.CONSUMER,
            slowest=Bottleneck.CONSUMER,
            stage=Stage.CONSUMER,
            reason=_why_consumer(facts, rate),
            samples_per_second=rate,
            stages=stages,
            next_step=_profile_next(facts),
        )
    slowest, reason = _slowest(facts, rates, longest)
    is_open = facts.running is None and math.isinf(facts.job.needed_rate)
    if is_open:
        reason = f"The loader delivers {rate:,.0f} samples/s. What limits it most: {slowest}. {reason}"
    is_idle = slowest in {Bottleneck.SLOTS, Bottleneck.TRANSPORT, Bottleneck.BATCH_SIZE}
    return Verdict(
        bottleneck=Bottleneck.OPEN if is_open else slowest,
        slowest=slowest,
        stage=Stage.TRANSPORT if is_idle else longest,
        reason=reason,
        samples_per_second=rate,
        stages=stages,
        next_step="No single change would help much. Change the slowest stages in the table together.",
        notes=tuple(_notes(facts, rates, slowest)),
    )


def needed_descriptors(facts: Facts) -> int:
    """Return the largest number of files that any process has open: training process, zygote or worker."""
    return max(
        facts.environment.used_descriptors + _DESCRIPTORS_OF_LOADER,
        _DESCRIPTORS_OF_ZYGOTE + (facts.job.num_workers or 0),
        _DESCRIPTORS_OF_WORKER + min(facts.samples.num_shards, _MAX_OPEN_SHARDS),
    )


def budget_bytes(facts: Facts) -> float:
    """Return the memory that the job's loaders may take. Infinite if it is not known."""
    job, free_bytes = facts.job, facts.environment.memory_free_bytes
    if job.memory_budget_bytes is not None:
        return job.memory_budget_bytes * job.num_gpus
    return math.inf if free_bytes is None else free_bytes / 2


def _rate(facts: Facts, rates: Rates) -> float:
    if facts.running is not None:
        return facts.running.samples_per_second
    tried = facts.trial()
    if tried is None:
        return rates.total
    # The trial shows what workers and cores can do, unless several GPUs share them. It may have read from memory only.
    limits = rates.total if facts.job.num_gpus > 1 else rates.without(Part.WORKERS, Part.CORES)
    return min(limits, tried.samples_per_second * facts.job.num_gpus)


def _is_enough(facts: Facts, rate: float) -> bool:
    if facts.running is not None:
        return facts.running.waiting_share < _NO_WAIT
    return rate >= facts.job.needed_rate


def _why_consumer(facts: Facts, rate: float) -> str:
    need = facts.job.needed_rate
    step = "" if facts.job.step_seconds is None else f"A step takes {duration(facts.job.step_seconds)}. "
    if facts.running is not None:
        return f"{step}The loop waits for data {facts.running.waiting_share:.0%} of its time, at {rate:,.0f} samples/s"
    if math.isinf(rate):
        return f"{step}No stage is known to limit the loader, and training needs {need:,.0f} samples/s"
    return f"{step}The loader delivers {rate:,.0f} samples/s, and training needs {need:,.0f}"


def _profile_next(facts: Facts) -> str:
    """Say where the time of a step may go, if it does not go to the data."""
    copied = ""
    environment, step_seconds = facts.environment, facts.job.step_seconds
    if environment.device_bytes_per_second is not None and facts.samples.output_bytes and step_seconds:
        copy_seconds = facts.job.batch_size * facts.samples.output_bytes / environment.device_bytes_per_second
        copied = (
            f" Copying a batch to the device takes {duration(copy_seconds)} of it, {copy_seconds / step_seconds:.0%}."
        )
        copied += (
            " MPLoader(..., device=...) copies while the step before runs."
            if copy_seconds > _TAKEN * step_seconds
            else ""
        )
    return (
        f"The data pipeline needs no change.{copied} To make the step faster, profile it: torch.profiler shows whether "
        "the device is busy, waits for copies, or waits for Python."
    )


def _stopped(facts: Facts) -> tuple[Bottleneck, str] | None:
    """Return what prevents the job from running. None if it can run."""
    environment, job, samples = facts.environment, facts.job, facts.samples
    if samples.failed_share > samples.max_failed_share:
        allowed = f"allows {samples.max_failed_share:.0%}" if samples.max_failed_share else "raises at the first one"
        return Bottleneck.BROKEN, (
            f"{samples.num_failed} of {format_counted(samples.num_failed + samples.num_measured, 'measured sample')} "
            f"cannot be made, and the error policy {allowed}. The first: {samples.first_failure}"
        )
    needed, allowed_files = needed_descriptors(facts), environment.max_descriptors
    is_short = any(trial.is_short_of_files for trial in facts.trials)
    if allowed_files is not None and (needed > allowed_files or is_short):
        return Bottleneck.DESCRIPTORS, (
            f"A process may have {allowed_files:,} files open. A loader with "
            f"{format_counted(job.num_workers or 0, 'worker')} needs about {needed:,}"
        )
    if (leak := _leak(facts)) is not None:
        return Bottleneck.LEAK, leak
    loader_bytes, budget = needed_bytes(facts), budget_bytes(facts)
    if facts.running is None and loader_bytes > budget:
        rule = f"The memory budget is {format_bytes(budget)}"
        if job.memory_budget_bytes is None:
            rule = (
                f"The default memory budget is half of the free memory: "
                f"{format_bytes(environment.memory_free_bytes or 0)} of the limit of "
                f"{format_bytes(environment.memory_limit_bytes or 0)} are free"
            )
        return Bottleneck.MEMORY, (
            f"{format_counted(int(job.total_workers), 'worker')} and {MIN_SLOTS * job.num_gpus} batches of "
            f"{format_bytes(job.batch_size * (samples.output_bytes or 0))} need {format_bytes(loader_bytes)}. {rule}"
        )
    return None


def _leak(facts: Facts) -> str | None:
    """Return the figures if workers grow so much that an epoch does not fit into memory. None if they do not."""
    tried, free_bytes, num_samples = facts.trial(), facts.environment.memory_free_bytes, facts.samples.num_samples
    if tried is None or free_bytes is None or num_samples is None:
        return None
    grown_bytes = tried.grown_bytes_per_sample
    if grown_bytes * num_samples <= free_bytes:
        return None
    return (
        f"Workers grow by {format_bytes(grown_bytes)} per sample. An epoch has {num_samples:,} samples, and the "
        f"{format_bytes(free_bytes)} that are free are used up after {free_bytes / grown_bytes:,.0f}"
    )


def _slowest(facts: Facts, rates: Rates, longest: str) -> tuple[Bottleneck, str]:
    found = _limited_by(facts, rates, longest)
    taken = _contended(facts, rates)
    if taken is None:
        return found
    # Cheaper decoding that clearly gains more than the resources that others take is named first.
    best = best_alternative(facts)
    gain = 1.0 if best is None else predict(replace(facts, decode=best.decode)).total / rates.total
    without = replace(facts, environment=replace(facts.environment, contention=Contention()))
    if taken[0] is Bottleneck.NEIGHBOURS and gain > _AGREE * predict(without).total / rates.total:
        return found
    return taken


def _limited_by(facts: Facts, rates: Rates, longest: str) -> tuple[Bottleneck, str]:
    """Return what limits the job by itself, whatever else runs on the machine."""
    if (idle := _idle_share(facts)) is not None:
        return (
            Bottleneck.SLOTS,
            f"Workers make samples for only {1 - idle:.0%} of their time, and wait for a free slot else",
        )
    match rates.limit:
        case Part.READS:
            return slow_storage(facts)
        case Part.BANDWIDTH:
            return Bottleneck.STORAGE, f"The storage delivers {format_bytes(facts.storage.bytes_per_second or 0)}/s"
        case Part.DEVICE:
            return Bottleneck.DEVICE_COPY, f"Copies to the device carry {rates.device:,.0f} samples/s"
        case Part.WORKERS if _more_would_help(facts, rates, longest):
            return Bottleneck.WORKERS, _why_workers(facts, rates, longest)
    return slow_stage(facts, longest)


def _more_would_help(facts: Facts, rates: Rates, longest: str) -> bool:
    """Whether more workers would help: they leave cores unused, or wait, but not for a storage that may be busy."""
    is_storage = longest == Stage.READ and not facts.storage.rates
    has_room = rates.without(Part.WORKERS) >= _WORTH_IT * rates.workers
    return (has_room or mostly_waits(facts)) and longest != "lookup" and not is_storage


def _why_workers(facts: Facts, rates: Rates, longest: str) -> str:
    workers = format_counted(int(facts.job.total_workers), "worker")
    costs = costs_of_worker(facts)
    seconds = sum(cost.seconds for cost in costs.values())
    waiting = sum(cost.wait_seconds for cost in costs.values()) / seconds
    cores = facts.environment.usable_cores
    reason = f"{workers} can make {rates.workers:,.0f} samples/s"
    if waiting > 1 - 1 / _WORTH_IT:
        mostly = f"{STAGE_NAMES[longest]} takes {duration(costs[longest].seconds)} per sample"
        return f"{reason}, because they wait, not compute, for {waiting:.0%} of their time. {mostly}"
    return f"{reason}, and cannot use all {format_counted(math.ceil(cores or 1), 'core')}"


def _idle_share(facts: Facts) -> float | None:
    """Return the share of time in which workers had nothing to do. None if that is not what slows the loader down."""
    if facts.running is not None:
        idle = 1 - facts.running.busy_share
        return idle if facts.job.num_workers and idle > 1 - _IDLE else None
    tried = facts.trial()
    empty = facts.trial(is_empty=True)
    if tried is None or empty is None or tried.busy_share is None or tried.busy_share > _IDLE:
        return None
    if budget_bytes(facts) >= (roomy_bytes(facts) or 0.0) * facts.job.num_gpus:
        return None  # there are slots enough, but the trial was disturbed
    return 1 - tried.busy_share if tried.samples_per_second < _IDLE * empty.samples_per_second else None


def _contended(facts: Facts, rates: Rates) -> tuple[Bottleneck, str] | None:
    """Return what else takes the resources that the job lacks. None if nothing does."""
    found, cores = facts.environment.contention, facts.environment.usable_cores
    if found.swapped_bytes_per_second > _SWAPS_BYTES_PER_SECOND and found.memory_pressure > _TAKEN / 2:
        return Bottleneck.SWAPPING, (
            f"{format_bytes(found.swapped_bytes_per_second)} per second are swapped, and processes wait for memory for "
            f"{found.memory_pressure:.0%} of the time"
        )
    if cores is None or rates.without(Part.WORKERS, Part.CORES) < min(rates.workers, rates.cores):
        return None
    if found.throttled_share > _TAKEN:
        return Bottleneck.THROTTLED, (
            f"The quota of {counted_cores(cores)} is used up for {found.throttled_share:.0%} of the time"
        )
    if found.neighbour_cores > _TAKEN * cores and rates.cores < rates.workers:
        return Bottleneck.NEIGHBOURS, (f"{_taken_cores(found, cores)}. The job has {free_cores(facts):.1f} left")
    return None


def _taken_cores(found: Contention, cores: float) -> str:
    delayed = f", and workers had no core for {found.delayed_share:.0%} of their time" if found.delayed_share else ""
    return f"Processes outside the job keep {found.neighbour_cores:.1f} of {counted_cores(cores)} busy{delayed}"


def _notes(facts: Facts, rates: Rates, slowest: Bottleneck) -> Iterator[str]:
    found, cores = facts.environment.contention, facts.environment.usable_cores or math.inf
    if found.neighbour_cores > _TAKEN * cores and slowest is not Bottleneck.NEIGHBOURS:
        yield _taken_cores(found, cores)
    if found.throttled_share > _TAKEN and slowest is not Bottleneck.THROTTLED:
        yield f"The container's CPU quota was used up for {found.throttled_share:.0%} of the time"
    if found.memory_pressure > _TAKEN and slowest is not Bottleneck.SWAPPING:
        yield f"Processes waited for memory for {found.memory_pressure:.0%} of the time"
    if facts.running is not None and 0 < facts.running.served_share < _ALMOST_ALL:
        share = facts.running.served_share
        yield f"Servers made only {share:.0%} of the samples, and the workers here made the others"
    tried = facts.trial()
    if tried is None or math.isinf(rates.total):
        return
    measured = tried.samples_per_second * facts.job.num_gpus
    if 1 / _AGREE <= measured / rates.total <= _AGREE:
        return
    yield (
        f"The parts, measured one by one, would make {rates.total:,.0f} samples/s, but the trial made {measured:,.0f}: "
        "the load of this machine changes, or a part is not among those that were measured"
    )
