"""Finds the cause of a slow stage: why decoding or the storage limits a job."""

import math

from mpload.judgement.facts import Alternative, Change, Facts, Stage, Temperature
from mpload.judgement.model import cached_share, cold_rate, costs_of_worker, hit_share
from mpload.judgement.words import STAGE_NAMES, Bottleneck, duration
from mpload.units import format_bytes, format_counted

__all__ = ["best_alternative", "has_small_shards", "slow_stage", "slow_storage"]

_MUCH_CHEAPER = 0.67
_CACHE_MATTERS = 0.1
_HELPS = 2.0
_THRASH_BYTES_PER_SECOND = 4 << 20


def slow_stage(facts: Facts, name: str) -> tuple[Bottleneck, str]:
    """Return why a stage of the workers limits the job, and the figures."""
    costs = costs_of_worker(facts)
    seconds, total_seconds = costs[name].seconds, sum(cost.seconds for cost in costs.values())
    what = "Having samples made by servers" if name == Stage.READ and facts.is_served else STAGE_NAMES[name]
    takes = f"{what} takes {duration(seconds)} of a worker's {duration(total_seconds)} per sample"
    if costs[name].wait_seconds > 0.5 * seconds:
        takes += f", and waits for {costs[name].wait_seconds / seconds:.0%} of that"
    match name:
        case "read" if facts.running is not None and facts.is_served:
            speed = f"{format_bytes(facts.running.served_bytes_per_second)}/s"
            return Bottleneck.SERVERS, f"{takes}. They made {facts.running.served_share:.0%} of the samples, at {speed}"
        case "read":
            again = 0.0 if facts.running is None else facts.running.refaulted_bytes_per_second
            if again > _THRASH_BYTES_PER_SECOND:
                dropped = (
                    f"{format_bytes(again)} per second had to be read again because the page cache had dropped them"
                )
                return Bottleneck.PAGE_CACHE, f"{takes}. {dropped}"
            return Bottleneck.STORAGE, takes
        case "lookup":
            return Bottleneck.INDEX, f"{takes}. Neighbours share their lookups, so BlockShuffle needs none of this"
        case "transform":
            return Bottleneck.TRANSFORM, takes
        case "transport" if _is_small(facts):
            held = format_counted(int(facts.job.batch_size), "sample")
            return Bottleneck.BATCH_SIZE, f"{takes}. Part of this is a cost per batch, and a batch holds only {held}"
        case "transport":
            return Bottleneck.TRANSPORT, takes
    return _slow_decode(facts, takes)


def best_alternative(facts: Facts) -> Alternative | None:
    """Return the cheapest way to decode the same samples that is much cheaper than today's. None if there is none."""
    found = [each for each in facts.alternatives if each.decode.seconds < _MUCH_CHEAPER * facts.decode.seconds]
    return min(found, key=lambda each: each.decode.seconds, default=None)


def _slow_decode(facts: Facts, takes: str) -> tuple[Bottleneck, str]:
    best = best_alternative(facts)
    if best is None:
        return Bottleneck.DECODE, takes
    shares = dict(facts.samples.formats)
    changes = {each.change for each in facts.alternatives if each.decode.seconds < _MUCH_CHEAPER * facts.decode.seconds}
    factor = f"{facts.decode.seconds / best.decode.seconds:.1f} times as long as"
    progressive = shares.get("progressive JPEG", 0.0)
    other = max((name for name in shares if "JPEG" not in name), key=lambda name: shares[name], default="")
    if Change.NATIVE in changes:
        native = next(each for each in facts.alternatives if each.change is Change.NATIVE)
        factor = f"{facts.decode.seconds / native.decode.seconds:.1f} times as long as"
        return Bottleneck.SLOW_DECODER, f"{takes}. That is {factor} {native.detail} takes for the same bytes"
    if Change.BASELINE in changes:
        return Bottleneck.PROGRESSIVE, f"{takes}. {progressive:.0%} of the images are progressive JPEGs"
    if best.change is Change.ROW_INDEX:
        return Bottleneck.DECODE, f"{takes}. With a row index it would take {duration(best.decode.seconds)}"
    if shares.get(other, 0.0) > 1 - _MUCH_CHEAPER:
        return (
            Bottleneck.FORMAT,
            f"{takes}. {shares[other]:.0%} of the images are {other}, which takes {factor} small JPEGs",
        )
    short = facts.samples.mean_short_side
    side = f"The short side of the images is {short:,.0f} pixels on average. " if short else ""
    return Bottleneck.LARGE_IMAGES, f"{takes}. {side}Shrunk images would take {duration(best.decode.seconds)}"


def has_small_shards(facts: Facts) -> bool:
    """Whether opening shards takes longer than reading them, even if neighbours are read together."""
    cold, opening_seconds = facts.storage.rate(Temperature.COLD, 1), facts.storage.open_seconds
    if not facts.samples.samples_per_shard or not cold:
        return False
    return opening_seconds / facts.samples.samples_per_shard > max(0.0, 1 / cold - opening_seconds)


def _is_small(facts: Facts) -> bool:
    """Whether larger batches would have a much lower transport cost per sample."""
    empty = [trial for trial in facts.trials if trial.is_empty and trial.samples_per_second]
    current = facts.trial(is_empty=True)
    return current is not None and any(
        trial.batch_size > current.batch_size and trial.samples_per_second > 1.3 * current.samples_per_second
        for trial in empty
    )


def slow_storage(facts: Facts) -> tuple[Bottleneck, str]:
    """Return why the storage limits the job, and the figures."""
    storage, job = facts.storage, facts.job
    concurrency = job.total_workers * storage.reads_per_worker
    readers = "" if math.isinf(concurrency) else f" to {format_counted(int(concurrency), 'concurrent reader')}"
    rate = f"The storage delivers {cold_rate(facts, concurrency) or 0.0:,.0f} samples/s{readers}"
    if job.num_jobs > 1:
        rate += f", shared by {job.num_jobs} jobs"
    if has_small_shards(facts):
        opening = f"opening a shard takes {duration(storage.open_seconds)}"
        return Bottleneck.SMALL_SHARDS, (
            f"{rate}. Shards hold {facts.samples.samples_per_shard:.3g} samples each, and {opening}"
        )
    cold_alone, warm_alone = storage.rate(Temperature.COLD, 1), storage.rate(Temperature.WARM, 1)
    if cold_alone is not None and warm_alone is not None and warm_alone < _HELPS * cold_alone:
        first, second = (f"{1e3 / alone:,.2f} ms" for alone in (cold_alone, warm_alone))
        return Bottleneck.STORAGE, f"{rate}. The page cache helps little: a first read takes {first}, the next {second}"
    total_bytes = facts.samples.total_bytes
    if total_bytes is None:
        return Bottleneck.STORAGE, rate
    share, size = cached_share(facts), format_bytes(total_bytes)
    if share >= 1:
        return Bottleneck.COLD_CACHE, (
            f"{rate}. The dataset of {size} fits into memory, and {facts.samples.cached_share or 0.0:.0%} of it is "
            "cached: only the first epoch is slow"
        )
    fits = f"{share:.0%} of the {size} fit into memory"
    if share >= _CACHE_MATTERS:
        return Bottleneck.PAGE_CACHE, (
            f"{rate}. Only {fits}, and a shuffled epoch finds {hit_share(share):.0%} of its samples there"
        )
    return Bottleneck.STORAGE, f"{rate}. Only {fits}"
