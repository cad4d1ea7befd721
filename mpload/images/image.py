"""Opens one image: finds its format and size, then decodes its pixels.

The size is read from the header and checked against the limits before a pixel is decoded. `mpload.images.jpeg` decodes
JPEG, and `mpload.images.pnm` binary PGM and PPM. OpenCV decodes PNG, WebP, BMP, TIFF and GIF (first frame), except BMP
files that it would show in wrong colours: `mpload.images.bmp` decodes those. The content determines the format, never
the file's name. Colour profiles (ICC) are ignored. Alpha is dropped. Of channels with 16 bits, the upper 8 are used;
those of PGM and PPM are scaled and rounded.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import imagesize  # type: ignore[import-untyped]
import numpy as np

from mpload.errors import DecodeError
from mpload.images.backends import Backend
from mpload.images.bmp import bmp_pixels, has_masks
from mpload.images.claims import PEAK_PIXEL_BYTES, Claim, unclaimed
from mpload.images.jpeg import decode_with_opencv, open_jpeg, oriented
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.opencv import cv2
from mpload.images.pnm import pnm_format, pnm_pixels
from mpload.images.resize import Box, Pixels, View, resize_into
from mpload.images.tiff import TiffTag, as_stored, check_whole, first_number, tiff_size, tiff_tags, with_number

__all__ = ["Image", "image_format", "is_image", "open_image"]

_SIGNATURES = (  # first bytes of a file, and its format
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"RIFF", "WebP"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
)


class Image(Protocol):
    """An image whose header has been read. Sizes and positions apply after EXIF orientation, unless that is ignored."""

    @property
    def height(self) -> int:
        """The image's height in pixels."""
        ...

    @property
    def width(self) -> int:
        """The image's width in pixels."""
        ...

    def pixels(self) -> Pixels:
        """Return the whole image, uint8 RGB [height, width, 3], perhaps as an array that is not contiguous.

        Raises:
            DecodeError: The image is damaged or truncated.
        """
        ...

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:
        """Return the region inside `box`, uint8 RGB [h, w, 3], perhaps as an array whose rows are not contiguous.

        The region may be decoded at a smaller scale, but not smaller than `at_least` (height, width) unless the box
        itself is.

        Raises:
            DecodeError: The image is damaged or truncated.
        """
        ...

    def draw(self, view: View, out: Pixels) -> None:
        """Write the pixels of `view` into `out`, C-contiguous uint8 [height, width, 3] of the view's window.

        Raises:
            DecodeError: The image is truncated, or damaged before the last row that is needed.
        """
        ...


_ANIMATION_CHUNKS = frozenset({b"acTL", b"fcTL", b"fdAT"})
_EXTRA_SAMPLES, _ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 338, 1, 2  # a tag of TIFF, and two values of it
_SAMPLE_FORMAT, _SIGNED = 339, 2  # the same


def open_image(
    data: ImageBytes,
    *,
    upright: bool = True,
    limits: Limits = Limits(),
    backend: Backend = "auto",
    claim: Claim = unclaimed,
) -> Image:
    """Find the format and size of an image. A JPEG is decoded later, when pixels are requested; other formats at once.

    Args:
        data: The bytes of one image.
        upright: Rotate and mirror the image as its EXIF data says.
        limits: Which files are refused.
        backend: The JPEG decoder.
        claim: Called with a number of bytes before that much memory is allocated; returns when it is available.

    Raises:
        DecodeError: `data` is not an image of a known format, is damaged, or exceeds `limits`.
    """
    limits.check_bytes(len(data))
    kind = image_format(data)
    if kind == "JPEG":
        return open_jpeg(data, upright=upright, limits=limits, backend=backend, claim=claim)
    if not kind:
        found = f"starts with {bytes(data[:12])!r}" if data else "0 bytes"
        raise DecodeError(f"not an image: {found}. JPEG, PNG, WebP, BMP, TIFF, GIF, PGM (P5) and PPM (P6) are decoded")
    if kind in {"PGM", "PPM"}:
        return _Decoded(pnm_pixels(data, limits=limits, claim=claim), claim)
    tags = tiff_tags(data) if kind == "TIFF" else {}
    width, height = tiff_size(tags) if kind == "TIFF" else imagesize.get(BytesIO(data), exif_rotation=False)
    limits.check_size(kind, height, width, len(data))
    orientation = 1
    if kind == "PNG":
        data = _without_animation(data)
    elif kind == "TIFF":
        data, orientation = as_stored(_tiff_for_opencv(data, tags), tags)
    claim(PEAK_PIXEL_BYTES * height * width)
    if kind == "BMP" and has_masks(data):
        return _Decoded(bmp_pixels(data, limits=limits), claim)
    flags = cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = decode_with_opencv(data, flags)
    if pixels is None:
        raise DecodeError(f"{kind} is damaged, truncated, or of a kind that OpenCV {cv2.__version__} cannot decode")
    limits.check_size(kind, pixels.shape[0], pixels.shape[1], len(data))
    if upright and orientation != 1:
        pixels = np.ascontiguousarray(oriented(pixels, orientation))
    return _Decoded(pixels, claim)


def decoded_image(pixels: Pixels, claim: Claim = unclaimed) -> Image:
    """Return pixels, uint8 RGB [height, width, 3], as an image."""
    return _Decoded(pixels, claim)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """An image that has been decoded completely."""

    decoded: Pixels
    claim: Claim

    @property
    def height(self) -> int:
        return int(self.decoded.shape[0])

    @property
    def width(self) -> int:
        return int(self.decoded.shape[1])

    def pixels(self) -> Pixels:
        return self.decoded

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:  # noqa: ARG002  only Jpeg.region uses it
        return box.of(self.decoded)

    def draw(self, view: View, out: Pixels) -> None:
        resize_into(out, view.box.of(self.decoded), view, claim=self.claim)


def is_image(data: ImageBytes) -> bool:
    """Return whether bytes begin like an image of a known format."""
    return bool(image_format(data))


def image_format(data: ImageBytes) -> str:
    """Return JPEG, PNG, WebP, BMP, TIFF, GIF, PGM or PPM, by the first bytes of an image. Empty if it is none."""
    start = bytes(data[:12])
    for signature, name in _SIGNATURES:
        if start.startswith(signature) and (name != "WebP" or start[8:] == b"WEBP"):
            return name
    return pnm_format(start)


def _tiff_for_opencv(data: ImageBytes, tags: dict[int, TiffTag]) -> ImageBytes:
    """Return the TIFF that OpenCV is given, so that it shows the stored colours.

    Raises:
        DecodeError: A part of the file is missing, or it holds signed numbers.
    """
    check_whole(data, tags)
    if first_number(tags, _SAMPLE_FORMAT, 1) == _SIGNED:
        raise DecodeError(
            "the TIFF holds signed numbers, and it is unknown which of them is white. Store unsigned ones. If they are "
            "no colours, read them with Mask() or a callable of your own"
        )
    if first_number(tags, _EXTRA_SAMPLES, 0) == _UNASSOCIATED_ALPHA:  # OpenCV would multiply colours by an alpha
        data = with_number(data, tags[_EXTRA_SAMPLES], _ASSOCIATED_ALPHA)  # a copy says that this was done already
    return data


def _without_animation(data: ImageBytes) -> ImageBytes:
    """Return a PNG without the chunks of its animation, if it has some.

    OpenCV crashes when it reads a damaged animation, and does not notice damage to the picture that all readers show.

    Raises:
        DecodeError: A chunk is longer than the file. OpenCV would allocate and clear up to 4 GB for it.
    """
    position, kind, begin = 8, b"", 0
    parts: list[ImageBytes] = []
    while position + 8 <= len(data) and kind != b"IEND":  # bytes after the PNG are ignored
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            raise DecodeError(f"PNG is damaged or truncated: a chunk ends at byte {end:,} of {len(data):,}")
        kind = bytes(data[position + 4 : position + 8])
        if kind in _ANIMATION_CHUNKS:
            parts.append(data[begin:position])
            begin = end
        position = end
    return b"".join([*parts, data[begin:position]]) if parts else data
