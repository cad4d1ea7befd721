"""Measures the cost of samples, one after the other in this process: read, decode, transform."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpload.errors import ArgumentError, MploadError, SampleError
from mpload.images.baseline import SymbolCounts
from mpload.images.image import open_image
from mpload.images.jpeg import Jpeg
from mpload.images.jpeg_header import is_progressive
from mpload.index.index import Index, Record
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.samples.transforms import adapt_transform
from mpload.storage.ranges import Span
from mpload.tools.doctor.facts import Cost, Progressive, Samples
from mpload.tools.doctor.remedies import resize_to
from mpload.tools.doctor.storage import Files, ReadTime
from mpload.tools.pack.options import PackOptions, stored_as
from mpload.units import format_counted

__all__ = ["SampleCosts", "measure_samples"]

_MAX_SAMPLES = 256
_MIN_SAMPLES = 4
_WARM_UP_SAMPLES = 2  # the first calls of a decoder fill its tables
_MAX_CHANGED = 24
_MUCH_LARGER = 1.5
_RESIZED_SHARE, _REWRITTEN_SHARE = 0.2, 0.1
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """The measured costs."""

    samples: Samples
    read: Cost
    """The cost of reading from the page cache."""
    decode: Cost
    transform: Cost
    resized_short: int | None
    resized_decode: Cost | None
    resized_bytes: float | None
    progressive: Progressive | None
    read_times: tuple[ReadTime, ...]


class _Stopwatch:
    """Wraps a callable, and records the CPU time (of all threads of this process) and the waiting time of each call.

    Time in which the thread was runnable but had no core counts as neither.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function  # lets `inspect.signature` see the original
        self.cpu: list[float] = []
        self.wait: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        delayed_ns = _run_delay_ns()
        started_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        result = self.__wrapped__(*arguments, **named)
        cpu_ns, took_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - started_ns
        delayed_ns = _run_delay_ns() - delayed_ns
        self.cpu.append(cpu_ns * 1e-9)
        self.wait.append(max(0, took_ns - cpu_ns - delayed_ns) * 1e-9)
        return result

    def cost(self, num_samples: int) -> Cost:
        """Return the mean cost of a sample. If there are enough calls, the first ones are warm-up and do not count."""
        if not self.cpu:
            return Cost()
        skipped = _WARM_UP_SAMPLES if len(self.cpu) > 2 * _WARM_UP_SAMPLES else 0
        per_sample = len(self.cpu) / max(1, num_samples)  # a sample may have several sources
        return Cost(
            cpu_seconds=per_sample * float(np.mean(self.cpu[skipped:])),
            wait_seconds=per_sample * float(np.mean(self.wait[skipped:])),
        )


@dataclass(slots=True)
class _Found:
    read_times: list[ReadTime] = field(default_factory=list)
    output_bytes: list[int] = field(default_factory=list)
    short_sides: list[int] = field(default_factory=list)
    originals: list[tuple[Record, bytes]] = field(default_factory=list)
    num_failed: int = 0
    first_failure: str = ""
    num_progressive: int = 0
    progressive: list[tuple[Record, bytes]] = field(default_factory=list)


def measure_samples(
    index: Index,
    files: Files,
    *,
    decode: Callable[..., Any],
    transform: Callable[..., Any] | None,
    seconds: float,
    seed: int,
) -> SampleCosts:
    """Make random samples of the index for about `seconds`, and measure their costs.

    Raises:
        SampleError: None of the samples could be made.
    """
    read = _Stopwatch(files.reader())
    watched_decode = _Stopwatch(decode)
    watched_transform = None if transform is None else _Stopwatch(_adapted(transform))
    pipeline = Pipeline(index=index, decode=watched_decode, transform=watched_transform, policy=ErrorPolicy())
    records = _records(index, seed=seed)
    cached = files.cached_share(records)
    found = _Found()
    deadline = time.monotonic() + (1 - _RESIZED_SHARE - _REWRITTEN_SHARE) * seconds
    for record in records:
        try:
            _make(record, files, pipeline, read, found)
        except (MploadError, OSError) as error:
            found.num_failed += 1
            found.first_failure = found.first_failure or str(error)
        if time.monotonic() > deadline and len(found.output_bytes) >= _MIN_SAMPLES:
            break
    if not found.output_bytes:
        raise SampleError(
            f"{index.path}: none of {format_counted(found.num_failed, 'sample')} could be made: {found.first_failure}"
        )
    num_made = len(found.output_bytes)
    short = _short_side_of_resized(pipeline, found)
    resized_decode, resized_bytes = _resized(pipeline, decode, found, short, seconds=_RESIZED_SHARE * seconds)
    return SampleCosts(
        samples=Samples(
            num_samples=len(index),
            num_measured=num_made,
            mean_bytes=max(1.0, float(np.mean([item.num_bytes for item in found.read_times]))),
            output_bytes=max(1.0, float(np.mean(found.output_bytes))),
            num_failed=found.num_failed,
            first_failure=found.first_failure,
            mean_short_side=float(np.mean(found.short_sides)) if found.short_sides else None,
            cached_share=cached,
            num_shards=len({cell.path for record in records for cell in record.cells if isinstance(cell, Span)}),
        ),
        read=read.cost(len(found.read_times)),
        decode=watched_decode.cost(num_made),
        transform=Cost() if watched_transform is None else watched_transform.cost(num_made),
        resized_short=None if resized_decode is None else short,
        resized_decode=resized_decode,
        resized_bytes=resized_bytes,
        progressive=_progressive(pipeline, decode, found, seconds=_REWRITTEN_SHARE * seconds),
        read_times=tuple(found.read_times),
    )


def _adapted(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Return the transform as a callable of an array and `rng`."""
    adapted = adapt_transform(transform)

    def with_rng(array: Any, rng: np.random.Generator) -> Any:
        return adapted(array, rng)

    return with_rng


def _records(index: Index, *, seed: int) -> list[Record]:
    ids = np.random.default_rng(seed).permutation(min(len(index), _MAX_SAMPLES))
    if len(index) > _MAX_SAMPLES:
        ids = np.random.default_rng(seed).integers(len(index), size=_MAX_SAMPLES)
    return index.records(ids)


def _make(record: Record, files: Files, pipeline: Pipeline, read: _Stopwatch, found: _Found) -> None:
    files.drop(record)
    started = time.perf_counter()
    data = read.__wrapped__(record)
    cold_seconds = time.perf_counter() - started
    started = time.perf_counter()
    read(record)
    warm_seconds = time.perf_counter() - started
    num_bytes = sum(map(len, data))
    found.read_times.append(ReadTime(num_bytes=num_bytes, cold_seconds=cold_seconds, warm_seconds=warm_seconds))
    made = pipeline.sample(record, seed=0, epoch=0)
    assert made is not None, "the error policy raises"
    values = [made[1][number] for number in pipeline.sources]
    found.output_bytes.append(sum(_size_of(value) for value in values))
    for source in data:
        with suppress(MploadError):
            image = open_image(source)
            found.short_sides.append(min(image.height, image.width))
            if isinstance(image, Jpeg) and is_progressive(source):
                found.num_progressive += 1
                found.progressive.append((record, source))
    if len(found.originals) < _MAX_CHANGED:
        found.originals.append((record, data[0]))
    del found.progressive[_MAX_CHANGED:]


def _short_side_of_resized(pipeline: Pipeline, found: _Found) -> int | None:
    """Return the short side to which images could be shrunk. None if they are not much larger than that."""
    shape = pipeline.output_shape
    if not shape or not found.short_sides or len(pipeline.sources) != 1:
        return None
    short = resize_to(min(shape[:2]))
    return short if float(np.mean(found.short_sides)) >= _MUCH_LARGER * short else None


def _resized(
    pipeline: Pipeline, decode: Callable[..., Any], found: _Found, short: int | None, *, seconds: float
) -> tuple[Cost | None, float | None]:
    """Shrink images as `mpload pack --resize-short` would. Return the cost of decoding them, and their mean size."""
    if short is None:
        return None, None
    watched = _Stopwatch(decode)
    cache = _OneValueCache()
    small = Pipeline(index=pipeline.index, decode=watched, policy=ErrorPolicy(), cache=cache)
    sizes = []
    deadline = time.monotonic() + seconds
    options = PackOptions(resize_short=short)
    for record, data in found.originals:
        with suppress(MploadError):
            smaller = stored_as(data, options)[1]
            sizes.append(len(smaller))
            cache.data = smaller
            small.sample(record, seed=0, epoch=0)
        if time.monotonic() > deadline and len(sizes) > 2 * _WARM_UP_SAMPLES:
            break
    return (watched.cost(len(sizes)), float(np.mean(sizes))) if sizes else (None, None)


def _progressive(
    pipeline: Pipeline, decode: Callable[..., Any], found: _Found, *, seconds: float
) -> Progressive | None:
    """Rewrite progressive JPEGs as `mpload pack --jpeg baseline` would, and compare the times to decode them."""
    if not found.progressive or len(pipeline.sources) != 1:
        return None
    try:
        counts = SymbolCounts()
    except ArgumentError:  # the native module was not built
        return None
    for _, data in found.progressive:
        counts.add(data)
    tables = counts.tables()
    watched = [_Stopwatch(decode), _Stopwatch(decode)]
    cache = _OneValueCache()
    pipelines = [Pipeline(index=pipeline.index, decode=each, policy=ErrorPolicy(), cache=cache) for each in watched]
    deadline = time.monotonic() + seconds
    for number, (record, data) in enumerate(found.progressive):
        with suppress(MploadError):
            for cache.data, each in zip((data, tables.rewrite(data)), pipelines, strict=True):
                each.sample(record, seed=0, epoch=0)
        if time.monotonic() > deadline and number > 2 * _WARM_UP_SAMPLES:
            break
    before, after = (each.cost(len(each.cpu)).seconds for each in watched)
    if not after:
        return None
    return Progressive(share=found.num_progressive / len(found.short_sides), slowdown=before / after)


class _OneValueCache:
    """A cache that returns `data` for every sample."""

    def __init__(self) -> None:
        self.data = b""

    def read(self, sample_id: int, paths: object, read: object) -> list[bytes]:
        del sample_id, paths, read
        return [self.data]

    def has(self, sample_id: int) -> bool:
        del sample_id
        return True


def _size_of(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) else len(value)


def _run_delay_ns() -> int:
    """Return how long this thread has waited for a core so far. 0 if the kernel keeps no such statistics."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, IndexError):
        return 0
