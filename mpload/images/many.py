"""Decodes the samples of a whole chunk with one native call, for the decoders that can.

A call declines any sample that is unusual, and never raises because of one. The decoder itself then makes that sample,
or raises its error. The values that a call makes equal those of the decoder to the bit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.images.arrays import RawArray
from mpload.images.backends import native_decoder
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop, center_short_side
from mpload.images.limits import Limits

__all__ = ["DecodeMany", "EncodedSamples", "crop_numbers", "limit_numbers", "many_decoder", "row_bytes"]

_MAX_SIDE = 65_535  # of a JPEG
_MAX_RATIO = 1 << 53  # up to here, doubles hold all integers
_MAX_BOUND = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedSamples:
    """The encoded samples of a chunk, side by side in one area."""

    data: NDArray[np.uint8]
    """uint8 [num_bytes]: the area."""
    starts: NDArray[np.int64]
    """int64 [n]: where each sample starts in `data`."""
    lengths: NDArray[np.int64]
    """int64 [n]: the number of bytes of each sample; -1 for a sample to leave out."""
    sample_ids: NDArray[np.int64]
    """int64 [n]: the second word of the counter of each sample's random numbers, see `SampleRng`."""
    key: tuple[int, int]
    """The Philox key of the samples' random numbers."""
    first: int
    """Position of the first sample in its batch: sample `i` is number `first + i`."""
    at: "memoryview[int] | None"
    """One int64, which always holds the number of a sample that is decoded now or next; None if nobody asks."""
    entries: Sequence[bytes | None] | None = None
    """The samples' entries of the row index: an empty one if it is to be made, which declines the sample, and None to
    decode without one. None if there is no row index."""
    geometries: NDArray[np.int64] | None = None
    """int64 [n, 13]: the numbers of each sample's geometry, see `mpload.images.many_geometries`. Crops of photos write
    them for each photo that was made. Columns that follow the photos read them."""


DecodeMany = Callable[[EncodedSamples, NDArray[Any]], NDArray[np.uint8]]
"""Decodes the samples into the rows of an array [n, *output_shape] and returns, as uint8 [n], 1 for each that was made.

A sample that was made although its entry was of another file has a 2.

A row whose sample was declined holds anything.
"""


def many_decoder(decode: Callable[..., Any]) -> DecodeMany | None:
    """Return what decodes many samples as `decode` does, into rows of its `output_shape`; None if nothing can."""
    if type(decode) is RandomResizedCrop or type(decode) is ResizeCenterCrop:  # subclasses may decode differently
        return _many_photos(decode)
    return None


def row_bytes(decode: Callable[..., Any]) -> int | None:
    """Return the size of every sample if its bytes can be read straight into a row of the batch; None otherwise."""
    if type(decode) is not RawArray or not np.dtype(decode.dtype).isnative:  # subclasses may decode differently
        return None
    return decode.sample_bytes or None


def _many_photos(crop: RandomResizedCrop | ResizeCenterCrop) -> DecodeMany | None:
    """Return what decodes many JPEGs; it declines all other formats, and JPEGs with several scans."""
    native = native_decoder(crop.backend)
    numbers, bounds = crop_numbers(crop), limit_numbers(crop.limits)
    if native is None or numbers is None or bounds is None:
        return None

    def decode_photos(samples: EncodedSamples, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        is_made = np.zeros(len(out), np.uint8)
        entries, entry_bounds = (None, None) if samples.entries is None else _side_by_side(samples.entries)
        native.decode_many(
            samples.data,
            samples.starts,
            samples.lengths,
            samples.sample_ids,
            samples.key,
            numbers,
            crop.antialias,
            crop.exif_orientation,
            bounds,
            entries,
            entry_bounds,
            out,
            is_made,
            samples.at,
            samples.first,
            samples.geometries,
        )
        return is_made

    return decode_photos


def _side_by_side(entries: Sequence[bytes | None]) -> tuple[bytes, NDArray[np.int64]]:
    """Return all entries in one area, and their bounds in it: start and length, int64 [n, 2]."""
    lengths = np.array([-1 if entry is None else len(entry) for entry in entries], np.int64)
    ends = np.cumsum(lengths.clip(0))
    return b"".join(filter(None, entries)), np.stack([ends - lengths.clip(0), lengths], axis=1)


def crop_numbers(crop: RandomResizedCrop | ResizeCenterCrop) -> tuple[float, ...] | None:
    """Return the crop's numbers as the native decoder wants them; None if they are too large for it."""
    if max(crop.output_shape) > _MAX_SIDE:
        return None
    if isinstance(crop, ResizeCenterCrop):
        short_side = center_short_side(crop)
        return (short_side,) if short_side <= _MAX_SIDE and not isinstance(short_side, float) else None
    if max(crop.ratio) > _MAX_RATIO:
        return None
    return (*crop.scale, *crop.ratio, *map(math.log, crop.ratio), crop.flip)


def limit_numbers(limits: Limits) -> tuple[int, ...] | None:
    """Return the limits as the native decoder wants them; None if it cannot check them."""
    if type(limits) is not Limits:  # subclasses may refuse other files
        return None
    wanted = (limits.max_bytes, limits.max_pixels, limits.max_pixels_per_byte, limits.max_scans)
    bounds = [min(bound, _MAX_BOUND) for bound in wanted]
    return None if any(bound % 1 for bound in bounds) else tuple(map(int, bounds))  # a limit may be written as 1e9
