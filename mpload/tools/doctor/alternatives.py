"""Measures cheaper ways to decode the same samples: other files, another decoder, a row index."""

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpload.errors import ArgumentError, MploadError
from mpload.images.backends import can_note_rows
from mpload.images.baseline import tables_for
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.images.image import image_format, open_image
from mpload.images.jpeg_header import is_progressive
from mpload.index.columns import ColumnType
from mpload.judgement.facts import Alternative, Change, Cost
from mpload.judgement.remedies import resize_to
from mpload.samples.cache.compact import Compact
from mpload.samples.pipeline import Pipeline
from mpload.samples.transforms import takes
from mpload.storage.local import LocalStorage
from mpload.tools.doctor.chunks import ChunkDecoder, decodes_in_bulk
from mpload.tools.pack.options import PackOptions, stored_as
from mpload.units import MIB

__all__ = ["Decoding", "format_of", "measure_decoding", "native_decoder", "short_side"]

_LARGER = 1.05
"""Images must be larger than needed by this factor before smaller copies are tried."""
_MIN_IMAGES, _CHUNK = 5, 8
_PREPARING_SHARE = 0.4
_MAX_BYTES = 32 * MIB
_WORTH_NAMING = 0.9
_PACKED, _SMALLER = {Change.BASELINE, Change.RESIZED}, {Change.RESIZED, Change.CACHED_RESIZED}
"""The changes that take shards, and those that store images with fewer pixels."""


def format_of(data: bytes) -> str:
    """Return the format of an image by its first bytes; empty if it is not an image."""
    name = image_format(data)
    return "progressive JPEG" if name == "JPEG" and is_progressive(data) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What it costs to decode images, as workers do."""

    now: Cost
    """As it is done now."""
    read: Cost | None = None
    """What it costs to read an image from the page cache, if workers read many with one call. None if they do not."""
    alone: Cost | None = None
    """Without the transform. None if that makes no difference."""
    alternatives: tuple[Alternative, ...] = ()
    """The ways that are cheaper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to decode."""

    change: Change | None
    stored: Callable[[bytes], bytes] = bytes
    """Returns the bytes that are stored instead of a file's."""
    decode: Callable[..., Any]
    in_bulk: bool
    detail: str = ""


def measure_decoding(
    pipeline: Pipeline,
    images: Sequence[bytes],
    *,
    one_by_one: tuple[Cost, Cost],
    decoded_shape: tuple[int, ...] | None,
    output_shape: tuple[int, ...] | None,
    seconds: float,
) -> Decoding:
    """Decode the same images in each way that suits them, in turn, for about `seconds`.

    Args:
        pipeline: How samples are made now, with one decoder.
        images: The bytes of some images, as the decoder gets them.
        one_by_one: The mean cost of decoding now, sample by sample: of all images that were measured, and of `images`.
        decoded_shape: The shape of a decoded sample, if all have the same.
        output_shape: The shape of a sample after the transform, if all have the same.
        seconds: For how long to measure.
    """
    of_all, of_these = one_by_one
    ways = _ways(pipeline, images, (short_side(decoded_shape), short_side(output_shape)))
    stored = _stored(ways, images, seconds=_PREPARING_SHARE * seconds) if ways and of_these.seconds else []
    measured = _measured(pipeline, ways, stored, seconds=(1 - _PREPARING_SHARE) * seconds)
    if not measured:
        return Decoding(now=of_all)
    scale = of_all.seconds / of_these.seconds
    costs, reads = [decode.times(scale) for decode, _ in measured], [read for _, read in measured]
    found = {way.change: cost for way, cost in zip(ways[1:], costs[1:], strict=True)}
    return Decoding(
        now=costs[0] if costs[0].seconds else of_all,
        read=reads[0] if ways[0].in_bulk and type(pipeline.opened_storage) is LocalStorage else None,
        alone=found.get(None),
        alternatives=tuple(
            Alternative(
                change=way.change,
                decode=found[way.change],
                mean_bytes=float(np.mean([len(each[number]) for each in stored])) if way.change in _SMALLER else None,
                read=reads[number] if way.change in _PACKED else None,
                detail=way.detail,
            )
            for number, way in enumerate(ways)
            if way.change is not None and 0 < found[way.change].seconds < _WORTH_NAMING * costs[0].seconds
        ),
    )


def _measured(
    pipeline: Pipeline, ways: Sequence[_Way], stored: Sequence[Sequence[bytes]], *, seconds: float
) -> list[tuple[Cost, Cost]]:
    """Decode the images in each way, a chunk in turn. Return what decoding and reading one costs in each way.

    Return nothing if there are too few images, the disk is full, or no further file can be opened.
    """
    if len(stored) < _MIN_IMAGES:
        return []
    is_packed = pipeline.index.columns[pipeline.sources[0]].type is ColumnType.SPAN
    with tempfile.TemporaryDirectory(prefix="mpload-doctor-") as folder:
        try:
            decoders = [
                ChunkDecoder(
                    [each[number] for each in stored],
                    way.decode,
                    folder=Path(folder, str(number)),
                    is_packed=is_packed or way.change in _PACKED,
                    in_bulk=way.in_bulk,
                    notes_rows=pipeline.row_index is not None or way.change is Change.ROW_INDEX,
                )
                for number, way in enumerate(ways)
            ]
        except OSError:
            return []
        ends = time.monotonic() + seconds
        for first in range(0, len(stored), _CHUNK):
            for decoder in decoders:
                decoder.measure(range(first, min(first + _CHUNK, len(stored))))
            if time.monotonic() > ends:
                break
        found = [(decoder.decode, decoder.read) for decoder in decoders]
        del decoder, decoders
        gc.collect()  # closes their files: the folder cannot be removed without a descriptor
        return found


def _stored(ways: Sequence[_Way], images: Sequence[bytes], *, seconds: float) -> list[list[bytes]]:
    """Return what each way stores of the images. Time and memory limit how many; refused ones are left out."""
    ends, num_bytes = time.monotonic() + seconds, 0
    stored: list[list[bytes]] = []
    for data in images:
        with suppress(MploadError):
            stored.append([way.stored(data) for way in ways])
            num_bytes += sum(map(len, stored[-1]))
        if (time.monotonic() > ends or num_bytes > _MAX_BYTES) and len(stored) >= _CHUNK:
            break
    return stored


def _ways(pipeline: Pipeline, images: Sequence[bytes], sides: tuple[int | None, int | None]) -> list[_Way]:
    """Return how images are decoded now, then how they would be without the transform, and every way that suits them.

    `sides` are the shorter sides of all decoded images, and of all samples; None if they vary.
    """
    formats = [format_of(data) for data in images]
    if not all(formats):
        return []
    has_transform = pipeline.transform is not None

    def way(
        change: Change | None, *, decode: Any = pipeline.decode, is_alone: bool = not has_transform, **options: Any
    ) -> _Way:
        return _Way(change=change, decode=decode, in_bulk=is_alone and decodes_in_bulk(pipeline, decode), **options)

    ways = [way(None)]
    if has_transform and decodes_in_bulk(pipeline, pipeline.decode):
        ways.append(way(None, is_alone=True))
    if "progressive JPEG" in formats and (rewrite := _rewriter(images)) is not None:
        ways.append(way(Change.BASELINE, stored=rewrite))
    decoded_side, side = sides
    if side is not None:
        short = resize_to(side)
        if _median_side(images) > _LARGER * short or not all("JPEG" in name for name in formats):
            options = PackOptions(resize_short=short)
            ways.append(way(Change.RESIZED, stored=lambda data: stored_as(data, options)[1], detail=str(short)))
            if pipeline.cache is None and side <= 256:
                ways.append(way(Change.CACHED_RESIZED, stored=Compact(), is_alone=False))
    if not type(pipeline.decode).__module__.startswith("mpload."):
        native = native_decoder(pipeline.decode, decoded_side)
        size = "" if isinstance(native, ImageDecoder) else native.output_shape[0]
        ways.append(way(Change.NATIVE, decode=native, detail=f"mpload.{type(native).__name__}({size})"))
    is_crop = type(pipeline.decode) in {RandomResizedCrop, ResizeCenterCrop}
    if is_crop and can_note_rows() and pipeline.row_index is None and "JPEG" in formats:
        ways.append(way(Change.ROW_INDEX))
    return ways


def _rewriter(images: Sequence[bytes]) -> Callable[[bytes], bytes] | None:
    try:
        tables = tables_for(images)
    except ArgumentError:  # the native module was not built
        return None
    return lambda data: tables.rewrite(data) if is_progressive(data) else data


def short_side(shape: tuple[int, ...] | None) -> int | None:
    """Return the shorter side of samples that are images of one shape, [H, W, 3] or [3, H, W]."""
    if shape is None or len(shape) != 3 or not {1, 3} & {shape[0], shape[2]}:
        return None
    return min(shape[:2] if shape[2] in {1, 3} else shape[1:])


def _median_side(images: Sequence[bytes]) -> float:
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
