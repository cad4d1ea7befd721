"""Makes smaller copies of images, as JPEG, which packs and caches store instead of the originals."""

from importlib.metadata import version

import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from mpload.images.backends import jpeg_codec
from mpload.images.image import Image
from mpload.images.jpeg import Jpeg
from mpload.images.opencv import cv2
from mpload.images.resize import Box, Pixels, View

__all__ = ["shrunk_by", "shrunk_jpeg"]


def shrunk_by() -> str:
    """Return decoder, encoder and resizer with their versions: other versions may round differently."""
    return f"{jpeg_codec()} simplejpeg-{version('simplejpeg')} opencv-{cv2.__version__}"


def shrunk_jpeg(image: Image, *, short_side: int, quality: int) -> bytes:
    """Encode the image as a JPEG, downsized to a shorter side of `short_side` pixels if it is larger.

    All pixels that a pixel of the result covers are averaged: with a triangle filter in the native decoder, otherwise
    by area in OpenCV, which is slower (but faster than the triangle filter in NumPy). Large images are decoded at a
    power-of-two scale that still covers the target.

    Raises:
        DecodeError: The image is damaged or truncated.
    """
    pixels = _shrunk(image, _shrunk_size(image, short_side))
    encoded: bytes = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420")
    return encoded


def _shrunk_size(image: Image, short_side: int) -> tuple[int, int]:
    """Return height and width of the image with that shorter side; its own size if it is not larger."""
    short = min(image.height, image.width)
    if short <= short_side:
        return image.height, image.width
    return max(1, round(image.height * short_side / short)), max(1, round(image.width * short_side / short))


def _shrunk(image: Image, size: tuple[int, int]) -> Pixels:
    if size == (image.height, image.width):
        return np.ascontiguousarray(image.pixels())
    whole = Box(top=0, left=0, height=image.height, width=image.width)
    if isinstance(image, Jpeg) and image.native is not None:
        pixels = np.empty((*size, 3), np.uint8)
        image.draw(View(box=whole, full=size, antialias=True), pixels)
        return pixels
    region = np.ascontiguousarray(image.region(whole, at_least=size))
    return np.asarray(cv2.resize(region, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
