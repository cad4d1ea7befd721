"""The form of an image that `what="resized"` keeps."""

from mpload.errors import DecodeError
from mpload.images.image import open_image
from mpload.images.shrink import SHRUNK_BY, shrunk_jpeg

__all__ = ["COMPACT_FORM", "compact"]

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
