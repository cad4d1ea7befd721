"""The form of an image that `what="resized"` keeps."""

import warnings

from mpload.errors import DecodeError, MploadWarning
from mpload.images.decoders import ResizeCenterCrop, center_short_side
from mpload.images.image import open_image
from mpload.images.shrink import SHRUNK_BY, shrunk_jpeg

__all__ = ["COMPACT_FORM", "compact", "warn_of_other_pixels"]

_SHORT_SIDE = 256
_QUALITY = 92
COMPACT_FORM = f"jpeg{_QUALITY} short{_SHORT_SIDE} {SHRUNK_BY}"
"""Everything that the compact form's bytes depend on: versions that round differently use separate caches."""


def compact(data: bytes) -> bytes:
    """Return the image as an upright JPEG with a shorter side of 256 pixels; `data` itself if that is smaller.

    Images with a shorter side of at most 256 pixels are returned unchanged. So is data that cannot be decoded, for
    which the decoder will later report the cause.
    """
    try:
        image = open_image(data)
        if min(image.height, image.width) <= _SHORT_SIDE:
            return data
        jpeg = shrunk_jpeg(image, short_side=_SHORT_SIDE, quality=_QUALITY)
    except DecodeError:
        return data
    return jpeg if len(jpeg) < len(data) else data


def warn_of_other_pixels(decode: object) -> None:
    """Warn if a decoder would enlarge images of the compact form, or show patches of them."""
    shape = getattr(decode, "output_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 3:
        return
    side = center_short_side(decode) if isinstance(decode, ResizeCenterCrop) else min(shape[:2])
    if not getattr(decode, "resizes", True):
        what = "makes patches of smaller images, so that they show more of the photograph"
    elif side > _SHORT_SIDE:
        what = f"enlarges images to {side} pixels"
    else:
        return
    warnings.warn(
        f'cache: what="resized" keeps images with a short side of {_SHORT_SIDE} pixels, and {type(decode).__name__} '
        f'{what}. Use what="bytes", or pack the images with `mpload pack --resize-short`',
        MploadWarning,
        stacklevel=2,
    )
