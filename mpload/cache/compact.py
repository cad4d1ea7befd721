"""The form of an image that `what="resized"` keeps."""

from importlib.metadata import version

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from mpload.errors import DecodeError
from mpload.image import Box, open_image

__all__ = ["COMPACT_FORM", "compact"]

_SHORT_SIDE = 256
_QUALITY = 92
COMPACT_FORM = f"jpeg{_QUALITY} short{_SHORT_SIDE} simplejpeg-{version('simplejpeg')} opencv-{cv2.__version__}"
"""What the bytes of the compact form depend on: other versions may round otherwise, and get a cache of their own."""


def compact(data: bytes) -> bytes:
    """Return the image as a JPEG whose short side is 256 pixels, upright; `data` itself where that gains nothing.

    Images that are no larger stay as they are, and so does what cannot be decoded: the decoder will say why. Large ones
    are decoded at a power-of-two scale that still covers the target.
    """
    try:
        image = open_image(data)
        short = min(image.height, image.width)
        if short <= _SHORT_SIDE:
            return data
        height, width = (max(1, round(side * _SHORT_SIDE / short)) for side in (image.height, image.width))
        whole = Box(top=0, left=0, height=image.height, width=image.width)
        pixels = np.ascontiguousarray(image.region(whole, at_least=(height, width)))
    except DecodeError:
        return data
    small = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    jpeg: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(small), quality=_QUALITY, colorspace="RGB", colorsubsampling="420"
    )
    return jpeg if len(jpeg) < len(data) else data
