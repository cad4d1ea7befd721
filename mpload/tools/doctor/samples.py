"""Measures the cost of samples, one after the other in this process: read, decode, transform."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mpload.errors import FAILURES, ArgumentError, MploadError, SampleError, cause_of
from mpload.images.image import open_image
from mpload.index.index import Record
from mpload.judgement.facts import Cost, Samples
from mpload.samples.cache.compact import compact
from mpload.samples.counts import DECODE_NS, TRANSFORM_NS
from mpload.samples.leaves import template_of
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorAction, ErrorPolicy
from mpload.samples.transforms import adapt_transform
from mpload.storage.ranges import Span
from mpload.tools.doctor.alternatives import Decoding, format_of, measure_decoding
from mpload.tools.doctor.stopwatch import Stopwatch
from mpload.tools.doctor.storage import Files, ReadTime
from mpload.units import format_counted

__all__ = ["SampleCosts", "measure_items", "measure_samples"]

_MAX_SAMPLES = 256
_MIN_SAMPLES = 4
_MAX_ORIGINALS = 24
_MEASURED_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """The measured costs."""

    samples: Samples
    decoding: Decoding
    read: Cost = field(default_factory=Cost)
    """The cost of reading from the page cache."""
    transform: Cost = field(default_factory=Cost)
    read_times: tuple[ReadTime, ...] = ()


@dataclass(slots=True)
class _Found:
    read_times: list[ReadTime] = field(default_factory=list)
    output_bytes: list[int] = field(default_factory=list)
    shapes: set[tuple[tuple[int, ...], str] | None] = field(default_factory=set)
    decoded_shapes: set[tuple[int, ...] | None] = field(default_factory=set)
    short_sides: list[int] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    originals: list[bytes] = field(default_factory=list)
    """What the decoder got for the first samples."""
    num_failed: int = 0
    first_failure: str = ""

    def failed(self, error: BaseException, *, sample: str = "") -> None:
        """Count a sample that cannot be made."""
        self.num_failed += 1
        self.first_failure = self.first_failure or f"{sample}{cause_of(error)}"

    def made(self, value: Any) -> None:
        """Note the form of a sample."""
        self.output_bytes.append(_size_of(value))
        self.shapes.add((tuple(value.shape), str(value.dtype)) if isinstance(value, np.ndarray) else None)

    @property
    def form(self) -> tuple[tuple[int, ...] | None, str]:
        """The shape and the dtype of all samples. None if they vary."""
        (form,) = self.shapes if len(self.shapes) == 1 else (None,)
        return form or (None, "uint8")

    def samples(self, **known: Any) -> Samples:
        """Return what the samples have in common."""
        shape, dtype = self.form
        formats = {name: self.formats.count(name) / len(self.formats) for name in sorted(set(self.formats))}
        return Samples(
            num_measured=len(self.output_bytes),
            output_bytes=max(1.0, float(np.mean(self.output_bytes))),
            output_shape=shape,
            output_dtype=dtype,
            num_failed=self.num_failed,
            first_failure=self.first_failure,
            mean_short_side=float(np.mean(self.short_sides)) if self.short_sides else None,
            formats=tuple(formats.items()),
            **known,
        )


def measure_samples(pipeline: Pipeline, files: Files, *, seconds: float, seed: int) -> SampleCosts:
    """Make random samples for about `seconds`, as the pipeline makes them, and measure their costs.

    Raises:
        SampleError: None of the samples could be made.
    """
    read = Stopwatch(files.reader())
    watched = _Watched(pipeline)
    records = pipeline.index.records(_some_ids(len(pipeline.index), seed=seed))
    cached = files.cached_share(records)
    found = _Found()
    deadline = time.monotonic() + _MEASURED_SHARE * seconds
    for record in records:
        try:
            _make(record, files, watched, read, found)
        except (*FAILURES, OSError) as error:
            found.failed(error)
        if time.monotonic() > deadline and len(found.output_bytes) >= _MIN_SAMPLES:
            break
    _require_some(found, pipeline.index.path)
    decode, transform = watched.costs(len(found.output_bytes))
    decoding = Decoding(now=decode)
    (shape,) = found.decoded_shapes if len(found.decoded_shapes) == 1 else (None,)
    shape, output_shape = pipeline.output_shape or shape, found.form[0]
    if (of_buckets := pipeline.makers.shapes) is not None:  # stored images must be large enough for all of them
        shape = output_shape = (*max(of_buckets.shapes, key=min), 3)
    if watched.is_simple:
        decoding = measure_decoding(
            pipeline,
            found.originals,
            one_by_one=(decode, watched.cost_of_first(len(found.originals))),
            decoded_shape=shape,
            output_shape=output_shape,
            seconds=(1 - _MEASURED_SHARE) * seconds,
        )
    policy, reading = pipeline.policy, read.cost(len(found.read_times))
    return SampleCosts(
        samples=found.samples(
            num_samples=len(pipeline.index),
            mean_bytes=max(1.0, float(np.mean([item.num_bytes for item in found.read_times]))),
            max_failed_share=0.0 if policy.action is ErrorAction.RAISE else policy.max_error_fraction,
            cached_share=cached,
            decoded_shape=shape,
            num_shards=len({cell.path for record in records for cell in record.cells if isinstance(cell, Span)}),
        ),
        read=replace(reading, cpu_seconds=min(reading.cpu_seconds, (decoding.read or reading).cpu_seconds)),
        decoding=decoding,
        transform=transform,
        read_times=tuple(found.read_times),
    )


def measure_items(dataset: Any, *, seconds: float, seed: int) -> SampleCosts:
    """Call `__getitem__` of a map-style dataset for about `seconds`, and measure its cost.

    Raises:
        ArgumentError: There are no samples.
        SampleError: None of the samples could be made.
    """
    getting = Stopwatch(dataset.__getitem__)
    found = _Found()
    deadline = time.monotonic() + seconds
    for number in _some_ids(len(dataset), seed=seed).tolist():
        try:
            made = getting(number)
            template_of(made)  # raises if no batch can hold the sample
            found.made(made)
        except FAILURES as error:
            found.failed(error, sample=f"sample {number}: ")
        if time.monotonic() > deadline and len(found.output_bytes) >= _MIN_SAMPLES:
            break
    _require_some(found, type(dataset).__name__)
    decoding = Decoding(now=getting.cost(len(found.output_bytes)))
    return SampleCosts(samples=found.samples(num_samples=len(dataset)), decoding=decoding)


class _OneValueCache:
    """A cache that returns `data` for every sample."""

    def __init__(self) -> None:
        self.data = b""

    def read(self, sample_id: int, paths: object, read: object) -> list[bytes]:
        """Return `data`."""
        del sample_id, paths, read
        return [self.data]

    def has(self, sample_id: int) -> bool:
        """Return True."""
        del sample_id
        return True


class _Watched:
    """A pipeline whose decoder and transform are measured."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.is_simple = not isinstance(pipeline.decode, Mapping) and len(pipeline.sources) == 1
        self.is_resized = bool(getattr(pipeline.cache, "is_resized", False))
        self.source = _OneValueCache() if self.is_simple else None
        self._decode = self._transform = None
        decode, transform = pipeline.decode, pipeline.transform
        if not isinstance(decode, Mapping):
            decode = self._decode = Stopwatch(decode)
            transform = self._transform = None if transform is None else Stopwatch(adapt_transform(transform))
        self.pipeline = Pipeline(
            index=pipeline.index,
            decode=decode,
            transform=transform,
            policy=ErrorPolicy(),
            storage=pipeline.storage,
            cache=self.source,
            row_index=None if self._decode is not None else pipeline.row_index,
        )
        self._whole = Stopwatch(self.pipeline.sample)

    def make(self, record: Record, data: list[bytes]) -> Any:
        """Make a sample, of `data` if it has only one file."""
        if self.source is not None:
            self.source.data = compact(data[0]) if self.is_resized else data[0]
        made = self._whole(record, seed=0, epoch=0)
        assert made is not None, "the error policy raises"
        return made[1]

    @property
    def decoded_shape(self) -> tuple[int, ...] | None:
        """The shape of the array that was decoded last, before the transform."""
        return None if self._decode is None else self._decode.last_shape

    def cost_of_first(self, num_samples: int) -> Cost:
        """Return the mean cost of decoding the first samples."""
        return Cost() if self._decode is None else self._decode.cost_of_first(num_samples)

    def costs(self, num_samples: int) -> tuple[Cost, Cost]:
        """Return the mean costs of decode and transform."""
        if self._decode is not None:
            transform = Cost() if self._transform is None else self._transform.cost(num_samples)
            return self._decode.cost(num_samples), transform
        counts, whole = self.pipeline.take_counts(), self._whole.cost(num_samples)
        computing = whole.cpu_seconds / whole.seconds if whole.seconds else 1.0
        per_sample = Cost(cpu_seconds=computing, wait_seconds=1 - computing).times(1e-9 / max(1, num_samples))
        return per_sample.times(counts[DECODE_NS]), per_sample.times(counts[TRANSFORM_NS])


def _make(record: Record, files: Files, watched: _Watched, read: Stopwatch, found: _Found) -> None:
    files.drop(record)
    started = time.perf_counter()
    data = read.__wrapped__(record)
    cold_seconds = time.perf_counter() - started
    started = time.perf_counter()
    read(record)
    warm_seconds = time.perf_counter() - started
    num_bytes = sum(map(len, data))
    found.read_times.append(ReadTime(num_bytes=num_bytes, cold_seconds=cold_seconds, warm_seconds=warm_seconds))
    made = watched.make(record, data)
    found.decoded_shapes.add(watched.decoded_shape)
    is_mapping = isinstance(made, Mapping)
    sources = watched.pipeline.sources
    found.made(made if is_mapping else made[sources[0]] if len(sources) == 1 else [made[number] for number in sources])
    for source in data:
        with suppress(MploadError):
            if name := format_of(source):
                image = open_image(source)
                found.short_sides.append(min(image.height, image.width))
                found.formats.append(name)
    if watched.source is not None and len(found.originals) < _MAX_ORIGINALS:
        found.originals.append(watched.source.data)


def _require_some(found: _Found, name: object) -> None:
    if not found.output_bytes:
        if not found.num_failed:
            raise ArgumentError(f"{name} holds no samples, so there is nothing to measure")
        tried = format_counted(found.num_failed, "sample")
        raise SampleError(f"{name}: none of {tried} could be made: {found.first_failure}")


def _some_ids(num_samples: int, *, seed: int) -> Any:
    if num_samples > _MAX_SAMPLES:
        return np.random.default_rng(seed).integers(num_samples, size=_MAX_SAMPLES)
    return np.random.default_rng(seed).permutation(num_samples)


def _size_of(value: Any) -> int:
    """Return the bytes of a sample: of its arrays, tensors and bytes, and a few for everything else."""
    if isinstance(value, Mapping):
        return sum(map(_size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size_of, value))
    num_bytes = getattr(value, "nbytes", None)
    return int(num_bytes) if isinstance(num_bytes, int) else len(value) if isinstance(value, bytes) else 8
