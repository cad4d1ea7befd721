"""Measures cheaper ways to decode the same samples: other files, another decoder, a row index."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mpload.errors import ArgumentError, MploadError
from mpload.images.backends import can_note_rows
from mpload.images.baseline import SymbolCounts
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.images.image import image_format, open_image
from mpload.images.jpeg_header import is_progressive
from mpload.index.index import Record
from mpload.judgement.facts import Alternative, Change, Cost
from mpload.judgement.remedies import resize_to
from mpload.samples.cache.compact import compact
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.samples.row_index import decode_with_rows
from mpload.samples.transforms import takes
from mpload.tools.doctor.stopwatch import Stopwatch
from mpload.tools.pack.options import PackOptions, stored_as
from mpload.tools.rows import Entry

__all__ = ["OneValueCache", "format_of", "measure_alternatives", "native_decoder", "short_side"]

_LARGER = 1.05
"""Images must be larger than needed by this factor before smaller copies are tried."""
_MIN_IMAGES = 5
_WORTH_NAMING = 0.9


def format_of(data: bytes) -> str:
    """Return the format of an image by its first bytes; empty if it is not an image."""
    name = image_format(data)
    return "progressive JPEG" if name == "JPEG" and is_progressive(data) else name


class OneValueCache:
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


@dataclass(kw_only=True)
class _Way:
    """A way to decode: the bytes it takes, and the decoder."""

    change: Change | None
    stored: Callable[[bytes], bytes]
    pipeline: Pipeline
    watch: Stopwatch
    detail: str = ""
    sizes: list[int] = field(default_factory=list)


class _Rows(defaultdict[int, Entry]):
    """A row index in memory, made while photos are decoded."""

    def decoder(self, decode: Callable[..., Any], sample_id: int, place: int) -> Callable[..., Any]:
        """Return `decode` for one photo."""
        del place
        return partial(decode_with_rows, decode, self[sample_id])


def measure_alternatives(
    pipeline: Pipeline,
    originals: Sequence[tuple[Record, bytes]],
    *,
    decode: Cost,
    decoded_shape: tuple[int, ...] | None,
    output_shape: tuple[int, ...] | None,
    has_cache: bool,
    seconds: float,
) -> tuple[Alternative, ...]:
    """Decode the same images in each way that suits them, in turn, for about `seconds`. Return those that are faster.

    Args:
        pipeline: how samples are made now, with one decoder.
        originals: records and the bytes of their images.
        decode: the mean cost of decoding now.
        decoded_shape: the shape of a decoded sample, if all have the same.
        output_shape: the shape of a sample after the transform, if all have the same.
        has_cache: whether samples are cached already.
        seconds: for how long to measure.
    """
    sides = short_side(decoded_shape), short_side(output_shape)
    ways = _ways(pipeline, [data for _, data in originals], sides, has_cache=has_cache)
    if len(ways) < 2 or len(originals) < _MIN_IMAGES:
        return ()
    deadline = time.monotonic() + seconds
    for number, (record, data) in enumerate(originals):
        stored = []
        with suppress(MploadError):
            stored = [way.stored(data) for way in ways]
        for way, taken in zip(ways, stored, strict=False):
            _decode(way, record, taken)
        if time.monotonic() > deadline and number >= _MIN_IMAGES:
            break
    now, *others = ways
    before = now.watch.cost(len(now.watch.cpu))
    if not before.seconds:
        return ()
    scale = decode.seconds / before.seconds  # from these images to all of them
    return tuple(
        Alternative(
            change=Change(way.change or ""),
            decode=after.times(scale),
            mean_bytes=float(np.mean(way.sizes)) if way.change in {Change.RESIZED, Change.CACHED_RESIZED} else None,
            detail=way.detail,
        )
        for way in others
        if 0 < (after := way.watch.cost(len(way.watch.cpu))).seconds < _WORTH_NAMING * before.seconds
    )


def _decode(way: _Way, record: Record, data: bytes) -> None:
    cache = way.pipeline.cache
    assert isinstance(cache, OneValueCache)
    cache.data = data
    with suppress(MploadError):
        # The first time pays for what another way has evicted from the processor's caches, or makes an entry of rows.
        way.pipeline.sample(record, seed=0, epoch=0)
        way.watch(record, seed=0, epoch=0)
        way.sizes.append(len(data))


def _ways(
    pipeline: Pipeline, images: list[bytes], sides: tuple[int | None, int | None], *, has_cache: bool
) -> list[_Way]:
    """Return how images are decoded now, and then every other way that suits them.

    `sides` are the shorter sides of all decoded images, and of all samples; None if they vary.
    """

    def way(
        change: Change | None, *, stored: Any = bytes, decode: Any = None, detail: str = "", rows: Any = None
    ) -> _Way:
        other = Pipeline(
            index=pipeline.index,
            decode=decode or pipeline.decode,
            policy=ErrorPolicy(),
            cache=OneValueCache(),
            row_index=rows,
        )
        return _Way(change=change, stored=stored, pipeline=other, watch=Stopwatch(other.sample), detail=detail)

    formats = [format_of(data) for data in images]
    if not all(formats):
        return []
    ways = [way(None)]
    if "progressive JPEG" in formats and (rewrite := _rewriter(images)) is not None:
        ways.append(way(Change.BASELINE, stored=rewrite))
    decoded_side, side = sides
    if side is not None:
        short = resize_to(side)
        if _median_side(images) > _LARGER * short or not all("JPEG" in name for name in formats):
            options = PackOptions(resize_short=short)
            ways.append(way(Change.RESIZED, stored=lambda data: stored_as(data, options)[1], detail=str(short)))
            if not has_cache and side <= 256:
                ways.append(way(Change.CACHED_RESIZED, stored=compact))
    if not type(pipeline.decode).__module__.startswith("mpload."):
        native = native_decoder(pipeline.decode, decoded_side)
        ways.append(way(Change.NATIVE, decode=native, detail=f"mpload.{_called(native)}"))
    is_crop = type(pipeline.decode) in {RandomResizedCrop, ResizeCenterCrop}
    if is_crop and can_note_rows() and pipeline.row_index is None and "JPEG" in formats:
        ways.append(way(Change.ROW_INDEX, rows=_Rows(Entry)))
    return ways


def _rewriter(images: list[bytes]) -> Callable[[bytes], bytes] | None:
    try:
        counts = SymbolCounts()
    except ArgumentError:  # the native module was not built
        return None
    for data in images:
        counts.add(data)
    tables = counts.tables()
    return lambda data: tables.rewrite(data) if is_progressive(data) else data


def short_side(shape: tuple[int, ...] | None) -> int | None:
    """Return the shorter side of samples that are images of one shape, [H, W, 3] or [3, H, W]."""
    if shape is None or len(shape) != 3 or not {1, 3} & {shape[0], shape[2]}:
        return None
    return min(shape[:2] if shape[2] in {1, 3} else shape[1:])


def _median_side(images: list[bytes]) -> float:
    sides = []
    for data in images:
        with suppress(MploadError):
            image = open_image(data)
            sides.append(min(image.height, image.width))
    return float(np.median(sides)) if sides else 0.0


def native_decoder(decode: Any, side: int | None) -> Any:
    """Return mpload's decoder that makes samples of the same form as a decoder of the user's."""
    if side is None:
        return ImageDecoder()
    return RandomResizedCrop(side) if takes(decode, "rng") else ResizeCenterCrop(side)


def _called(decode: Any) -> str:
    return (
        "ImageDecoder()" if isinstance(decode, ImageDecoder) else f"{type(decode).__name__}({decode.output_shape[0]})"
    )
