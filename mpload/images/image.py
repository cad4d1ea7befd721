"""One image's bytes: what they are, how large, and their pixels.

The size is known, and bounded, before a pixel is decoded. `mpload.images.jpeg` decodes JPEG, OpenCV decodes PNG, WebP,
BMP, TIFF and GIF (first frame). The content tells which it is, never the name of the file. Colour profiles (ICC) are
ignored, alpha is dropped (a TIFF's is blended with black), of 16 bits a channel the upper 8 are taken.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Final, Literal, Protocol

import cv2
import imagesize  # type: ignore[import-untyped]

from mpload.errors import ArgumentError, DecodeError
from mpload.images.jpeg import (
    PEAK_PIXEL_BYTES,
    Backend,
    Claim,
    ImageBytes,
    Jpeg,
    decode_with_opencv,
    has_more_scans,
    read_header,
    read_segments,
    size_in_frame,
    unclaimed,
)
from mpload.images.resize import Box, Pixels, View, resize_into
from mpload.units import GIB

__all__ = [
    "DEFAULT_LIMITS",
    "MAX_BYTES",
    "MAX_PIXELS",
    "Box",
    "Image",
    "ImageBytes",
    "Limits",
    "Pixels",
    "View",
    "open_image",
]

MAX_PIXELS: Final = 178_956_970  # where Pillow calls an image a decompression bomb: 0.5 GB of RGB
MAX_SCANS: Final = 64  # encoders write about ten, and decoding each one touches the whole picture
MAX_PIXELS_PER_BYTE: Final = 100_000  # a blank page by CCITT takes a bit a row: 8 times its width; a PNG comes to 8,258
_ALWAYS_PLAUSIBLE_PIXELS = 1 << 24
MAX_BYTES: Final = GIB  # which holds that many pixels stored plainly, 16 bits a channel
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which files are decoded, and which are refused.

    Attributes:
        max_bytes: The largest file; where its size is known before it is read, it is not read either.
        max_pixels: The largest image, by the size its header gives. While an image is decoded whole, a worker takes 3
            to 13 bytes for each of its pixels, at this default up to 2.3 GB: workers of an `MPLoader` wait for each
            other with images that take more than their part of `memory_budget`. Which images are refused depends on
            this number only, so a budget that is to hold one of the largest has room for 26 bytes times `max_pixels`.
        max_pixels_per_byte: The most pixels that a byte of a file may stand for, in images of more than 16 million: a
            file of 35 bytes can say that it is a GIF of 13,000 x 13,000.
        max_scans: The most scans of a JPEG (progressive ones have several): each takes as long as a plain JPEG, and
            may be one of some bytes.
        allow_truncated: Take a JPEG that breaks off: the pixels that are there, the rest gray (of a progressive one the
            whole image, blurred). Other formats are refused when they break off.

    Raises:
        ArgumentError: A number is not positive.
    """

    max_bytes: int = MAX_BYTES
    max_pixels: int = MAX_PIXELS
    max_pixels_per_byte: int = MAX_PIXELS_PER_BYTE
    max_scans: int = MAX_SCANS
    allow_truncated: bool = False

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_pixels_per_byte", "max_scans"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")

    def check_bytes(self, num_bytes: int) -> None:
        """Raise `DecodeError` where a file of `num_bytes` is too large."""
        if num_bytes > self.max_bytes:
            raise DecodeError(f"{num_bytes:,} bytes exceed max_bytes={self.max_bytes:,}")

    def check_pixels(self, height: int, width: int, num_bytes: int) -> None:
        """Raise `DecodeError` where an image of `height` and `width` is too large, or too large for its `num_bytes`."""
        num_pixels = height * width
        if num_pixels > self.max_pixels:
            raise DecodeError(f"{width}x{height} = {num_pixels:,} pixels exceed max_pixels={self.max_pixels:,}")
        if num_pixels > max(_ALWAYS_PLAUSIBLE_PIXELS, num_bytes * self.max_pixels_per_byte):
            raise DecodeError(
                f"{width}x{height} = {num_pixels:,} pixels in {num_bytes:,} bytes exceed "
                f"max_pixels_per_byte={self.max_pixels_per_byte:,}"
            )


DEFAULT_LIMITS: Final = Limits()


class Image(Protocol):
    """An image of which at least the header is read. Sizes and places are those of the image as it is shown."""

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
    limits: Limits = DEFAULT_LIMITS,
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
        return _open_jpeg(data, upright=upright, limits=limits, backend=backend, claim=claim)
    kind = _kind_of(data)
    width, height = _tiff_size(data) if kind == "TIFF" else imagesize.get(BytesIO(data), exif_rotation=False)
    _check_size(kind, height, width, data, limits)
    if kind == "PNG":
        _check_png_chunks(data)
    claim(PEAK_PIXEL_BYTES * height * width)
    flags = cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = decode_with_opencv(data, flags)
    if pixels is None:
        raise DecodeError(f"{kind} is damaged, truncated, or of a kind that OpenCV {cv2.__version__} cannot decode")
    limits.check_pixels(pixels.shape[0], pixels.shape[1], len(data))
    return _Decoded(pixels)


def _open_jpeg(data: ImageBytes, *, upright: bool, limits: Limits, backend: Backend, claim: Claim) -> Jpeg:
    orientation, frame, has_one_scan = read_segments(data)
    if frame:
        height, width = size_in_frame(data, frame)
    elif (header := read_header(data)) is not None:
        height, width, _ = header
    else:
        width, height = imagesize.get(BytesIO(data), exif_rotation=False)
    _check_size("JPEG", height, width, data, limits)
    if not frame and has_more_scans(data, limits.max_scans):  # else it has one
        raise DecodeError(f"the JPEG has more than max_scans={limits.max_scans} scans")
    return Jpeg(
        data=data,
        stored_height=height,
        stored_width=width,
        orientation=orientation if upright else 1,
        frame=frame,
        has_one_scan=has_one_scan,
        allow_truncated=limits.allow_truncated,
        backend=backend,
        claim=claim,
    )


def _check_size(kind: str, height: int, width: int, data: ImageBytes, limits: Limits) -> None:
    if height <= 0 or width <= 0:
        raise DecodeError(f"{kind} header is damaged or cut off: it gives no size ({len(data):,} bytes in all)")
    limits.check_pixels(height, width, len(data))


@dataclass(frozen=True, slots=True)
class _Decoded:
    """An image of a format that is always decoded whole."""

    shown: Pixels

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
        resize_into(out, view.box.of(self.shown), view)


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
