"""One image's bytes: what they are, how large, and their pixels.

The size is known, and bounded, before a pixel is decoded. `mpload.images.jpeg` decodes JPEG, OpenCV decodes PNG, WebP,
BMP, TIFF and GIF (first frame). The content tells which it is, never the name of the file. Colour profiles (ICC) are
ignored, alpha is dropped (a TIFF's is blended with black), of 16 bits a channel the upper 8 are taken.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Literal, Protocol

import cv2
import imagesize  # type: ignore[import-untyped]

from mpload.errors import DecodeError
from mpload.images.claims import PEAK_PIXEL_BYTES, Claim, unclaimed
from mpload.images.jpeg import Backend, decode_with_opencv, open_jpeg
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Box, Pixels, View, resize_into

__all__ = ["Image", "open_image"]

_JPEG_START = b"\xff\xd8\xff"
_SIGNATURES = (  # of the start of another file, and what may follow it
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"RIFF", "WebP"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
)


class Image(Protocol):
    """An image whose header has been read. Sizes and positions are those of the image as it is shown."""

    @property
    def height(self) -> int:
        """In pixels."""
        ...

    @property
    def width(self) -> int:
        """In pixels."""
        ...

    def pixels(self) -> Pixels:
        """Return the whole image, uint8 RGB [height, width, 3]; may be a view that is not contiguous.

        Raises:
            DecodeError: It cannot be decoded, or not to its end.
        """
        ...

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:
        """Return what `box` frames, uint8 RGB [h, w, 3]; may be a view whose rows are not contiguous.

        It may be smaller than `box`, but never than `at_least` (height, width) where the box is not.

        Raises:
            DecodeError: It cannot be decoded, or not to its end.
        """
        ...

    def draw(self, view: View, out: Pixels) -> None:
        """Write what `view` shows into `out`, C-contiguous uint8 [height, width, 3] of the view's window.

        Raises:
            DecodeError: It cannot be decoded, or not to the last row that is needed.
        """
        ...


def open_image(
    data: ImageBytes,
    *,
    upright: bool = True,
    limits: Limits = Limits(),
    backend: Backend = "auto",
    claim: Claim = unclaimed,
) -> Image:
    """Look at what `data` is and how large; a JPEG is decoded only when it is asked for pixels.

    Args:
        data: The bytes of one image.
        upright: Show it turned and mirrored as its EXIF data says; a TIFF, which stores it, always is.
        limits: What is refused.
        backend: What decodes a JPEG.
        claim: Called with a number of bytes before so much memory is taken to decode; returns when there is room.

    Raises:
        DecodeError: `data` is no image of a known format, is damaged, or exceeds `limits`.
    """
    limits.check_bytes(len(data))
    if data[:3] == _JPEG_START:
        return open_jpeg(data, upright=upright, limits=limits, backend=backend, claim=claim)
    kind = _kind_of(data)
    width, height = _tiff_size(data) if kind == "TIFF" else imagesize.get(BytesIO(data), exif_rotation=False)
    limits.check_size(kind, height, width, len(data))
    if kind == "PNG":
        _check_png_chunks(data)
    claim(PEAK_PIXEL_BYTES * height * width)
    flags = cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = decode_with_opencv(data, flags)
    if pixels is None:
        raise DecodeError(f"{kind} is damaged, truncated, or of a kind that OpenCV {cv2.__version__} cannot decode")
    limits.check_size(kind, pixels.shape[0], pixels.shape[1], len(data))
    return _Decoded(pixels, claim)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """An image of a format that is always decoded whole."""

    shown: Pixels
    claim: Claim

    @property
    def height(self) -> int:
        return int(self.shown.shape[0])

    @property
    def width(self) -> int:
        return int(self.shown.shape[1])

    def pixels(self) -> Pixels:
        return self.shown

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:  # noqa: ARG002  it is what Jpeg.region takes
        return box.of(self.shown)

    def draw(self, view: View, out: Pixels) -> None:
        resize_into(out, view.box.of(self.shown), view, claim=self.claim)


def _kind_of(data: ImageBytes) -> str:
    start = bytes(data[:12])
    for signature, kind in _SIGNATURES:
        if start.startswith(signature) and (kind != "WebP" or start[8:] == b"WEBP"):
            return kind
    what = f"starts with {start!r}" if start else "0 bytes"
    raise DecodeError(f"not an image: {what}. JPEG, PNG, WebP, BMP, TIFF and GIF are decoded")


def _tiff_size(data: ImageBytes) -> tuple[int, int]:
    """Return width and height of the first image, by the tags that libtiff takes: of several alike the first."""
    order: Literal["little", "big"] = "little" if bytes(data[:2]) == b"II" else "big"

    def number(start: int, num_bytes: int) -> int:
        return int.from_bytes(data[start : start + num_bytes], order)

    directory = number(4, 4)
    found = {256: 0, 257: 0}
    for entry in range(directory + 2, directory + 2 + 12 * number(directory, 2), 12):
        tag, num_bytes = number(entry, 2), {1: 1, 3: 2, 4: 4}.get(number(entry + 2, 2), 0)
        if found.get(tag) == 0:
            found[tag] = number(entry + 8, num_bytes)
    return found[256], found[257]


def _check_png_chunks(data: ImageBytes) -> None:
    """Refuse a chunk that is longer than the file: OpenCV would allocate, and clear, the up to 4 GB that it claims."""
    position = 8
    while position + 8 <= len(data):
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            raise DecodeError(f"PNG is damaged or truncated: a chunk ends at byte {end:,} of {len(data):,}")
        if data[position + 4 : position + 8] == b"IEND":  # what follows is not the PNG's, and does no harm
            return
        position = end
