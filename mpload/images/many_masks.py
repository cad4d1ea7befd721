"""Decodes the masks of a whole chunk with one native call, for `Mask`."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.images.limits import Limits
from mpload.images.many import DecodeMany, EncodedSamples
from mpload.images.mask import Mask
from mpload.native import native_module

__all__ = ["NATIVE", "many_masks"]


class _Native(Protocol):
    """The module `mpload.images._masks`."""

    decode_many: Callable[..., None]


NATIVE: Final[_Native | None] = native_module("images._masks")

_MAX_BOUND = (1 << 63) - 1
_MAX_BITS = 16  # of a number in a PNG


def many_masks(decode: Callable[..., Any]) -> DecodeMany | None:
    """Return what decodes many masks as `decode` does, by the geometries of their samples; None if nothing can.

    It declines all files but plain PNGs with one channel.
    """
    native = NATIVE
    if native is None or type(decode) is not Mask or type(decode.limits) is not Limits:  # subclasses may differ
        return None
    dtype, limits = np.dtype(decode.dtype), decode.limits
    wanted = (limits.max_bytes, limits.max_pixels, limits.max_pixels_per_byte)
    bounds = [min(bound, _MAX_BOUND) for bound in wanted]
    if dtype.kind not in "iu" or any(bound % 1 for bound in bounds):  # a limit may be written as 1e9
        return None
    max_bits = min(_MAX_BITS, int(np.iinfo(dtype).max).bit_length())
    whole_bounds = tuple(map(int, bounds))

    def decode_masks(samples: EncodedSamples, out: NDArray[Any]) -> NDArray[np.uint8]:
        is_made = np.zeros(len(out), np.uint8)
        native.decode_many(
            samples.data,
            samples.starts,
            samples.lengths,
            samples.geometries,
            max_bits,
            whole_bounds,
            out,
            is_made,
            samples.at,
            samples.first,
        )
        return is_made

    return decode_masks
