"""`PilTransform`: decodes an image and passes it to a transform of PIL images."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.images.claims import Claim, unclaimed
from mpload.images.decoders import ImageDecoder
from mpload.images.jpeg_header import ImageBytes

__all__ = ["PilTransform"]


@dataclass(frozen=True, slots=True)
class PilTransform:
    """Decode an image and pass it to a transform of PIL images, such as `timm.create_transform(...)` makes.

    The transform gets an upright RGB image. It returns a PIL image, an array [H, W, C], or a tensor [C, H, W], as most
    of these transforms do at their end. What it draws from the global generators of `random`, NumPy and torch depends
    on seed, epoch and sample.

    The whole image is decoded, and images and transforms of PIL are slower than those of this library:
    `RandomResizedCrop` decodes only what the crop needs.

    Attributes:
        transform: A callable on a `PIL.Image.Image`.
        decode: Decodes the image.

    Raises:
        ArgumentError: `transform` is not callable, or Pillow is missing.
    """

    makes_images: ClassVar[bool] = True
    runs_user_code: ClassVar[bool] = True

    transform: Callable[[Any], Any]
    decode: ImageDecoder = field(default_factory=ImageDecoder)

    def __post_init__(self) -> None:
        if isinstance(self.transform, type) or not callable(self.transform):
            raise ArgumentError(f"transform must be a callable on a PIL image, got {self.transform!r:.80}")
        _pillow()

    def __call__(self, data: ImageBytes, claim: Claim = unclaimed) -> NDArray[Any]:
        """Return what the transform makes of the image, [H, W, C] in memory or [H, W].

        Args:
            data: The bytes of an image file.
            claim: As for `open_image`.

        Raises:
            DecodeError: The image cannot be decoded.
            ArgumentError: The transform returned neither an image nor an array nor a tensor.
        """
        image = _pillow()
        result = self.transform(image.fromarray(self.decode(data, claim=claim)))
        if isinstance(result, image.Image | np.ndarray):
            return np.array(result)
        if not hasattr(result, "numpy"):
            name = getattr(self.transform, "__qualname__", type(self.transform).__qualname__)
            raise ArgumentError(
                f"transform {name} returned {type(result).__name__}. Return a PIL image, an array or a tensor"
            )
        array: NDArray[Any] = result.numpy()
        return np.ascontiguousarray(np.moveaxis(array, -3, -1) if array.ndim >= 3 else array)


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise ArgumentError("PilTransform needs Pillow, which is not installed. pip install pillow") from error
