"""`GpuDecode`: workers choose what is shown of a JPEG, and leave its decoding to the device."""

import struct
from dataclasses import dataclass

import numpy as np

from mpload.errors import ArgumentError
from mpload.images.claims import Claim, unclaimed
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop, center_view, random_view
from mpload.images.image import Image, open_image
from mpload.images.jpeg import Jpeg
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Box, View

__all__ = ["EncodedImage", "GpuDecode"]

_MAGIC = b"\x93mpload\1"
_HEADER = struct.Struct("<8s???x10I")
_END_OF_JPEG = b"\xff\xd9"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImage:
    """An image on its way to the device: a JPEG and what is to be shown of it, or the pixels that are.

    As bytes: a magic of 8, three flags and a blank of 1 byte each, ten uint32 in little-endian order, then `data`.
    """

    view: View
    is_jpeg: bool
    data: ImageBytes
    """The file, or uint8 RGB [height, width, 3] of the view's window."""

    def to_bytes(self) -> bytes:
        """Return what `of` reads."""
        view, shown = self.view, self.view.shown
        boxes = (*_numbers(view.box), *view.full, *_numbers(shown))
        return _HEADER.pack(_MAGIC, self.is_jpeg, view.mirror, view.antialias, *boxes) + bytes(self.data)

    @classmethod
    def of(cls, sample: bytes) -> "EncodedImage":
        """Read what `to_bytes` has written; `data` is a view of `sample`."""
        _, is_jpeg, mirror, antialias, *numbers = _HEADER.unpack_from(sample)
        full = (numbers[4], numbers[5])
        window: Box | None = _box(numbers[6:])
        if window == Box(top=0, left=0, height=full[0], width=full[1]):
            window = None
        view = View(box=_box(numbers[:4]), full=full, window=window, mirror=mirror, antialias=antialias)
        return cls(view=view, is_jpeg=is_jpeg, data=memoryview(sample)[_HEADER.size :])

    @staticmethod
    def is_one(sample: object) -> bool:
        """Say whether a value of a batch is an encoded image."""
        return isinstance(sample, bytes) and sample.startswith(_MAGIC)


@dataclass(frozen=True, slots=True)
class GpuDecode:
    """Leave the decoding, cropping and resizing of JPEGs to the device; a `DevicePrefetcher` does it there.

    Regions are those that `crop` chooses on the CPU, pixels differ by rounding, and by more where the CPU would decode
    at a smaller scale. What the device does not take is decoded by the worker, and meets the error policy there: other
    formats, CMYK, EXIF orientations, files that break off. Without a `DevicePrefetcher` a batch has a list of bytes.

    Attributes:
        crop: What is shown of an image.

    Raises:
        ArgumentError: `crop` is no crop that knows what it shows before it decodes.
    """

    crop: RandomResizedCrop | ResizeCenterCrop

    def __post_init__(self) -> None:
        if not isinstance(self.crop, RandomResizedCrop | ResizeCenterCrop):
            raise ArgumentError(f"crop must be a RandomResizedCrop or ResizeCenterCrop, got {self.crop!r}")

    @property
    def limits(self) -> Limits:
        """Which files are refused."""
        return self.crop.limits

    def __call__(self, data: ImageBytes, rng: np.random.Generator, claim: Claim = unclaimed) -> bytes:
        """Return the image as `EncodedImage.of` reads it.

        Args:
            data: The bytes of one image.
            rng: What `crop` draws from.
            claim: As for `open_image`.

        Raises:
            DecodeError: `data` is no image of a known format, exceeds `limits`, or cannot be left to the device and is
                damaged.
        """
        crop = self.crop
        image = open_image(data, upright=crop.exif_orientation, limits=crop.limits, backend=crop.backend, claim=claim)
        view = random_view(crop, image, rng) if isinstance(crop, RandomResizedCrop) else center_view(crop, image)
        if _suits_the_device(image):
            return EncodedImage(view=view, is_jpeg=True, data=data).to_bytes()
        pixels = np.empty(crop.output_shape, np.uint8)
        image.draw(view, pixels)
        return EncodedImage(view=view, is_jpeg=False, data=pixels.tobytes()).to_bytes()


def _suits_the_device(image: Image) -> bool:
    return (
        isinstance(image, Jpeg)
        and image.colors in {"YCbCr", "Gray"}
        and image.orientation == 1
        and bytes(image.data[-2:]) == _END_OF_JPEG
    )


def _numbers(box: Box) -> tuple[int, int, int, int]:
    return box.top, box.left, box.height, box.width


def _box(numbers: list[int]) -> Box:
    top, left, height, width = numbers
    return Box(top=top, left=left, height=height, width=width)
