"""What would help, the cheapest first, and by how much."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from mpload.tools.doctor.facts import Cost, Findings, Temperature, Trial
from mpload.tools.doctor.model import Limit, needed_bytes, predict
from mpload.tools.doctor.verdict import Bottleneck, Verdict, needed_descriptors
from mpload.tools.remedy import Remedy
from mpload.units import format_bytes

__all__ = ["remedies", "resize_to"]

_WORTH_IT = 1.1
_MOST_WORKERS = 64
_LARGEST_BATCH = 64
_GOOD_SHARE = 0.9
_OPEN_SECONDS = 30e-6  # of a core, for opening and closing a file, however small
_CROP_TO_SHORT_SIDE = 256 / 224


def remedies(findings: Findings, verdict: Verdict) -> list[Remedy]:
    """Return the changes that are worth it, the cheapest first; none where nothing limits.

    A gain ends where the next stage limits, or where the need is met. What a trial has shown takes the place of what
    was reckoned.
    """
    if verdict.bottleneck is Bottleneck.CONSUMER:
        return []
    if not verdict.samples_per_second:
        return list(_limits(findings, verdict.bottleneck))
    before = predict(findings).total
    most = max(1.0, findings.job.needed_rate / verdict.samples_per_second)
    found = []
    for remedy, after in _candidates(findings, verdict.bottleneck):
        is_tried = remedy.num_workers is not None or remedy.batch_size is not None
        tried = _tried(findings, after) if is_tried else None
        gain = predict(after).total / before if tried is None else tried
        made = replace(remedy, gain=min(gain, most), is_measured=tried is not None)
        if made.gain >= _WORTH_IT:
            found.append(made)
    return found


def resize_to(output_side: int) -> int:
    """Return the short side that images should have for crops of `output_side` pixels."""
    return round(output_side * _CROP_TO_SHORT_SIDE)


_Candidate = tuple[Remedy, Findings]


def _candidates(findings: Findings, bottleneck: Bottleneck) -> Iterator[_Candidate]:
    yield from _more_workers(findings)
    yield from _larger_batches(findings)
    yield from _warm_cache(findings, bottleneck)
    yield from _sequential(findings)
    yield from _resized(findings)
    yield from _kept(findings)
    yield from _cheaper_transform(findings)
    yield from _more_cores(findings)
    if findings.environment.device:
        yield Remedy(text=f"decode on the {findings.environment.device}", gain=1), replace(findings, decode=Cost())


def _more_workers(findings: Findings) -> Iterator[_Candidate]:
    def with_workers(num_workers: int) -> Findings:
        return replace(findings, job=replace(findings.job, num_workers=num_workers))

    now = findings.job.num_workers
    numbers = [number for number in range(now, _MOST_WORKERS + 1) if _fits(with_workers(number))]
    chosen = _first_good(numbers, with_workers, enough=findings.job.needed_rate)
    if chosen is not None and chosen > now:
        text = f"{chosen} workers in place of {now}: num_workers={chosen}"
        yield Remedy(text=text, gain=1, num_workers=chosen), with_workers(chosen)


def _larger_batches(findings: Findings) -> Iterator[_Candidate]:
    def with_batch(batch_size: int) -> Findings:
        return replace(findings, job=replace(findings.job, batch_size=batch_size))

    now = findings.job.batch_size
    sizes = [now << power for power in range(7) if now << power <= _LARGEST_BATCH]
    sizes = [size for size in sizes if _fits(with_batch(size))]
    chosen = _first_good(sizes, with_batch, enough=findings.job.needed_rate)
    if chosen is not None and chosen > now:
        text = f"batches of {chosen} in place of {now}: batch_size={chosen}"
        yield Remedy(text=text, gain=1, batch_size=chosen), with_batch(chosen)


def _first_good(numbers: list[int], change: Callable[[int], Findings], *, enough: float) -> int | None:
    """Return the smallest number that gives enough, or nearly what the best does."""
    rates = {number: predict(change(number)).total for number in numbers}
    best = max(rates.values(), default=0.0)
    return next((number for number, rate in rates.items() if rate >= min(enough, _GOOD_SHARE * best)), None)


def _fits(findings: Findings) -> bool:
    environment = findings.environment
    return (
        2 * needed_bytes(findings) <= environment.memory_free_bytes
        and needed_descriptors(findings) <= environment.max_descriptors
    )


def _warm_cache(findings: Findings, bottleneck: Bottleneck) -> Iterator[_Candidate]:
    if bottleneck is Bottleneck.COLD_CACHE:
        warm = replace(findings, samples=replace(findings.samples, cached_share=1.0))
        yield Remedy(text="nothing after the first epoch; to spare that one, read the files once before", gain=1), warm


def _sequential(findings: Findings) -> Iterator[_Candidate]:
    in_sequence = findings.storage.rate(Temperature.COLD, 1, is_sequential=True)
    if in_sequence is not None and findings.samples.num_shards:
        after = _with_cold_rate(findings, in_sequence)
        yield Remedy(text="read neighbours together: shuffle=BlockShuffle(block_samples=256)", gain=1), after
    packed = findings.storage.packed_samples_per_second
    if packed is not None and not findings.samples.num_shards:
        text = "pack the files into shards and read neighbours together: `mpload pack`, shuffle=BlockShuffle(...)"
        yield Remedy(text=text, gain=1), _with_cold_rate(findings, packed)


def _with_cold_rate(findings: Findings, samples_per_second: float) -> Findings:
    storage = findings.storage
    rates = tuple(
        replace(rate, samples_per_second=max(rate.samples_per_second, samples_per_second))
        if rate.temperature is Temperature.COLD
        else rate
        for rate in storage.rates
    )
    return replace(findings, storage=replace(storage, rates=rates))


def _resized(findings: Findings) -> Iterator[_Candidate]:
    if findings.resized_decode is None or findings.resized_bytes is None:
        return
    read = findings.storage.read
    smaller_share = findings.resized_bytes / findings.samples.mean_bytes
    cpu_seconds = min(read.cpu_seconds, max(_OPEN_SECONDS, smaller_share * read.cpu_seconds))
    after = replace(
        findings,
        decode=findings.resized_decode,
        storage=replace(findings.storage, read=replace(read, cpu_seconds=cpu_seconds)),
        samples=replace(findings.samples, mean_bytes=findings.resized_bytes),
    )
    smaller = f"{format_bytes(findings.samples.mean_bytes)} -> {format_bytes(findings.resized_bytes)} a sample"
    yield Remedy(text=f"store images no larger than needed: `mpload pack --resize-short`, {smaller}", gain=1), after


def _kept(findings: Findings) -> Iterator[_Candidate]:
    rates = predict(findings)
    if rates.limit is not Limit.STORAGE:
        return
    target = min(findings.job.needed_rate, rates.without(Limit.STORAGE))
    fraction = 1.0 if math.isinf(target) else 1 - rates.storage / target
    fraction = min(1.0, math.ceil(100 * fraction) / 100)
    if fraction > 0:
        text = (
            f"keep {fraction:.0%} of the samples, {format_bytes(fraction * findings.samples.total_bytes)}, on a fast "
            f"disk: cache=PartialCache(folder, fraction={fraction:.2f}); from the second epoch on"
        )
        yield Remedy(text=text, gain=1), replace(findings, kept_share=fraction)


def _cheaper_transform(findings: Findings) -> Iterator[_Candidate]:
    seconds = findings.transform.seconds
    if seconds:
        text = f"a cheaper transform: it takes {seconds * 1e3:,.1f} ms a sample; the gain is that of none at all"
        yield Remedy(text=text, gain=1), replace(findings, transform=Cost())


def _more_cores(findings: Findings) -> Iterator[_Candidate]:
    environment, job = findings.environment, findings.job
    if predict(findings).limit is Limit.STORAGE:
        return
    cores, host_cores = environment.usable_cores, environment.host_cores

    def with_cores(num_cores: int) -> Findings:
        num_workers = max(job.num_workers, -(-num_cores // job.num_gpus))
        return replace(
            findings,
            environment=replace(environment, usable_cores=num_cores, host_cores=max(host_cores, num_cores)),
            job=replace(job, num_workers=num_workers),
        )

    if host_cores > cores:
        text = f"raise the container's quota or affinity from {cores} to {host_cores} cores, with as many workers"
        yield Remedy(text=text, gain=1), with_cores(host_cores)
    has_need = not math.isinf(job.needed_rate)
    wanted = math.ceil(cores * job.needed_rate / predict(findings).cores) if has_need else 2 * cores
    if wanted > max(cores, host_cores):
        yield Remedy(text=f"a machine with {wanted:,} cores, with as many workers", gain=1), with_cores(wanted)


def _limits(findings: Findings, bottleneck: Bottleneck) -> Iterator[Remedy]:
    """Yield what lets a job start."""
    if bottleneck is Bottleneck.DESCRIPTORS:
        needed = 2 * needed_descriptors(findings)
        yield Remedy(text=f"raise the limit of open files: ulimit -n {max(needed, 1024)}", gain=math.inf)
        return
    job = findings.job
    needed_now = 2 * needed_bytes(findings)
    free = findings.environment.memory_free_bytes
    fixed = needed_bytes(replace(findings, job=replace(job, batch_size=1)))
    sample = (needed_bytes(findings) - fixed) / max(1, job.batch_size - 1)
    smaller = 1 + math.floor((free / 2 - fixed) / sample) if sample else 0
    if 1 <= smaller < job.batch_size:
        yield Remedy(text=f"smaller batches: batch_size={smaller}", gain=math.inf, batch_size=smaller)
    more = needed_now - free
    limit = findings.environment.memory_limit_bytes + more
    yield Remedy(text=f"raise the memory limit to {format_bytes(limit)}", gain=math.inf)


def _tried(findings: Findings, after: Findings) -> float | None:
    """Return the gain that a trial with the changed numbers has shown, where one was made."""
    now = _trial_of(findings)
    then = _trial_of(after)
    if now is None or then is None or now is then:
        return None
    return then.samples_per_second / now.samples_per_second


def _trial_of(findings: Findings) -> Trial | None:
    return findings.trial(findings.job.num_workers, findings.job.batch_size)
