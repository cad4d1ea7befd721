"""The form of an image that `what="resized"` keeps."""

from mpload.errors import DecodeError
from mpload.images.image import open_image
from mpload.images.shrink import SHRUNK_BY, shrunk_jpeg

__all__ = ["COMPACT_FORM", "compact"]

_SHORT_SIDE = 256
_QUALITY = 92
COMPACT_FORM = f"jpeg{_QUALITY} short{_SHORT_SIDE} {SHRUNK_BY}"
"""What the bytes of the compact form depend on: what rounds otherwise gets a cache of its own."""


def compact(data: bytes) -> bytes:
    """Return the image as a JPEG whose shorter side is 256 pixels, upright; `data` itself where that gains nothing.

    Images that are no larger stay as they are, and so does what cannot be decoded: the decoder will say why.
    """
    try:
        image = open_image(data)
        if min(image.height, image.width) <= _SHORT_SIDE:
            return data
        jpeg = shrunk_jpeg(image, short_side=_SHORT_SIDE, quality=_QUALITY)
    except DecodeError:
        return data
    return jpeg if len(jpeg) < len(data) else data
