"""Decodes the images of each bucket to the shape of the bucket.

Batches of different shapes share one field of a slot: the samples of a batch lie end to end at its start.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop

__all__ = ["BucketShapes", "packed_view"]


class _VaryingCrop(RandomResizedCrop):
    """A crop whose results have other shapes in other batches."""

    __slots__ = ()
    shape_varies: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShapes:
    """The shape of the images of each bucket."""

    shapes: tuple[tuple[int, int], ...]
    """Height and width, for each bucket."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of the largest image."""
        return 3 * max(map(math.prod, self.shapes))

    def decoders(self, decode: Any) -> list[Any]:
        """Return the decoder, or dict of decoders, of each bucket.

        Raises:
            ArgumentError: the decoder cannot decode to a given shape.
        """
        if not isinstance(decode, Mapping):
            return [_of_shape(decode, shape, varies=False) for shape in self.shapes]
        crops = [key for key, each in decode.items() if type(each) in {RandomResizedCrop, ResizeCenterCrop}]
        if not crops:
            raise _unfit(decode)
        return [
            {key: _of_shape(each, shape, varies=True) if key in crops else each for key, each in decode.items()}
            for shape in self.shapes
        ]


def _of_shape(decode: Callable[..., Any], shape: tuple[int, int], *, varies: bool) -> RandomResizedCrop:
    height, width = shape
    aspect = width / height
    if type(decode) is RandomResizedCrop:
        low, high = decode.ratio
        crop = replace(decode, size=shape, ratio=(low * aspect, high * aspect))
    elif type(decode) is ResizeCenterCrop and decode.resize is None:
        # Of all regions with this ratio, only the largest one, in the middle, or none fits: then it is that one too.
        crop = RandomResizedCrop(
            shape,
            scale=(1.0, 1.0),
            ratio=(aspect, aspect),
            flip=0.0,
            antialias=decode.antialias,
            backend=decode.backend,
            exif_orientation=decode.exif_orientation,
            limits=decode.limits,
        )
    else:
        raise _unfit(decode)
    if not varies:
        return crop
    return _VaryingCrop(**{field.name: getattr(crop, field.name) for field in fields(crop)})


def _unfit(decode: Any) -> ArgumentError:
    return ArgumentError(
        'Buckets(by="aspect") decodes images to the shape of their bucket, which takes RandomResizedCrop(size) or '
        f"ResizeCenterCrop(size) without resize=, alone or in a dict, got decode={decode!r:.200}"
    )


def packed_view(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return n samples that lie end to end at the start of an array [n, sample_bytes], as [n, *shape], not copied."""
    num_bytes = len(array) * math.prod(shape)
    return array.reshape(-1)[:num_bytes].reshape(len(array), *shape).view(np.ndarray)
