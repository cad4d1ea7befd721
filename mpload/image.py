"""One image's bytes: what they are, how large, and their pixels.

The size is known, and bounded, before a pixel is decoded. JPEG is decoded by simplejpeg, PNG, WebP, BMP, TIFF and GIF
(first frame) by OpenCV; which it is tells the content, never the name of the file. Colour profiles (ICC) are ignored,
alpha is dropped (a TIFF's is blended with black), of 16 bits a channel the upper 8 are taken.
"""

from dataclasses import dataclass, replace
from io import BytesIO
from typing import Final, Literal, Protocol

import cv2
import imagesize  # type: ignore[import-untyped]
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.units import GIB

__all__ = ["DEFAULT_LIMITS", "MAX_BYTES", "MAX_PIXELS", "Box", "Image", "ImageBytes", "Limits", "Pixels", "open_image"]

Pixels = NDArray[np.uint8]
ImageBytes = bytes | bytearray | memoryview

MAX_PIXELS: Final = 178_956_970  # where Pillow calls an image a decompression bomb: 0.5 GB of RGB
MAX_BYTES: Final = GIB  # which holds that many pixels stored plainly, 16 bits a channel
_SIGNATURES = (  # of the start of a file, and what may follow it
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"RIFF", "WebP"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
)

# What libjpeg-turbo says of a picture that is damaged. What else it complains of (bytes between two segments, an odd
# version number) leaves the pixels whole, and other decoders pass it over.
_TRUNCATED = "Premature end of JPEG"
_DAMAGE = (
    "premature end of data segment",
    "bad Huffman code",
    "bad arithmetic code",
    "instead of RST",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which files are decoded, and which are refused.

    Attributes:
        max_bytes: The largest file; where its size is known before it is read, it is not read either.
        max_pixels: The largest image, by the size its header gives.
        allow_truncated: Take a JPEG that breaks off: the pixels that are there, the rest gray (of a progressive one the
            whole image, blurred). Other formats are refused when they break off.

    Raises:
        ArgumentError: A number is not positive.
    """

    max_bytes: int = MAX_BYTES
    max_pixels: int = MAX_PIXELS
    allow_truncated: bool = False

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")

    def check_bytes(self, num_bytes: int) -> None:
        """Raise `DecodeError` where a file of `num_bytes` is too large."""
        if num_bytes > self.max_bytes:
            raise DecodeError(f"{num_bytes:,} bytes exceed max_bytes={self.max_bytes:,}")

    def check_pixels(self, height: int, width: int) -> None:
        """Raise `DecodeError` where an image of `height` and `width` is too large."""
        if height * width > self.max_pixels:
            raise DecodeError(f"{width}x{height} = {height * width:,} pixels exceed max_pixels={self.max_pixels:,}")


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of whole pixels in an image, as it is shown (EXIF orientation applied)."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: Pixels) -> Pixels:
        """Return the view of `pixels`, [H, W, 3], that the box frames."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


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


def open_image(data: ImageBytes, *, exif_orientation: bool = True, limits: Limits = DEFAULT_LIMITS) -> Image:
    """Look at what `data` is and how large; a JPEG is decoded only when it is asked for pixels.

    Args:
        data: The bytes of one image.
        exif_orientation: Show it turned and mirrored as its EXIF data says; a TIFF, which stores it, always is.
        limits: What is refused.

    Raises:
        DecodeError: `data` is no image of a known format, is damaged, or exceeds `limits`.
    """
    limits.check_bytes(len(data))
    kind = _kind_of(data)
    colors = None
    try:
        if kind == "JPEG":
            height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError):  # a KeyError is a colour space or subsampling it has no name for
        colors = None
    if colors is None:
        width, height = imagesize.get(BytesIO(data), exif_rotation=False)
    if height <= 0 or width <= 0:
        raise DecodeError(f"{kind} header is damaged or cut off: it gives no size ({len(data):,} bytes in all)")
    limits.check_pixels(height, width)
    if kind == "JPEG":
        orientation = _exif_orientation(data) if exif_orientation else 1
        return _Jpeg(
            data=data,
            stored_height=height,
            stored_width=width,
            orientation=orientation,
            colors=colors,
            allow_truncated=limits.allow_truncated,
        )

    if kind == "PNG":
        _check_png_chunks(data)
    flags = cv2.IMREAD_COLOR if exif_orientation else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = _decode_with_opencv(data, flags)
    if pixels is None:
        raise DecodeError(f"{kind} is damaged, truncated, or of a kind that OpenCV {cv2.__version__} cannot decode")
    limits.check_pixels(*pixels.shape[:2])
    return _Decoded(pixels)


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

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:  # noqa: ARG002  it is what _Jpeg.region takes
        return box.of(self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jpeg:
    """A JPEG of which only the header is read: what is decoded may depend on its size."""

    data: ImageBytes
    stored_height: int
    stored_width: int
    orientation: int
    colors: str | None
    """As simplejpeg names them; None where it cannot read the header, which OpenCV then may."""
    allow_truncated: bool

    @property
    def height(self) -> int:
        return self.stored_width if self.orientation >= 5 else self.stored_height

    @property
    def width(self) -> int:
        return self.stored_height if self.orientation >= 5 else self.stored_width

    def pixels(self) -> Pixels:
        return _oriented(self._stored_pixels(denominator=1), self.orientation)

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:
        """Return what `box` frames, at a scale that leaves it at least that high and wide if it is now."""
        spare = min(box.height // at_least[0], box.width // at_least[1])
        denominator = max(part for part in (1, 2, 4, 8) if part <= max(1, spare))
        pixels = self._stored_pixels(denominator=denominator)
        box = _stored_box(box, self.orientation, self.height, self.width)
        top, height = _scaled_span(box.top, box.height, denominator, pixels.shape[0])
        left, width = _scaled_span(box.left, box.width, denominator, pixels.shape[1])
        region = Box(top=top, left=left, height=height, width=width).of(pixels)
        return region if self.orientation == 1 else np.ascontiguousarray(_oriented(region, self.orientation))

    def _stored_pixels(self, *, denominator: int) -> Pixels:
        """Decode to RGB; at 1/2, 1/4 or 1/8 of the size where the decoder can (other scales take longer than 1/1)."""
        cause = "its header is unusual, and OpenCV cannot decode it"
        if self.colors is not None:
            try:
                return self._decode(denominator, strict=True)
            except ValueError as error:
                cause = str(error)
                if _TRUNCATED in cause and self.allow_truncated:
                    return self._decode(denominator, strict=False)
                if _TRUNCATED in cause:
                    raise DecodeError(f"JPEG is truncated: it ends after {len(self.data):,} bytes") from error
                if any(damage in cause for damage in _DAMAGE):
                    raise DecodeError(f"JPEG is damaged: {cause}") from error
        decoded = _decode_with_opencv(self.data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if decoded is None or decoded.shape[:2] != (self.stored_height, self.stored_width):
            raise DecodeError(f"JPEG cannot be decoded: {cause}")
        return decoded

    def _decode(self, denominator: int, *, strict: bool) -> Pixels:
        is_cmyk = self.colors in {"CMYK", "YCCK"}
        pixels: Pixels = simplejpeg.decode_jpeg(
            self.data,
            "CMYK" if is_cmyk else "RGB",
            min_height=-(-self.stored_height // denominator),
            min_width=-(-self.stored_width // denominator),
            min_factor=denominator,
            strict=strict,
        )
        return _rgb_from_cmyk(pixels) if is_cmyk else pixels


def _kind_of(data: ImageBytes) -> str:
    start = bytes(data[:12])
    for signature, kind in _SIGNATURES:
        if start.startswith(signature) and (kind != "WebP" or start[8:] == b"WEBP"):
            return kind
    what = f"starts with {start!r}" if start else "0 bytes"
    raise DecodeError(f"not an image: {what}. JPEG, PNG, WebP, BMP, TIFF and GIF are decoded")


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


def _decode_with_opencv(data: ImageBytes, flags: int) -> Pixels | None:
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    return None if pixels is None else cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)  # type: ignore[return-value]


def _rgb_from_cmyk(inverted: Pixels) -> Pixels:
    """Convert as Pillow does: CMYK is stored inverted, as Photoshop began, and inks are multiplied."""
    black = inverted[..., 3:].astype(np.uint16)
    product = (255 - inverted[..., :3]) * black + 128
    return (black - ((product >> 8) + product >> 8)).astype(np.uint8)


def _exif_orientation(data: ImageBytes) -> int:
    """Return the orientation, 1 to 8, that a JPEG's EXIF segment gives; 1 where there is none that can be read."""
    position = 2
    while position + 10 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker == 0xDA:  # the picture begins
            break
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        if marker == 0xE1 and data[position + 4 : position + 10] == b"Exif\0\0":
            return _tiff_orientation(bytes(data[position + 10 : position + 2 + length]))
        position += 2 + length
    return 1


def _tiff_orientation(exif: bytes) -> int:
    if exif[:2] not in {b"II", b"MM"}:
        return 1
    order: Literal["little", "big"] = "little" if exif[:2] == b"II" else "big"
    directory = int.from_bytes(exif[4:8], order)
    num_entries = int.from_bytes(exif[directory : directory + 2], order)
    for entry in range(directory + 2, min(directory + 2 + 12 * num_entries, len(exif) - 11), 12):
        tag, kind = (int.from_bytes(exif[entry + at : entry + at + 2], order) for at in (0, 2))
        if tag == 0x0112 and kind == 3:
            orientation = int.from_bytes(exif[entry + 8 : entry + 10], order)
            return orientation if 1 <= orientation <= 8 else 1
    return 1


def _oriented(pixels: Pixels, orientation: int) -> Pixels:
    """Return the view of stored `pixels` that is upright; orientations as EXIF numbers them."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    return pixels[:: -1 if orientation in {3, 4, 7, 8} else 1, :: -1 if orientation in {2, 3, 6, 7} else 1]


def _stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Return what `_oriented` would turn into `box` of an image that is `height` x `width` as it is shown."""
    if orientation in {3, 4, 7, 8}:
        box = replace(box, top=height - box.top - box.height)
    if orientation in {2, 3, 6, 7}:
        box = replace(box, left=width - box.left - box.width)
    if orientation >= 5:
        box = Box(top=box.left, left=box.top, height=box.width, width=box.height)
    return box


def _scaled_span(start: int, length: int, denominator: int, end: int) -> tuple[int, int]:
    length = min(end, max(1, round(length / denominator)))
    return min(round(start / denominator), end - length), length
