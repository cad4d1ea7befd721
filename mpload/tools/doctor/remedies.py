"""Lists the changes that would help, the cheapest first, with their gains."""

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from mpload.tools.doctor.facts import Cost, Findings, Temperature, Trial
from mpload.tools.doctor.model import Limit, needed_bytes, predict
from mpload.tools.doctor.verdict import Bottleneck, Verdict, needed_descriptors
from mpload.tools.remedy import Remedy
from mpload.units import format_bytes

__all__ = ["remedies", "resize_to"]

_MIN_GAIN = 1.1
_MAX_WORKERS = 64
_LARGEST_BATCH = 64
_GOOD_SHARE = 0.9
_OPEN_SECONDS = 30e-6  # CPU time to open and close a file of any size
_CROP_TO_SHORT_SIDE = 256 / 224
_BLOCKS = "shuffle=BlockShuffle(block_samples=256)"


def remedies(findings: Findings, verdict: Verdict) -> list[Remedy]:
    """Return the changes that are worth making, the cheapest first. Return none if data does not limit the job.

    A gain is capped by the next slowest stage and by the need. A measured gain replaces an estimated one.
    """
    if verdict.bottleneck is Bottleneck.CONSUMER:
        return []
    if not verdict.samples_per_second:
        return list(_ways_to_start(findings, verdict.bottleneck))
    before = predict(findings).total
    max_gain = max(1.0, findings.job.needed_rate / verdict.samples_per_second)
    found = []
    for remedy, after in _candidates(findings, verdict.bottleneck):
        can_be_tried = remedy.num_workers is not None or remedy.batch_size is not None
        measured = _measured_gain(findings, after) if can_be_tried else None
        gain = predict(after).total / before if measured is None else measured
        rated = replace(remedy, gain=min(gain, max_gain), is_measured=measured is not None)
        if rated.gain >= _MIN_GAIN:
            found.append(rated)
    return found


def resize_to(output_side: int) -> int:
    """Return the short side that images need for crops of `output_side` pixels."""
    return round(output_side * _CROP_TO_SHORT_SIDE)


_Candidate = tuple[Remedy, Findings]


def _candidates(findings: Findings, bottleneck: Bottleneck) -> Iterator[_Candidate]:
    yield from _more_workers(findings)
    yield from _larger_batches(findings)
    yield from _warm_cache(findings, bottleneck)
    yield from _sequential(findings)
    if findings.lookup.seconds:
        text = f"Visit neighbours together, whose lines are read from the index at once: {_BLOCKS}"
        yield Remedy(text=text, gain=1), replace(findings, lookup=Cost())
    yield from _rewritten(findings)
    yield from _resized(findings)
    yield from _kept(findings)
    yield from _cheaper_transform(findings)
    yield from _more_cores(findings)
    if findings.environment.device:
        yield Remedy(text=f"Decode on the {findings.environment.device}", gain=1), replace(findings, decode=Cost())


def _more_workers(findings: Findings) -> Iterator[_Candidate]:
    def with_workers(num_workers: int) -> Findings:
        return replace(findings, job=replace(findings.job, num_workers=num_workers))

    current = findings.job.num_workers
    numbers = [number for number in range(current, _MAX_WORKERS + 1) if _fits(with_workers(number))]
    chosen = _first_good(numbers, with_workers, enough=findings.job.needed_rate)
    if chosen is not None and chosen > current:
        text = f"Use {chosen} workers instead of {current}: num_workers={chosen}"
        yield Remedy(text=text, gain=1, num_workers=chosen), with_workers(chosen)


def _larger_batches(findings: Findings) -> Iterator[_Candidate]:
    def with_batch(batch_size: int) -> Findings:
        return replace(findings, job=replace(findings.job, batch_size=batch_size))

    current = findings.job.batch_size
    sizes = [current << power for power in range(7) if current << power <= _LARGEST_BATCH]
    sizes = [size for size in sizes if _fits(with_batch(size))]
    chosen = _first_good(sizes, with_batch, enough=findings.job.needed_rate)
    if chosen is not None and chosen > current:
        text = f"Use batches of {chosen} instead of {current}: batch_size={chosen}"
        yield Remedy(text=text, gain=1, batch_size=chosen), with_batch(chosen)


def _first_good(numbers: list[int], change: Callable[[int], Findings], *, enough: float) -> int | None:
    """Return the smallest number whose rate is enough, or close to the best rate."""
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
        yield Remedy(text="Read all files once before training, or wait: only the first epoch is slow", gain=1), warm


def _sequential(findings: Findings) -> Iterator[_Candidate]:
    in_sequence = findings.storage.rate(Temperature.COLD, 1, is_sequential=True)
    if in_sequence is not None and findings.samples.num_shards:
        after = _with_cold_rate(findings, in_sequence)
        yield Remedy(text=f"Read neighbours together: {_BLOCKS}", gain=1), after
    packed = findings.storage.packed_samples_per_second
    if packed is not None and not findings.samples.num_shards:
        text = f"Pack the files into shards with `{_pack_command(findings)}`, and read neighbours together: {_BLOCKS}"
        yield Remedy(text=text, gain=1), _with_cold_rate(findings, packed)


def _pack_command(findings: Findings, *options: str) -> str:
    """Return a command that packs the index into a folder beside it, quoted for a shell."""
    index = Path(findings.index_path)
    return shlex.join(["mpload", "pack", str(index), "-o", str(index.with_name(f"{index.stem}-packed")), *options])


def _with_cold_rate(findings: Findings, samples_per_second: float) -> Findings:
    storage = findings.storage
    rates = tuple(
        replace(rate, samples_per_second=max(rate.samples_per_second, samples_per_second))
        if rate.temperature is Temperature.COLD
        else rate
        for rate in storage.rates
    )
    return replace(findings, storage=replace(storage, rates=rates))


def _rewritten(findings: Findings) -> Iterator[_Candidate]:
    progressive = findings.progressive
    if progressive is not None:
        text = (
            f"Rewrite the {progressive.share:.0%} of the images that are progressive JPEGs as baseline ones, without "
            f"loss: `{_pack_command(findings, '--jpeg', 'baseline')}`"
        )
        yield Remedy(text=text, gain=1), replace(findings, decode=progressive.rewritten(findings.decode))


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
    sizes = f"{format_bytes(findings.samples.mean_bytes)} -> {format_bytes(findings.resized_bytes)} per sample"
    command = _pack_command(findings, "--resize-short", str(findings.resized_short))
    yield Remedy(text=f"Store images no larger than needed, {sizes}: `{command}`", gain=1), after


def _kept(findings: Findings) -> Iterator[_Candidate]:
    rates = predict(findings)
    if rates.limit is not Limit.STORAGE:
        return
    target = min(findings.job.needed_rate, rates.without(Limit.STORAGE))
    fraction = 1.0 if math.isinf(target) else 1 - rates.storage / target
    fraction = min(1.0, math.ceil(100 * fraction) / 100)
    if fraction > 0:
        text = (
            f"Cache {fraction:.0%} of the samples, {format_bytes(fraction * findings.samples.total_bytes)}, on a fast "
            f"disk: cache=PartialCache(FOLDER, fraction={fraction:.2f}). This helps from the second epoch on"
        )
        yield Remedy(text=text, gain=1), replace(findings, kept_share=fraction)


def _cheaper_transform(findings: Findings) -> Iterator[_Candidate]:
    seconds = findings.transform.seconds
    if seconds:
        text = f"Make the transform cheaper: it takes {seconds * 1e3:,.1f} ms per sample. The gain is with none at all"
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
        text = f"Raise the container's quota or affinity from {cores} to {host_cores} cores, and use as many workers"
        yield Remedy(text=text, gain=1), with_cores(host_cores)
    has_need = not math.isinf(job.needed_rate)
    wanted = math.ceil(cores * job.needed_rate / predict(findings).cores) if has_need else 2 * cores
    if wanted > max(cores, host_cores):
        yield Remedy(text=f"Use a machine with {wanted:,} cores, and as many workers", gain=1), with_cores(wanted)


def _ways_to_start(findings: Findings, bottleneck: Bottleneck) -> Iterator[Remedy]:
    """Yield the changes that let a job start."""
    if bottleneck is Bottleneck.DESCRIPTORS:
        needed = 2 * needed_descriptors(findings)
        yield Remedy(text=f"Raise the limit of open files: ulimit -n {max(needed, 1024)}", gain=math.inf)
        return
    job = findings.job
    loader_bytes = needed_bytes(findings)
    free_bytes = findings.environment.memory_free_bytes
    fixed_bytes = needed_bytes(replace(findings, job=replace(job, batch_size=1)))
    bytes_per_sample = (loader_bytes - fixed_bytes) / max(1, job.batch_size - 1)
    smaller = 1 + math.floor((free_bytes / 2 - fixed_bytes) / bytes_per_sample) if bytes_per_sample else 0
    if 1 <= smaller < job.batch_size:
        yield Remedy(text=f"Use smaller batches: batch_size={smaller}", gain=math.inf, batch_size=smaller)
    limit_bytes = findings.environment.memory_limit_bytes + 2 * loader_bytes - free_bytes
    yield Remedy(text=f"Raise the memory limit to {format_bytes(limit_bytes)}", gain=math.inf)


def _measured_gain(findings: Findings, changed: Findings) -> float | None:
    """Return the gain measured by trials with both settings. None if one of the trials is missing."""
    before, after = _trial_of(findings), _trial_of(changed)
    if before is None or after is None or before is after:
        return None
    return after.samples_per_second / before.samples_per_second


def _trial_of(findings: Findings) -> Trial | None:
    return findings.trial(findings.job.num_workers, findings.job.batch_size)
