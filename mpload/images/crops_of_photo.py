"""Writes several crops of JPEGs with one native call, which decodes each photo in one pass.

The call declines any photo that is unusual, and never raises because of one. `mpload.images.parts` then makes the
views, or raises the error. The pixels are the same both ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.images.backends import Backend, native_decoder
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.jpeg_header import ImageBytes
from mpload.images.many import EncodedSamples, crop_numbers, limit_numbers
from mpload.images.resize import Pixels

__all__ = ["CropsOfPhoto", "DrawnAhead"]

_MAX_CROPS = 256
_MAX_GROUPS = 32
_DRAWS_A_CROP = 23


@dataclass(frozen=True, slots=True, kw_only=True)
class CropsOfPhoto:
    """What a call of the native decoder needs to know of the crops."""

    shapes: tuple[tuple[int, ...], ...]
    """The shape of each array of crops: (count, height, width, 3)."""
    crops: tuple[tuple[tuple[float, ...], bool], ...]
    """For each array of crops: the numbers of the crop, and whether it averages pixels."""
    num_draws: int
    """The number of doubles that are drawn for all crops."""
    backend: Backend
    upright: bool
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, groups: Sequence[tuple[int, Any]]) -> "CropsOfPhoto | None":
        """Return what writes this number of crops of each decoder; None if the native decoder cannot.

        The decoders must have the same backend, orientation and limits.
        """
        crops, num_draws = [], 0
        for count, decode in groups:
            is_random = type(decode) is RandomResizedCrop
            numbers = crop_numbers(decode) if is_random or type(decode) is ResizeCenterCrop else None
            if numbers is None:  # subclasses may decode differently
                return None
            crops.append((numbers, decode.antialias))
            num_draws += _DRAWS_A_CROP * count * is_random
        first = groups[0][1]
        bounds = limit_numbers(first.limits)
        if native_decoder(first.backend) is None or bounds is None:
            return None
        if sum(count for count, _ in groups) > _MAX_CROPS or len(groups) > _MAX_GROUPS:
            return None
        return cls(
            shapes=tuple((count, *decode.output_shape) for count, decode in groups),
            crops=tuple(crops),
            num_draws=num_draws,
            backend=first.backend,
            upright=first.exif_orientation,
            bounds=bounds,
        )

    def write(self, data: ImageBytes, draws: NDArray[np.float64], outs: Sequence[Pixels]) -> bool:
        """Write the crops of each decoder to its array, and return whether that was possible.

        Args:
            data: The bytes of one image.
            draws: The next `num_draws` doubles of the generator that the crops are drawn with.
            outs: For each decoder: an array uint8 [count, height, width, 3].
        """
        native = native_decoder(self.backend)
        if native is None or any(not out.flags.carray or out.dtype != np.uint8 for out in outs):
            return False
        if tuple(out.shape for out in outs) != self.shapes:
            return False
        return native.decode_crops(data, self.crops, draws, self.upright, self.bounds, tuple(outs))

    def write_many(self, samples: EncodedSamples, outs: Sequence[Pixels]) -> NDArray[np.uint8]:
        """Write the crops of each decoder and sample to its array, and return as `DecodeMany` which were made.

        Args:
            samples: The encoded images.
            outs: For each decoder: an array uint8 [n, count, height, width, 3].
        """
        native = native_decoder(self.backend)
        is_made = np.zeros(len(samples.lengths), np.uint8)
        if native is not None and tuple(out.shape[1:] for out in outs) == self.shapes:
            native.decode_crops_of_many(
                samples.data,
                samples.starts,
                samples.lengths,
                samples.sample_ids,
                samples.key,
                self.crops,
                self.upright,
                self.bounds,
                tuple(outs),
                is_made,
                samples.at,
                samples.first,
            )
        return is_made


class DrawnAhead:
    """Gives numbers that were drawn from a generator as it would give them, for crops that were declined.

    Args:
        draws: What `random` of the generator returned, float64 [n].
    """

    def __init__(self, draws: NDArray[np.float64]) -> None:
        self._left = draws

    def random(self, size: int | None = None) -> Any:
        """Return the next double, or an array with the next `size` doubles."""
        taken, self._left = np.split(self._left, [1 if size is None else size])
        return float(taken[0]) if size is None else taken
