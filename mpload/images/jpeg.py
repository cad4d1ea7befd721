"""JPEG: decoded by the native module where it was built, else and in all unusual cases by simplejpeg, last by OpenCV.

Both are libjpeg-turbo. The native module decodes no more than a view needs; what it declines (CMYK, damage, anything
that libjpeg warns of) goes the other way, so that errors and odd files are the same with and without it. Damage to rows
below the last one that a view needs is not seen; a file that breaks off there is.
"""

import warnings
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Final, Literal, NamedTuple, Protocol, cast

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from mpload.errors import ArgumentError, DecodeError, MploadWarning
from mpload.images.claims import PEAK_PIXEL_BYTES, PLAIN_PIXEL_BYTES, Claim
from mpload.images.jpeg_header import ImageBytes, has_more_scans, libjpeg_header, read_header
from mpload.images.limits import Limits
from mpload.images.resize import Box, Pixels, View, resize_into

__all__ = [
    "BACKENDS",
    "Backend",
    "Jpeg",
    "StoredView",
    "check_backend",
    "decode_with_opencv",
    "jpeg_backend",
    "jpeg_codec",
    "open_jpeg",
]

Backend = Literal["auto", "native", "simplejpeg"]
"""What decodes JPEGs: the native module where there is one; it or an error; simplejpeg."""
BACKENDS: Final = ("auto", "native", "simplejpeg")

# What libjpeg-turbo says of a picture that is damaged. What else it complains of (bytes between two segments, an odd
# version number) leaves the pixels whole, and other decoders pass it over.
_TRUNCATED = "Premature end of JPEG"
_DAMAGE = (
    "premature end of data segment",
    "bad Huffman code",
    "bad arithmetic code",
    "instead of RST",
)

_NOT_NEEDED = "extraneous bytes before marker 0xd9"
_OF_INKS = frozenset({"CMYK", "YCCK"})
_STRIP_ROWS = 64
_MARGIN_ROWS = 4  # upsampling looks at the rows below


class StoredView(NamedTuple):
    """A view of a JPEG as it is stored, decoded at a scale: what the native decoder draws, `View` in its source.

    Attributes:
        size: Height and width of the whole image; a picture of another size is declined.
        denominator: The image is decoded at 1 / `denominator` of its size: 1, 2, 4 or 8.
        box: In the image at that scale.
        full: Height and width that the box is resized to.
        corner: Top and left of the result in what results; its size is that of the array it is written to.
        mirror: Left to right.
        antialias: As in `View`.
    """

    size: tuple[int, int]
    denominator: int
    box: Box
    full: tuple[int, int]
    corner: tuple[int, int]
    mirror: bool
    antialias: bool


class _Native(Protocol):
    """The module `mpload.images._jpeg`."""

    LIBJPEG_TURBO_VERSION: str
    WITH_HUFFMAN: bool
    """Whether it decodes the Huffman codes of plain JPEGs itself, which is faster. The pixels are the same."""

    def decode(self, data: ImageBytes, view: StoredView, out: Pixels) -> str | None:
        """Write a view into `out`, C-contiguous uint8 [height, width, 3]; return None, or why it was declined."""
        ...


def _find_native() -> _Native | None:
    try:
        return cast("_Native", import_module("mpload.images._jpeg"))
    except ImportError:  # not built, or its libjpeg is not there
        return None


_NATIVE: Final = _find_native()


def jpeg_codec() -> str:
    """Return what the pixels of decoded JPEGs depend on: `native (libjpeg-turbo 3.1.0)`, or `simplejpeg`."""
    return "simplejpeg" if _NATIVE is None else f"native (libjpeg-turbo {_NATIVE.LIBJPEG_TURBO_VERSION})"


def jpeg_backend() -> str:
    """Return what decodes JPEGs here: `native (libjpeg-turbo 3.1.0)`, or `simplejpeg`.

    The native decoder decodes Huffman codes itself, faster than libjpeg-turbo does. With the environment variable
    `MPLOAD_LIBJPEG_HUFFMAN=1`, or if a self-test at import finds pixels that differ from libjpeg-turbo's, it leaves the
    codes to libjpeg-turbo. The answer then is
    `native (libjpeg-turbo 3.1.0, slower: without mpload's Huffman decoder)`.
    """
    codec = jpeg_codec()
    if _NATIVE is None or _NATIVE.WITH_HUFFMAN:
        return codec
    return f"{codec.removesuffix(')')}, slower: without mpload's Huffman decoder)"


def check_backend(name: str) -> None:
    """Raise `ArgumentError` where `name` is no backend, or is not installed; warn where `"auto"` is the slow one."""
    if name not in BACKENDS:
        raise ArgumentError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {name!r}")
    if _NATIVE is not None:
        return
    if name == "native":
        raise ArgumentError(
            f"backend='native': the native decoder was not built. {_HOW_TO_BUILD}, or use backend='auto'"
        )
    if name == "auto":
        _warn_of_slow_decoding()


_HOW_TO_BUILD = (
    "Install a C compiler and libjpeg-turbo's headers (apt install gcc libjpeg62-turbo-dev), then install mpload again "
    "with pip's options --force-reinstall --no-deps --no-cache-dir"
)


@cache  # Python forgets which warnings it has shown whenever any library changes the filters
def _warn_of_slow_decoding() -> None:
    warnings.warn(
        "JPEGs are decoded by simplejpeg, as mpload was installed without its native decoder: a crop takes 1.1 to 1.2 "
        "times as long, 2.2 to 2.3 times as long with antialias=True. "  # benchmarks/records/decode.jsonl
        f"{_HOW_TO_BUILD}, or set backend='simplejpeg' to hide this warning",
        MploadWarning,
        stacklevel=5,  # the line that makes a decoder
    )


def open_jpeg(data: ImageBytes, *, upright: bool, limits: Limits, backend: Backend, claim: Claim) -> "Jpeg":
    """Read the header of a JPEG, and no more. Arguments are those of `open_image`.

    Raises:
        DecodeError: The header gives no size, or the image exceeds `limits`.
    """
    height, width, orientation, frame, has_one_scan = read_header(data)
    limits.check_size("JPEG", height, width, len(data))
    if not frame and has_more_scans(data, limits.max_scans):  # else it has one
        raise DecodeError(f"the JPEG has more than max_scans={limits.max_scans} scans")
    return Jpeg(
        data=data,
        stored_size=(height, width),
        orientation=orientation if upright else 1,
        frame=frame,
        has_one_scan=has_one_scan,
        allow_truncated=limits.allow_truncated,
        native=None if backend == "simplejpeg" else _NATIVE,
        claim=claim,
    )


@dataclass(slots=True, kw_only=True)  # frozen ones take longer to make
class Jpeg:
    """A JPEG of which only the header is read: what is decoded may depend on its size."""

    data: ImageBytes
    stored_size: tuple[int, int]
    """Height and width in pixels, before it is turned."""
    orientation: int
    """As EXIF numbers them, 1 to 8."""
    frame: int
    """Where the frame's header begins; 0 where the picture is not stored as plainly as `JpegHeader` says."""
    has_one_scan: bool
    """Whether the picture is stored in one go, so that its rows can be decoded without keeping the whole of it."""
    allow_truncated: bool
    native: _Native | None
    """What `draw` asks first."""
    claim: Claim

    @property
    def height(self) -> int:
        """Of the image as it is shown, in pixels."""
        return self.stored_size[self.orientation >= 5]

    @property
    def width(self) -> int:
        """Of the image as it is shown, in pixels."""
        return self.stored_size[self.orientation < 5]

    @property
    def colors(self) -> str | None:
        """As simplejpeg names them; None where it cannot read the header, which others then may."""
        header = libjpeg_header(self.data)
        return None if header is None else header[2]

    def pixels(self) -> Pixels:
        """Return the whole image, uint8 RGB [height, width, 3]; may be a view that is not contiguous."""
        return _oriented(self._stored_pixels(denominator=1), self.orientation)

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:
        """Return what `box` frames, at a scale that leaves it at least that high and wide if it is now."""
        denominator = _denominator(box, at_least)
        scaled = self._scaled_box(box, denominator)
        pixels = self._first_rows(scaled.top + scaled.height, denominator)
        region = scaled.of(self._stored_pixels(denominator=denominator) if pixels is None else pixels)
        return region if self.orientation == 1 else np.ascontiguousarray(_oriented(region, self.orientation))

    def draw(self, view: View, out: Pixels) -> None:
        """Write what `view` shows into `out`, C-contiguous uint8 [height, width, 3] of the view's window."""
        if not self.has_one_scan:  # the native decoder keeps the whole picture too, though it makes few pixels
            self.claim(PEAK_PIXEL_BYTES * self.stored_size[0] * self.stored_size[1])
        if self.native is None or not self._draw_natively(self.native, view, out):
            resize_into(out, self.region(view.box, at_least=view.full), view, claim=self.claim)

    def stored_view(self, view: View) -> StoredView:
        """Return `view` of the image as it is stored; one of a turned image is not mirrored."""
        box, full, window, mirror, antialias = view
        denominator = _denominator(box, full)
        box = self._scaled_box(box, denominator)
        if self.orientation != 1:
            window = _stored_box(view.shown, self.orientation, *full)
            full, mirror = full[::-1] if self.orientation >= 5 else full, False
        corner = (0, 0) if window is None else window[:2]
        return StoredView(self.stored_size, denominator, box, full, corner, mirror, antialias)

    def _draw_natively(self, native: _Native, view: View, out: Pixels) -> bool:
        stored = self.stored_view(view)
        if self.orientation == 1:
            return native.decode(self.data, stored, out) is None
        pixels = np.empty(out.shape if self.orientation < 5 else (out.shape[1], out.shape[0], 3), np.uint8)
        if native.decode(self.data, stored, pixels) is not None:
            return False
        upright = _oriented(pixels, self.orientation)
        np.copyto(out, upright[:, ::-1] if view.mirror else upright)
        return True

    def _scaled_box(self, box: Box, denominator: int) -> Box:
        """Return where `box` lies in the image as it is stored, decoded at 1 / `denominator` of its size."""
        if self.orientation != 1:
            box = _stored_box(box, self.orientation, self.height, self.width)
        if denominator == 1:
            return box
        top, height = _scaled_span(box.top, box.height, denominator, -(-self.stored_size[0] // denominator))
        left, width = _scaled_span(box.left, box.width, denominator, -(-self.stored_size[1] // denominator))
        return Box(top=top, left=left, height=height, width=width)

    def _first_rows(self, num_rows: int, denominator: int) -> Pixels | None:
        """Decode no more than `num_rows` at that scale, by a header that gives no more; None where that cannot be done.

        libjpeg-turbo then complains of the bytes that it did not need, but only when all rows are written and the end
        of the file is found.
        """
        height = (num_rows + _MARGIN_ROWS) * denominator
        if self.frame == 0 or height >= self.stored_size[0]:
            return None
        self.claim(PLAIN_PIXEL_BYTES * (num_rows + _MARGIN_ROWS) * -(-self.stored_size[1] // denominator))
        at = self.frame + 5
        data = b"".join((self.data[:at], height.to_bytes(2, "big"), self.data[at + 2 :]))
        pixels = np.empty((num_rows + _MARGIN_ROWS, -(-self.stored_size[1] // denominator), 3), np.uint8)
        try:
            simplejpeg.decode_jpeg(
                data,
                "RGB",
                min_height=pixels.shape[0],
                min_width=pixels.shape[1],
                min_factor=denominator,
                buffer=pixels,
            )
        except (ValueError, KeyError) as error:
            return pixels if str(error).endswith(_NOT_NEEDED) else None
        return pixels

    def _stored_pixels(self, *, denominator: int) -> Pixels:
        """Decode to RGB, at 1, 1/2, 1/4 or 1/8 of the size (other scales take longer than 1)."""
        colors, num_pixels = self.colors, self.stored_size[0] * self.stored_size[1]
        cause = "its header is unusual, and OpenCV cannot decode it"
        is_plain = self.has_one_scan and colors not in _OF_INKS
        self.claim(PLAIN_PIXEL_BYTES * num_pixels // denominator**2 if is_plain else PEAK_PIXEL_BYTES * num_pixels)
        if self.native is not None and is_plain:
            pixels = self._decode_natively(self.native, denominator)
            if pixels is not None:
                return pixels
        if colors is not None:
            try:
                return self._decode(colors, denominator, strict=True)
            except ValueError as error:
                cause = str(error)
                if _TRUNCATED in cause and self.allow_truncated:
                    return self._decode(colors, denominator, strict=False)
                if _TRUNCATED in cause:
                    raise DecodeError(f"JPEG is truncated: it ends after {len(self.data):,} bytes") from error
                if any(damage in cause for damage in _DAMAGE):
                    raise DecodeError(f"JPEG is damaged: {cause}") from error
        decoded = decode_with_opencv(self.data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if decoded is None or decoded.shape[:2] != self.stored_size:
            raise DecodeError(f"JPEG cannot be decoded: {cause}")
        if denominator == 1:
            return decoded
        height, width = (-(-side // denominator) for side in decoded.shape[:2])
        return np.asarray(cv2.resize(decoded, (width, height), interpolation=cv2.INTER_AREA), np.uint8)

    def _decode_natively(self, native: _Native, denominator: int) -> Pixels | None:
        """Decode to RGB at 1 / `denominator` of the size, as simplejpeg does; return None if `native` declines."""
        height, width = (-(-side // denominator) for side in self.stored_size)
        pixels = np.empty((height, width, 3), np.uint8)
        whole = Box(top=0, left=0, height=height, width=width)
        view = StoredView(
            self.stored_size, denominator, whole, full=(height, width), corner=(0, 0), mirror=False, antialias=False
        )
        return pixels if native.decode(self.data, view, pixels) is None else None

    def _decode(self, colors: str, denominator: int, *, strict: bool) -> Pixels:
        is_cmyk = colors in _OF_INKS
        pixels: Pixels = simplejpeg.decode_jpeg(
            self.data,
            "CMYK" if is_cmyk else "RGB",
            min_height=-(-self.stored_size[0] // denominator),
            min_width=-(-self.stored_size[1] // denominator),
            min_factor=denominator,
            strict=strict,
        )
        return _rgb_from_cmyk(pixels) if is_cmyk else pixels


def decode_with_opencv(data: ImageBytes, flags: int) -> Pixels | None:
    """Return the image, uint8 RGB [height, width, 3]; None where OpenCV cannot decode it."""
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    if pixels is None:
        return None
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)  # type: ignore[return-value]  # no second image


def _rgb_from_cmyk(inverted: Pixels) -> Pixels:
    """Convert as Pillow does: CMYK is stored inverted, as Photoshop began, and inks are multiplied."""
    rgb = np.empty((*inverted.shape[:2], 3), np.uint8)
    for top in range(0, len(rgb), _STRIP_ROWS):  # steps between take several times as much as the result
        rows = slice(top, top + _STRIP_ROWS)
        black = inverted[rows, :, 3:].astype(np.uint16)
        product = (255 - inverted[rows, :, :3]) * black + 128
        rgb[rows] = black - ((product >> 8) + product >> 8)
    return rgb


def _oriented(pixels: Pixels, orientation: int) -> Pixels:
    """Return the view of stored `pixels` that is upright; orientations as EXIF numbers them."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    return pixels[:: -1 if orientation in {3, 4, 7, 8} else 1, :: -1 if orientation in {2, 3, 6, 7} else 1]


def _stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Return what `_oriented` would turn into `box` of an image that is `height` x `width` as it is shown."""
    if orientation in {3, 4, 7, 8}:
        box = box._replace(top=height - box.top - box.height)
    if orientation in {2, 3, 6, 7}:
        box = box._replace(left=width - box.left - box.width)
    if orientation >= 5:
        box = Box(top=box.left, left=box.top, height=box.width, width=box.height)
    return box


def _denominator(box: Box, at_least: tuple[int, int]) -> int:
    spare = min(box.height // at_least[0], box.width // at_least[1])
    return 8 if spare >= 8 else 4 if spare >= 4 else 2 if spare >= 2 else 1


def _scaled_span(start: int, length: int, denominator: int, end: int) -> tuple[int, int]:
    length = min(end, max(1, round(length / denominator)))
    return min(round(start / denominator), end - length), length
