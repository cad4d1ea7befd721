"""Lists the changes that would help, the cheapest first, each with its gain."""

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from mpload.judgement.causes import has_small_shards
from mpload.judgement.facts import Alternative, Change, Cost, Facts, Stage, StorageSpeed, Temperature
from mpload.judgement.model import Part, costs_of_worker, mostly_waits, needed_bytes, predict, roomy_bytes
from mpload.judgement.remedy import Bound, Remedy
from mpload.judgement.rescues import ways_to_run
from mpload.judgement.verdict import Verdict, budget_bytes, needed_descriptors
from mpload.judgement.words import Bottleneck
from mpload.memory.contention import Contention
from mpload.units import format_bytes

__all__ = ["fits", "remedies", "resize_to"]

_MIN_GAIN, _MAX_GAIN = 1.1, 1000.0
_MAX_WORKERS = 64
_LARGEST_BATCH = 64
_GOOD_SHARE = 0.9
_MAX_MORE_CORES = 16
_OPEN_SECONDS = 30e-6  # CPU time to open and close a file of any size
_CROP_TO_SHORT_SIDE = 256 / 224
_BLOCKS = "shuffle=BlockShuffle(block_samples=256, window_blocks=64)"


def remedies(facts: Facts, verdict: Verdict) -> list[Remedy]:
    """Return the changes that are worth making, the cheapest first. Return none if data does not limit the job.

    A gain is capped by the next slowest part and by the need. A measured gain replaces a predicted one.
    """
    if verdict.bottleneck is Bottleneck.CONSUMER:
        return []
    if not verdict.samples_per_second:
        return list(ways_to_run(facts, verdict.bottleneck))
    before = predict(facts).total
    need = facts.job.needed_rate
    max_gain = _MAX_GAIN if math.isinf(need) else max(1.0, need / verdict.samples_per_second)
    found = []
    for remedy, after in _candidates(facts, verdict.slowest):
        predicted = min(max_gain, max(remedy.gain, predict(after).total / before))
        can_be_tried = remedy.change is not None or after.job != facts.job
        measured = _measured_gain(facts, after, remedy.change) if can_be_tried else None
        if measured is None:
            why = next((trial.error for trial in after.trials_of(change=remedy.change) if trial.error), "")
            rated = replace(remedy, gain=predicted, not_tried=why if can_be_tried else "")
        else:
            rated = replace(remedy, gain=min(max_gain, measured), predicted_gain=predicted, bound=None)
        if rated.gain >= _MIN_GAIN:
            found.append(rated)
    return found


def resize_to(output_side: int) -> int:
    """Return the short side that images need for crops of `output_side` pixels."""
    return round(output_side * _CROP_TO_SHORT_SIDE)


_Candidate = tuple[Remedy, Facts]


def _candidates(facts: Facts, slowest: Bottleneck) -> Iterator[_Candidate]:
    hardware = [*_less_contention(facts, slowest), *_more_cores(facts)]
    is_contended = slowest in {Bottleneck.NEIGHBOURS, Bottleneck.SWAPPING, Bottleneck.THROTTLED}
    yield from hardware[:1] if is_contended else ()
    yield from _more_slots(facts, slowest)
    yield from _faster_servers(facts, slowest)
    yield from _more_workers(facts)
    yield from _larger_batches(facts)
    if slowest is Bottleneck.COLD_CACHE:
        warm = replace(facts, samples=replace(facts.samples, cached_share=1.0))
        yield Remedy(text="Read all files once before training, or wait: only the first epoch is slow"), warm
    yield from _together(facts)
    if facts.lookup.seconds and not facts.job.reads_blocks:
        text = f"Visit neighbours together, whose lines are read from the index at once: {_BLOCKS}"
        yield Remedy(text=text), replace(facts, lookup=Cost())
    yield from _smaller_samples(facts)
    yield from _cheaper_decoding(facts)
    yield from _kept(facts)
    yield from _cheaper_transform(facts)
    yield from hardware[1:] if is_contended else hardware
    if facts.environment.device and facts.decode.cpu_seconds > facts.decode.wait_seconds:
        yield (
            Remedy(text=f"Decode on the {facts.environment.device}", bound=Bound.AT_MOST),
            replace(facts, decode=Cost()),
        )


def _less_contention(facts: Facts, slowest: Bottleneck) -> Iterator[_Candidate]:
    found = facts.environment.contention
    alone = replace(facts, environment=replace(facts.environment, contention=Contention()))
    if slowest is Bottleneck.SWAPPING:
        text = "Make everything fit into memory: fewer workers, a smaller memory_budget, less in other processes"
        # Page faults, and pages that are evicted although they are needed soon, cost more than the waiting alone.
        yield Remedy(text=text, gain=1 / max(0.01, 1 - found.memory_pressure), bound=Bound.AT_LEAST), alone
    if found.neighbour_cores and slowest is not Bottleneck.THROTTLED:
        text = f"Stop or move the other processes, which keep {found.neighbour_cores:.1f} cores busy"
        yield Remedy(text=text), alone


def _gain_of_parts(facts: Facts) -> float | None:
    """Return the rate that the parts, measured one by one, would make, over that of the trial. None without a trial."""
    tried = facts.trial()
    return None if tried is None else predict(facts).total / (tried.samples_per_second * facts.job.num_gpus)


def _more_slots(facts: Facts, slowest: Bottleneck) -> Iterator[_Candidate]:
    if slowest is not Bottleneck.SLOTS:
        return
    running, enough_bytes = facts.running, roomy_bytes(facts)
    if running is not None or enough_bytes is None:
        busy_share = max(0.01, running.busy_share if running else 0.0)
        text = "Raise memory_budget, so that more batches are in flight, or use smaller batches"
        yield Remedy(text=text, gain=1 / busy_share, bound=Bound.AT_MOST), facts
        return
    budget = format_bytes(enough_bytes).replace(" ", "")
    text = f'Raise memory_budget to "{budget}", so that every worker has samples to make'
    yield Remedy(text=text, gain=_gain_of_parts(facts) or 1.0), facts


def _faster_servers(facts: Facts, slowest: Bottleneck) -> Iterator[_Candidate]:
    if slowest is not Bottleneck.SERVERS:
        return
    text = (
        "Add servers, or let their samples cost less, if they are busy: mpload_server_busy_seconds_total at /metrics "
        "then rises by mpload_server_workers each second. If they are not, use more workers here, or a faster network"
    )
    yield Remedy(text=text, bound=Bound.AT_MOST), replace(facts, storage=StorageSpeed())


def _more_workers(facts: Facts) -> Iterator[_Candidate]:
    current = facts.job.num_workers
    if current is None or facts.job.is_auto or facts.is_served:
        return
    chosen = _good_workers(facts, enough=facts.job.needed_rate)
    if chosen > current:
        text = f"Use {chosen} workers instead of {current}: num_workers={chosen}"
        is_bound = not facts.storage.rates and costs_of_worker(facts)[Stage.READ].wait_seconds > 0
        bound = Bound.AT_MOST if is_bound else None
        yield Remedy(text=text, num_workers=chosen, bound=bound), _with_workers(facts, chosen)


def _with_workers(facts: Facts, num_workers: int) -> Facts:
    return replace(facts, job=replace(facts.job, num_workers=num_workers))


def _good_workers(facts: Facts, *, enough: float = math.inf) -> int:
    """Return the smallest number of workers that is enough, or about as good as more of them."""
    current = facts.job.num_workers or 1
    numbers = [number for number in range(current, _MAX_WORKERS + 1) if fits(_with_workers(facts, number))]
    return _first_good(numbers, lambda number: _with_workers(facts, number), enough=enough) or current


def _larger_batches(facts: Facts) -> Iterator[_Candidate]:
    def with_batch(batch_size: int) -> Facts:
        return replace(facts, job=replace(facts.job, batch_size=batch_size))

    current = int(facts.job.batch_size)
    sizes = [current << power for power in range(7) if current << power <= _LARGEST_BATCH]
    sizes = [size for size in sizes if fits(with_batch(size))]
    chosen = _first_good(sizes, with_batch, enough=facts.job.needed_rate)
    if chosen is not None and chosen > current:
        text = f"Use batches of {chosen} instead of {current}: batch_size={chosen}"
        yield Remedy(text=text, batch_size=chosen), with_batch(chosen)


def _first_good(numbers: list[int], change: Callable[[int], Facts], *, enough: float) -> int | None:
    """Return the smallest number whose rate is enough, or close to the best rate."""
    rates = {number: predict(change(number)).total for number in numbers}
    best = max(rates.values(), default=0.0)
    return next((number for number, rate in rates.items() if rate >= min(enough, _GOOD_SHARE * best)), None)


def fits(facts: Facts) -> bool:
    """Whether a job may open its files, and have its memory."""
    max_descriptors = facts.environment.max_descriptors
    has_files = max_descriptors is None or needed_descriptors(facts) <= max_descriptors
    return has_files and needed_bytes(facts) <= budget_bytes(facts)


def _together(facts: Facts) -> Iterator[_Candidate]:
    """Yield the ways to read neighbours together."""
    if facts.job.reads_blocks or facts.is_served:
        return
    storage, is_sharded = facts.storage, facts.samples.num_shards > 0
    in_sequence = storage.rate(Temperature.COLD, 1, is_sequential=True)
    blocks = f"Read neighbours together: {_BLOCKS}"
    commands = f"with `{_pack_command(facts)}`, and read neighbours together: {_BLOCKS}"
    pack = f"Pack the files into shards {commands}"
    if has_small_shards(facts):
        yield Remedy(text=f"Write larger shards {commands}"), _without_opening(facts)
    elif is_sharded and in_sequence is not None:
        yield Remedy(text=blocks), _with_cold_rate(facts, in_sequence)
    elif not is_sharded and storage.packed_samples_per_second is not None:
        yield Remedy(text=pack), _with_cold_rate(facts, storage.packed_samples_per_second)
    elif not facts.samples.num_measured:
        text = blocks if is_sharded else pack
        read = Cost(cpu_seconds=storage.read.cpu_seconds)
        yield Remedy(text=text, bound=Bound.AT_MOST), replace(facts, storage=replace(storage, rates=(), read=read))


def _pack_command(facts: Facts, *options: str) -> str:
    """Return a command that packs the index into a folder beside it, quoted for a shell."""
    if facts.index_path is None:
        return " ".join(["mpload pack INDEX -o FOLDER", *options])
    index = Path(facts.index_path)
    return shlex.join(["mpload", "pack", str(index), "-o", str(index.with_name(f"{index.stem}-packed")), *options])


def _with_cold_rate(facts: Facts, samples_per_second: float) -> Facts:
    rates = tuple(
        replace(rate, samples_per_second=max(rate.samples_per_second, samples_per_second))
        if rate.temperature is Temperature.COLD
        else rate
        for rate in facts.storage.rates
    )
    return replace(facts, storage=replace(facts.storage, rates=rates))


def _without_opening(facts: Facts) -> Facts:
    """Return the facts if shards stay open. As many reads take place at once as before, but each takes less time."""
    storage = facts.storage
    alone = storage.rate(Temperature.COLD, 1) or 1.0
    read_seconds = max(_OPEN_SECONDS, 1 / alone - storage.open_seconds)
    warm = storage.rate(Temperature.WARM, 1)
    if warm is not None and warm < 2 * alone and storage.read.seconds:  # the page cache hardly helps, open files do
        read_seconds = min(read_seconds, storage.read.seconds)
    rates = tuple(
        replace(each, samples_per_second=each.samples_per_second / alone / read_seconds)
        for each in storage.rates
        if not each.is_sequential
    )
    return replace(facts, storage=replace(storage, rates=rates, open_seconds=0.0))


def _smaller_samples(facts: Facts) -> Iterator[_Candidate]:
    rates = predict(facts)
    if rates.limit is Part.BANDWIDTH and facts.samples.mean_bytes is not None and not facts.alternatives:
        target = min(facts.job.needed_rate, rates.without(Part.BANDWIDTH))
        max_bytes = facts.samples.mean_bytes * rates.bandwidth / target
        command = _pack_command(facts, "--resize-short", "256")
        text = f"Store samples of at most {format_bytes(max_bytes)} on average: `{command}`"
        yield Remedy(text=text), replace(facts, samples=replace(facts.samples, mean_bytes=max_bytes))


def _cheaper_decoding(facts: Facts) -> Iterator[_Candidate]:
    """Yield the measured ways to decode with less effort, the one that gains most first; or else say what to aim at."""
    rates = {each.change: predict(_changed(facts, each)).total for each in facts.alternatives}

    def order(chosen: Alternative) -> tuple[float, bool]:
        is_cached = chosen.change is Change.CACHED_RESIZED  # like smaller files, but only from the second epoch on
        rate = rates[chosen.change]
        return -(rates.get(Change.RESIZED, rate) if is_cached else rate), is_cached

    for chosen in sorted(facts.alternatives, key=order):
        remedy = Remedy(
            text=_words_of(facts, chosen), change=chosen.change, bound=Bound.AT_MOST if chosen.is_bound else None
        )
        yield remedy, _changed(facts, chosen)
    if facts.alternatives or facts.samples.num_measured or facts.decode.wait_seconds > facts.decode.cpu_seconds:
        return
    if not facts.decode.seconds:
        return
    rate, cores = facts.job.needed_rate, facts.environment.usable_cores
    is_known = cores is not None and not math.isinf(rate)
    limit = f", to at most {(cores or 0) / rate * 1e6:,.0f} us of a core per sample" if is_known else ""
    text = (
        f"Decode less{limit}: shrink images once with `{_pack_command(facts, '--resize-short', '256')}`, use "
        "RandomResizedCrop or ResizeCenterCrop, which decode only what they need, or do less in __getitem__"
    )
    yield Remedy(text=text, bound=Bound.AT_MOST), replace(facts, decode=Cost())


def _words_of(facts: Facts, chosen: Alternative) -> str:
    sizes = ""
    if chosen.mean_bytes is not None and facts.samples.mean_bytes is not None:
        sizes = f", {format_bytes(facts.samples.mean_bytes)} -> {format_bytes(chosen.mean_bytes)} per sample"
    match chosen.change:
        case Change.BASELINE:
            share = dict(facts.samples.formats).get("progressive JPEG", 1.0)
            return (
                f"Rewrite the {share:.0%} of the images that are progressive JPEGs as baseline ones, without loss: "
                f"`{_pack_command(facts, '--jpeg', 'baseline')}`"
            )
        case Change.RESIZED:
            return (
                f"Store images no larger than needed{sizes}: `{_pack_command(facts, '--resize-short', chosen.detail)}`"
            )
        case Change.CACHED_RESIZED:
            return (
                f'Keep smaller copies{sizes}: cache=PartialCache(FOLDER, fraction=1.0, what="resized"). This helps '
                "from the second epoch on"
            )
        case Change.NATIVE:
            return f"Decode with mpload's own decoder: decode={chosen.detail}"
        case _:  # a row index
            return f"Note where the rows of each JPEG begin: `mpload index --jpeg`, or row_index=True{chosen.detail}"


def _changed(facts: Facts, chosen: Alternative) -> Facts:
    read = facts.storage.read
    if chosen.read is not None:
        read = replace(read, cpu_seconds=min(read.cpu_seconds, chosen.read.cpu_seconds))
    return replace(
        facts,
        decode=chosen.decode,
        storage=replace(facts.storage, read=read),
        samples=replace(facts.samples, mean_bytes=chosen.mean_bytes or facts.samples.mean_bytes),
    )


def _kept(facts: Facts) -> Iterator[_Candidate]:
    rates = predict(facts)
    if facts.is_served:
        return
    if (
        not facts.storage.rates and facts.storage.read.wait_seconds
    ):  # a running loader that waits for an unknown storage
        text = "Keep samples on a fast disk: cache=PartialCache(FOLDER). This helps from the second epoch on"
        yield Remedy(text=text, bound=Bound.AT_MOST), replace(facts, storage=StorageSpeed())
    if rates.limit not in {Part.READS, Part.BANDWIDTH}:
        return
    target = min(facts.job.needed_rate, rates.without(Part.READS, Part.BANDWIDTH))
    fraction = 1.0 if math.isinf(target) else 1 - (1 - facts.kept_share) * rates.storage / target
    fraction = min(1.0, math.ceil(100 * fraction) / 100)
    if fraction > facts.kept_share:
        total_bytes = facts.samples.total_bytes
        size = "" if total_bytes is None else f", {format_bytes(fraction * total_bytes)},"
        text = (
            f"Cache {fraction:.0%} of the samples{size} on a fast disk: cache=PartialCache(FOLDER, "
            f"fraction={fraction:.2f}). This helps from the second epoch on"
        )
        yield Remedy(text=text, change=Change.CACHED, fraction=fraction), replace(facts, kept_share=fraction)


def _cheaper_transform(facts: Facts) -> Iterator[_Candidate]:
    cost = facts.transform
    if cost.seconds:
        takes = f"it takes {cost.seconds * 1e3:,.1f} ms per sample"
        text = f"Make the transform cheaper, or do it on the device (DevicePrefetcher(device_transform=...)): {takes}"
        if cost.wait_seconds > cost.cpu_seconds:
            text = f"Let the transform wait less: {takes}, most of which it waits"
        yield (
            Remedy(text=text, bound=Bound.AT_MOST),
            replace(facts, decode=facts.decode_alone or facts.decode, transform=Cost()),
        )


def _more_cores(facts: Facts) -> Iterator[_Candidate]:
    """Yield more cores. Their gain is that over as many workers as the present cores can use."""
    environment, job = facts.environment, facts.job
    cores, host_cores = environment.usable_cores, environment.host_cores or 0
    if cores is None or predict(facts).limit in {Part.READS, Part.BANDWIDTH, Part.DEVICE}:
        return
    if mostly_waits(facts):
        return
    costs = costs_of_worker(facts).values()
    workers_per_core = sum(cost.seconds for cost in costs) / max(1e-12, sum(cost.cpu_seconds for cost in costs))

    def candidate(text: str, num_cores: int) -> _Candidate:
        there = replace(environment, usable_cores=num_cores)
        before, after = (
            predict(replace(facts, environment=each, job=replace(job, num_workers=None))).total
            for each in (environment, there)
        )
        num_workers = math.ceil(num_cores * workers_per_core / job.num_gpus)
        if job.num_workers is not None and not job.is_auto and num_workers > job.num_workers:
            text += f", with num_workers={num_workers}"
        return Remedy(text=text, gain=after / before if before else 1.0), facts

    if host_cores > cores:
        yield candidate(f"Raise the container's quota or affinity from {cores:.3g} to {host_cores} cores", host_cores)
    has_need = not math.isinf(job.needed_rate)
    wanted = math.ceil(cores * job.needed_rate / predict(facts).cores) if has_need else math.ceil(2 * cores)
    wanted = min(wanted, math.ceil(_MAX_MORE_CORES * cores))
    if wanted > max(cores, host_cores):
        yield candidate(f"Use a machine with {wanted:,} cores", wanted)


def _measured_gain(facts: Facts, after: Facts, change: Change | None) -> float | None:
    """Return the gain measured by trials with both settings. None if one of the trials is missing."""
    before, changed = facts.rates_of_trials(), after.rates_of_trials(change=change)
    return median(changed) / median(before) if before and changed else None
