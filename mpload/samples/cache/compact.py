"""The form of an image that `what="resized"` keeps."""

from collections.abc import Iterator
from dataclasses import dataclass

from mpload.errors import ArgumentError, DecodeError, warn
from mpload.images.decoders import ResizeCenterCrop, center_short_side
from mpload.images.gpu_decode import GpuDecode
from mpload.images.image import open_image
from mpload.images.limits import Limits
from mpload.images.pil import PilTransform
from mpload.images.shrink import shrunk_by, shrunk_jpeg
from mpload.samples.by_source import BySource

__all__ = ["Compact", "compact_for", "warn_of_other_pixels"]

_SHORT_SIDE = 256
_QUALITY = 92


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """Makes the compact form of images, for a decoder that opens them in this way.

    Attributes:
        limits: Which files the decoder refuses.
        upright: Whether it rotates and mirrors images as their EXIF data says.
    """

    limits: Limits = Limits()
    upright: bool = True

    @property
    def form(self) -> str:
        """All that the bytes depend on: versions that round differently use separate caches."""
        form = f"jpeg{_QUALITY} short{_SHORT_SIDE} {shrunk_by()}"
        return form if self == Compact() else f"{form} {self.limits} upright={self.upright}"

    def __call__(self, data: bytes) -> bytes:
        """Return the image as a JPEG with a shorter side of 256 pixels; `data` itself if that is smaller.

        Images with a shorter side of at most 256 pixels are returned unchanged. So is data that cannot be decoded or
        that the decoder refuses, for which it will later report the cause.
        """
        try:
            image = open_image(data, upright=self.upright, limits=self.limits)
            if min(image.height, image.width) <= _SHORT_SIDE:
                return data
            jpeg = shrunk_jpeg(image, short_side=_SHORT_SIDE, quality=_QUALITY)
        except DecodeError:
            return data
        return jpeg if len(jpeg) < len(data) else data


def compact_for(decode: object) -> Compact:
    """Return what makes the compact form for a decoder.

    Raises:
        ArgumentError: the decoders of a mixture's sources open images in different ways.
    """
    found = {
        Compact(
            limits=limits if type(limits := getattr(each, "limits", None)) is Limits else Limits(),
            upright=getattr(each, "exif_orientation", True) is not False,
        )
        for each in _openers(decode)
    }
    if len(found) > 1:
        raise ArgumentError(
            'cache: what="resized" needs the same limits and exif_orientation for all sources. Use what="bytes", or '
            "give all decoders the same"
        )
    return found.pop()


def warn_of_other_pixels(decode: object) -> None:
    """Warn if a decoder would enlarge images of the compact form, or show patches of them."""
    for each in _openers(decode):
        shape = getattr(each, "output_shape", None)
        if not isinstance(shape, tuple) or len(shape) != 3:
            continue
        side = center_short_side(each) if isinstance(each, ResizeCenterCrop) else min(shape[:2])
        if not getattr(each, "resizes", True):
            what = "makes patches of smaller images, so that they show more of the photograph"
        elif side > _SHORT_SIDE:
            what = f"enlarges images to {side} pixels"
        else:
            continue
        warn(
            f'cache: what="resized" keeps images with a short side of {_SHORT_SIDE} pixels, and {type(each).__name__} '
            f'{what}. Use what="bytes", or pack the images with `mpload pack --resize-short`'
        )


def _openers(decode: object) -> Iterator[object]:
    """Yield what opens images in a decoder."""
    match decode:
        case BySource():
            for choice in decode.choices.values():
                yield from _openers(choice)
        case GpuDecode():
            yield decode.crop
        case PilTransform():
            yield decode.decode
        case _:
            yield decode
