"""Measures the cost of samples, one after the other in this process: read, decode, transform."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from mpload.errors import FAILURES, ArgumentError, MploadError, SampleError, cause_of
from mpload.images.image import open_image
from mpload.index.index import Record
from mpload.judgement.facts import Cost, Samples, StorageSpeed
from mpload.samples.counts import DECODE_NS, TRANSFORM_NS
from mpload.samples.leaves import template_of
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorAction, ErrorPolicy
from mpload.samples.transforms import adapt_transform
from mpload.storage.ranges import ByteRange, Span
from mpload.tools.doctor.alternatives import Decoding, format_of, measure_decoding
from mpload.tools.doctor.stopwatch import Stopwatch
from mpload.tools.doctor.storage import Files, packed_rate
from mpload.units import format_counted

__all__ = ["SampleCosts", "measure_items", "measure_samples"]

_Item = TypeVar("_Item")
_MAX_SAMPLES = 256
_MIN_SAMPLES = 4
_MAX_ORIGINALS = 24
_MEASURED_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """The measured costs."""

    samples: Samples
    decoding: Decoding
    storage: StorageSpeed = field(default_factory=StorageSpeed)
    transform: Cost = field(default_factory=Cost)


@dataclass(slots=True)
class _Found:
    num_bytes: list[int] = field(default_factory=list)
    cold_seconds: list[float] = field(default_factory=list)
    """What it took to read the samples, each of `num_bytes`."""
    output_bytes: list[int] = field(default_factory=list)
    shapes: set[tuple[tuple[int, ...], str] | None] = field(default_factory=set)
    decoded_shapes: set[tuple[int, ...] | None] = field(default_factory=set)
    short_sides: list[int] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    originals: list[bytes] = field(default_factory=list)
    """What the decoder got for the first samples."""
    num_failed: int = 0
    first_failure: str = ""

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
    found = _Found()
    watched = _Watched(pipeline, files, found)
    records = pipeline.index.records(_some_ids(len(pipeline.index), seed=seed))
    cached = files.cached_share(records)
    named = (("", record) for record in records)
    _make_some(watched.make, named, found, of=pipeline.index.path, seconds=_MEASURED_SHARE * seconds)
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
    policy, reading = pipeline.policy, watched.read.cost(len(found.num_bytes))
    return SampleCosts(
        samples=found.samples(
            num_samples=len(pipeline.index),
            mean_bytes=max(1.0, float(np.mean(found.num_bytes))),
            max_failed_share=0.0 if policy.action is ErrorAction.RAISE else policy.max_error_fraction,
            cached_share=cached,
            decoded_shape=shape,
            num_shards=len({cell.path for record in records for cell in record.cells if isinstance(cell, Span)}),
        ),
        storage=StorageSpeed(
            read=replace(reading, cpu_seconds=min(reading.cpu_seconds, (decoding.read or reading).cpu_seconds)),
            packed_samples_per_second=packed_rate(found.num_bytes, found.cold_seconds),
        ),
        decoding=decoding,
        transform=transform,
    )


def measure_items(dataset: Any, *, seconds: float, seed: int) -> SampleCosts:
    """Call `__getitem__` of a map-style dataset for about `seconds`, and measure its cost.

    Raises:
        ArgumentError: There are no samples.
        SampleError: None of the samples could be made.
    """
    getting = Stopwatch(dataset.__getitem__)
    found = _Found()

    def make(number: int) -> None:
        made = getting(number)
        template_of(made)  # raises if no batch can hold the sample
        found.made(made)

    named = ((f"sample {number}: ", number) for number in _some_ids(len(dataset), seed=seed).tolist())
    _make_some(make, named, found, of=type(dataset).__name__, seconds=seconds)
    decoding = Decoding(now=getting.cost(len(found.output_bytes)))
    return SampleCosts(samples=found.samples(num_samples=len(dataset)), decoding=decoding)


def _make_some(
    make: Callable[[_Item], None], named: Iterable[tuple[str, _Item]], found: _Found, *, of: object, seconds: float
) -> None:
    """Make samples for so long, but a few at least, and count those that cannot be made.

    Raises:
        ArgumentError: There are no samples.
        SampleError: None of the samples could be made.
    """
    deadline = time.monotonic() + seconds
    for name, item in named:
        try:
            make(item)
        except FAILURES as error:
            found.num_failed += 1
            found.first_failure = found.first_failure or f"{name}{cause_of(error)}"
        if time.monotonic() > deadline and len(found.output_bytes) >= _MIN_SAMPLES:
            break
    if not found.output_bytes:
        if not found.num_failed:
            raise ArgumentError(f"{of} holds no samples, so there is nothing to measure")
        tried = format_counted(found.num_failed, "sample")
        raise SampleError(f"{of}: none of {tried} could be made: {found.first_failure}")


class _Given:
    """A storage from which everything is read as `data`."""

    data: list[bytes]

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return `data`."""
        del ranges
        return self.data


class _Watched:
    """Makes samples as a pipeline does. Reading, the decoder and the transform are measured."""

    def __init__(self, pipeline: Pipeline, files: Files, found: _Found) -> None:
        self.is_simple = not isinstance(pipeline.decode, Mapping) and len(pipeline.sources) == 1
        self.read = Stopwatch(files.reader())
        self._files, self._found, self._given = files, found, _Given()
        self._compact = getattr(pipeline.cache, "compact", None) if self.is_simple else None
        self._decode = self._transform = None
        decode, transform = pipeline.decode, pipeline.transform
        if not isinstance(decode, Mapping):
            decode = self._decode = Stopwatch(decode)
            transform = self._transform = None if transform is None else Stopwatch(adapt_transform(transform))
        self._pipeline = Pipeline(
            index=pipeline.index,
            decode=decode,
            transform=transform,
            policy=ErrorPolicy(),
            storage=self._given if self.is_simple else pipeline.storage,
            row_index=None if self._decode is not None else pipeline.row_index,
        )
        self._whole = Stopwatch(self._pipeline.sample)

    def make(self, record: Record) -> None:
        """Read a sample, cold and warm, and make it."""
        found, sources = self._found, self._pipeline.sources
        self._files.drop(record)
        started = time.perf_counter()
        data = self.read.__wrapped__(record)
        found.cold_seconds.append(time.perf_counter() - started)
        found.num_bytes.append(sum(map(len, data)))
        self.read(record)
        self._given.data = data if self._compact is None else list(map(self._compact, data))
        made = self._whole(record, seed=0, epoch=0)
        assert made is not None, "the error policy raises"
        sample = made[1]
        found.decoded_shapes.add(None if self._decode is None else self._decode.last_shape)
        if not isinstance(sample, Mapping):
            sample = sample[sources[0]] if len(sources) == 1 else [sample[number] for number in sources]
        found.made(sample)
        for source in data:
            with suppress(MploadError):
                if name := format_of(source):
                    image = open_image(source)
                    found.short_sides.append(min(image.height, image.width))
                    found.formats.append(name)
        if self.is_simple and len(found.originals) < _MAX_ORIGINALS:
            found.originals += self._given.data

    def cost_of_first(self, num_samples: int) -> Cost:
        """Return the mean cost of decoding the first samples."""
        return Cost() if self._decode is None else self._decode.cost_of_first(num_samples)

    def costs(self, num_samples: int) -> tuple[Cost, Cost]:
        """Return the mean costs of decode and transform."""
        if self._decode is not None:
            transform = Cost() if self._transform is None else self._transform.cost(num_samples)
            return self._decode.cost(num_samples), transform
        counts, whole = self._pipeline.take_counts(), self._whole.cost(num_samples)
        computing = whole.cpu_seconds / whole.seconds if whole.seconds else 1.0
        per_sample = Cost(cpu_seconds=computing, wait_seconds=1 - computing).times(1e-9 / max(1, num_samples))
        return per_sample.times(counts[DECODE_NS]), per_sample.times(counts[TRANSFORM_NS])


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
