"""`GpuDecode`: workers choose a JPEG's crop, and the device decodes it."""

import struct
from dataclasses import dataclass

import numpy as np

from mpload.errors import ArgumentError
from mpload.images.claims import Claim, unclaimed
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.geometry import open_as
from mpload.images.image import Image
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
    """An image on its way to the device: a JPEG with the view to show of it, or that view's pixels.

    Its bytes are 8 bytes of magic, three flags and one unused byte, ten little-endian uint32, then `data`.
    """

    view: View
    is_jpeg: bool
    data: ImageBytes
    """The JPEG file, or the pixels of the view's window, uint8 RGB [height, width, 3]."""

    def to_bytes(self) -> bytes:
        """Return the bytes that `of` reads."""
        view, shown = self.view, self.view.shown
        boxes = (*_numbers(view.box), *view.full, *_numbers(shown))
        return b"".join((_HEADER.pack(_MAGIC, self.is_jpeg, view.mirror, view.antialias, *boxes), self.data))

    @classmethod
    def of(cls, sample: bytes | memoryview) -> "EncodedImage":
        """Read the result of `to_bytes`; `data` shares the memory of `sample`."""
        _, is_jpeg, mirror, antialias, *numbers = _HEADER.unpack_from(sample)
        full = (numbers[4], numbers[5])
        window: Box | None = _box(numbers[6:])
        if window == Box(top=0, left=0, height=full[0], width=full[1]):
            window = None
        view = View(box=_box(numbers[:4]), full=full, window=window, mirror=mirror, antialias=antialias)
        return cls(view=view, is_jpeg=is_jpeg, data=memoryview(sample)[_HEADER.size :])

    @staticmethod
    def is_one(sample: object) -> bool:
        """Return whether a value of a batch is an encoded image."""
        if isinstance(sample, memoryview):
            try:
                return bytes(sample[: len(_MAGIC)]) == _MAGIC
            except (NotImplementedError, TypeError, ValueError):  # the user's own: of another shape, or released
                return False
        return isinstance(sample, bytes) and sample.startswith(_MAGIC)


@dataclass(frozen=True, slots=True)
class GpuDecode:
    """Leave the decoding, cropping and resizing of JPEGs to the device, where a `DevicePrefetcher` does it.

    The regions are the same as if `crop` ran on the CPU. Pixels differ a little, because the GPU does not smooth
    colours that are stored at half the resolution. They differ more if the CPU would decode at a smaller scale. Workers
    decode what the device does not support (other formats, CMYK, EXIF orientations, truncated files), and the error
    policy applies there. A device may show a file that is damaged in the middle without an error. Without a
    `DevicePrefetcher`, a batch holds a list of bytes, or of memoryviews from an `MPLoader`.

    If the device decodes more slowly than the workers could, or the workers have nothing else to do, let both decode:
    choose a `share` with which neither waits. Which JPEGs the device decodes depends on seed, epoch and sample only.

    Attributes:
        crop: The decoder that chooses the region.
        share: The fraction of the JPEGs that the device decodes, in [0, 1]; workers decode the others.

    Raises:
        ArgumentError: `crop` is neither a `RandomResizedCrop` nor a `ResizeCenterCrop`, or `share` is not in [0, 1].
    """

    crop: RandomResizedCrop | ResizeCenterCrop
    share: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.crop, RandomResizedCrop | ResizeCenterCrop):
            raise ArgumentError(f"crop must be a RandomResizedCrop or ResizeCenterCrop, got {self.crop!r}")
        if not 0 <= self.share <= 1:
            raise ArgumentError(f"share must be in [0, 1], got {self.share!r}")

    @property
    def limits(self) -> Limits:
        """Which files are refused."""
        return self.crop.limits

    def __call__(self, data: ImageBytes, rng: np.random.Generator, claim: Claim = unclaimed) -> bytes:
        """Return the image as bytes that `EncodedImage.of` reads.

        Args:
            data: The bytes of one image.
            rng: The generator that `crop` draws from, and then, if `share` is less than 1, which side decodes.
            claim: As for `open_image`.

        Raises:
            DecodeError: `data` is not an image of a known format, it exceeds `limits`, or the worker has to decode it
                and it is damaged.
        """
        crop = self.crop
        image = open_as(crop, data, claim)
        view = crop.draw_geometry(image.height, image.width, rng).view
        if (self.share == 1 or rng.random() < self.share) and _device_can_decode(image):
            return EncodedImage(view=view, is_jpeg=True, data=data).to_bytes()
        pixels = np.empty(crop.output_shape, np.uint8)
        image.draw(view, pixels)
        return EncodedImage(view=view, is_jpeg=False, data=pixels.data).to_bytes()


def _device_can_decode(image: Image) -> bool:
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
