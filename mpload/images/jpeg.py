"""JPEG: decoded by the native module if it was built, else and in all unusual cases by simplejpeg, and last by OpenCV.

The first two use libjpeg-turbo. The native module decodes no more than a view needs. Files that it declines (CMYK,
damage, anything that libjpeg warns about) go to simplejpeg, so that errors and odd files are the same with and without
the native module. Damage below the last row that a view needs is not noticed; a file that breaks off there is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.backends import Backend, Native, StoredView, native_decoder
from mpload.images.claims import PEAK_PIXEL_BYTES, PLAIN_PIXEL_BYTES, Claim
from mpload.images.jpeg_header import ImageBytes, can_be_scaled, has_more_scans, libjpeg_header, read_header
from mpload.images.limits import Limits
from mpload.images.opencv import cv2
from mpload.images.resize import Box, Pixels, View, resize_into
from mpload.images.row_starts import RowStarts

__all__ = ["Jpeg", "decode_with_opencv", "open_jpeg", "oriented"]


# libjpeg-turbo's messages for pictures that are damaged. Its other complaints (bytes between two segments, an odd
# version number) do not concern the pixels, and other decoders ignore them.
_TRUNCATED = "Premature end of JPEG"
_DAMAGE = (
    "premature end of data segment",
    "bad Huffman code",
    "bad arithmetic code",
    "instead of RST",
)

_NOT_NEEDED = "extraneous bytes before marker 0xd9"
_OF_INKS = frozenset({"CMYK", "YCCK"})
_KEPT_PIXEL_BYTES = 6
_MAX_KEPT_BYTES = 1 << 24  # of coefficients, as in _huffman.h
_STRIP_ROWS = 64
_MARGIN_ROWS = 4  # upsampling uses rows below


def open_jpeg(data: ImageBytes, *, upright: bool, limits: Limits, backend: Backend, claim: Claim) -> "Jpeg":
    """Read only the header of a JPEG. The arguments are those of `open_image`.

    Raises:
        DecodeError: The header gives no size, or the image exceeds `limits`.
    """
    height, width, orientation, frame, has_one_scan = read_header(data)
    limits.check_size("JPEG", height, width, len(data))
    if not frame and has_more_scans(data, limits.max_scans):  # plain ones have one
        raise DecodeError(f"the JPEG has more than max_scans={limits.max_scans} scans")
    return Jpeg(
        data=data,
        stored_size=(height, width),
        orientation=orientation if upright else 1,
        frame=frame,
        has_one_scan=has_one_scan,
        allow_truncated=limits.allow_truncated,
        native=native_decoder(backend),
        claim=claim,
    )


@dataclass(slots=True, kw_only=True)  # not frozen: that takes longer to construct
class Jpeg:
    """A JPEG whose header was read. Its size is known before any pixel is decoded."""

    data: ImageBytes
    stored_size: tuple[int, int]
    """Height and width in pixels, before the EXIF orientation is applied."""
    orientation: int
    """EXIF's number, 1 to 8."""
    frame: int
    """Offset of the frame header in bytes; 0 if the picture is not stored plainly, as `JpegHeader` explains."""
    has_one_scan: bool
    """Whether all of the picture is in one scan, so that rows can be decoded without keeping all of them in memory."""
    allow_truncated: bool
    native: Native | None
    """The decoder that is tried first."""
    claim: Claim
    rows: RowStarts | None = None
    """Makes `draw` faster."""

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
        """The colour space in simplejpeg's words; None if simplejpeg cannot read the header (OpenCV may be able to)."""
        header = libjpeg_header(self.data)
        return None if header is None else header[2]

    def pixels(self) -> Pixels:
        """Return the whole image, uint8 RGB [height, width, 3]; it may be a view that is not contiguous."""
        return oriented(self._stored_pixels(denominator=1), self.orientation)

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:
        """Return the pixels in `box`, perhaps at a smaller scale, but no smaller than `at_least` unless `box` is."""
        denominator = _denominator(box, at_least)
        scaled = self._scaled_box(box, denominator)
        return self.upright(scaled.of(self._rows(scaled, denominator)))

    def upright(self, region: Pixels) -> Pixels:
        """Return a region of the stored image as it is shown."""
        return region if self.orientation == 1 else np.ascontiguousarray(oriented(region, self.orientation))

    def decoded(self, parts: Mapping[int, Box]) -> dict[int, Pixels] | None:
        """Return parts of the stored image for `Native.resize`, uint8 [n].

        Without `native`, return all rows down to the end of each part, uint8 [h, w, 3]. Return None if `native`
        declines the image.

        Args:
            parts: By denominator: a part, in pixels of the stored image at 1 / denominator of its size.

        Raises:
            DecodeError: The image is damaged or truncated, and there is no `native`.
        """
        if self.native is None:
            return {denominator: self._rows(box, denominator) for denominator, box in parts.items()}
        num_pixels = self.stored_size[0] * self.stored_size[1]
        part_bytes = sum(3 * box.height * box.width for box in parts.values())
        kept_bytes = min(_KEPT_PIXEL_BYTES * num_pixels, _MAX_KEPT_BYTES)
        self.claim(part_bytes + kept_bytes if self.has_one_scan else PEAK_PIXEL_BYTES * num_pixels)
        flat, views, outs = {}, [], []
        for denominator, box in parts.items():
            num_bytes = box.height * box.width * 3
            flat[denominator] = np.empty(num_bytes + self.native.PADDING_BYTES, np.uint8)
            views.append(StoredView(self.stored_size, denominator, box, (box.height, box.width), (0, 0), False, False))
            outs.append(flat[denominator][:num_bytes].reshape(box.height, box.width, 3))
        declined = self.native.decode_parts(self.data, tuple(views), tuple(outs))
        return None if declined else flat

    def draw(self, view: View, out: Pixels) -> None:
        """Write `view` to `out`, C-contiguous uint8 [height, width, 3] of the view's window."""
        if not self.has_one_scan:  # the native decoder then keeps all coefficients, however few pixels are needed
            self.claim(PEAK_PIXEL_BYTES * self.stored_size[0] * self.stored_size[1])
        if self.native is None or not self.write_turned(view, out, partial(self._decode_view, self.native)):
            resize_into(out, self.region(view.box, at_least=view.full), view, claim=self.claim)

    def stored_view(self, view: View) -> StoredView:
        """Return `view` in terms of the stored image. If the image has to be turned, the result is not mirrored."""
        box, full, window, mirror, antialias = view
        denominator = _denominator(box, full)
        box = self._scaled_box(box, denominator)
        if self.orientation != 1:
            window = _stored_box(view.shown, self.orientation, *full)
            full, mirror = full[::-1] if self.orientation >= 5 else full, False
        corner = (0, 0) if window is None else window[:2]
        return StoredView(self.stored_size, denominator, box, full, corner, mirror, antialias)

    def write_turned(self, view: View, out: Pixels, write: Callable[[StoredView, Pixels], bool]) -> bool:
        """Write `view` to `out` by `write`, which writes a view of the stored image and returns whether it could."""
        stored = self.stored_view(view)
        if self.orientation == 1:
            return write(stored, out)
        pixels = np.empty(out.shape if self.orientation < 5 else (out.shape[1], out.shape[0], 3), np.uint8)
        if not write(stored, pixels):
            return False
        upright = oriented(pixels, self.orientation)
        np.copyto(out, upright[:, ::-1] if view.mirror else upright)
        return True

    def _decode_view(self, native: Native, stored: StoredView, pixels: Pixels) -> bool:
        made = native.decode(self.data, stored, pixels, None if self.rows is None else self.rows.read())
        if isinstance(made, str):
            return False
        if made is not None and self.rows is not None:
            self.rows.write(made)
        return True

    def _scaled_box(self, box: Box, denominator: int) -> Box:
        """Return the position of `box` in the stored image decoded at 1 / `denominator` of its size."""
        if self.orientation != 1:
            box = _stored_box(box, self.orientation, self.height, self.width)
        if denominator == 1:
            return box
        top, height = _scaled_span(box.top, box.height, denominator, -(-self.stored_size[0] // denominator))
        left, width = _scaled_span(box.left, box.width, denominator, -(-self.stored_size[1] // denominator))
        return Box(top=top, left=left, height=height, width=width)

    def _rows(self, box: Box, denominator: int) -> Pixels:
        """Decode at least the rows down to the end of `box`, at that scale."""
        pixels = self._first_rows(box.top + box.height, denominator)
        return self._stored_pixels(denominator=denominator) if pixels is None else pixels

    def _first_rows(self, num_rows: int, denominator: int) -> Pixels | None:
        """Decode only the first `num_rows` at that scale, by a header with a smaller height; return None if that fails.

        libjpeg-turbo then complains about the bytes that it did not need, but only after it has written all rows and
        found the end of the file.
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
        """Decode to RGB, at 1, 1/2, 1/4 or 1/8 of the size (other scales take longer than full size)."""
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
        return _at_scale(decoded, denominator)

    def _decode_natively(self, native: Native, denominator: int) -> Pixels | None:
        """Decode to RGB at 1 / `denominator` of the size, as simplejpeg does; return None if `native` declines."""
        height, width = (-(-side // denominator) for side in self.stored_size)
        pixels = np.empty((height, width, 3), np.uint8)
        whole = Box(top=0, left=0, height=height, width=width)
        view = StoredView(
            self.stored_size, denominator, whole, full=(height, width), corner=(0, 0), mirror=False, antialias=False
        )
        return pixels if native.decode(self.data, view, pixels) is None else None

    def _decode(self, colors: str, denominator: int, *, strict: bool) -> Pixels:
        if denominator > 1 and not can_be_scaled(self.data):
            return _at_scale(self._decode(colors, 1, strict=strict), denominator)
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
    """Return the image, uint8 RGB [height, width, 3]; None if OpenCV cannot decode it."""
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    if pixels is None:
        return None
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)  # type: ignore[return-value]  # no second image


def _at_scale(pixels: Pixels, denominator: int) -> Pixels:
    """Return an image at 1 / `denominator` of its size. The last pixels count as if the image went on."""
    if denominator == 1:
        return pixels
    height, width = (-(-side // denominator) for side in pixels.shape[:2])
    bottom, right = height * denominator - pixels.shape[0], width * denominator - pixels.shape[1]
    filled = cv2.copyMakeBorder(pixels, 0, bottom, 0, right, cv2.BORDER_REPLICATE)
    return np.asarray(cv2.resize(filled, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _rgb_from_cmyk(inverted: Pixels) -> Pixels:
    """Convert CMYK as Pillow does: it is stored inverted, a convention of Photoshop's, and inks are multiplied."""
    rgb = np.empty((*inverted.shape[:2], 3), np.uint8)
    for top in range(0, len(rgb), _STRIP_ROWS):  # in strips, since the temporary arrays are larger than the result
        rows = slice(top, top + _STRIP_ROWS)
        black = inverted[rows, :, 3:].astype(np.uint16)
        product = (255 - inverted[rows, :, :3]) * black + 128
        rgb[rows] = black - ((product >> 8) + product >> 8)
    return rgb


def oriented(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return an upright view of stored `pixels`, [height, width, ...]; `orientation` is EXIF's number."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    return pixels[:: -1 if orientation in {3, 4, 7, 8} else 1, :: -1 if orientation in {2, 3, 6, 7} else 1]


def _stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Return the box in the stored image that `_oriented` turns into `box` of the shown image, `height` x `width`."""
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
