"""`Geometry`: the part of a sample's image that is shown, which all columns of the sample follow.

A pipeline makes the first column that draws a geometry as below, and gives the geometry to all columns after it:

```python
image = open_as(decode, data, claim)                               # reads the header of a JPEG, decodes other formats
geometry = decode.draw_geometry(image.height, image.width, rng)
pixels = show(decode, image, geometry, out)                        # may be repeated with other geometries and decoders
```

`decode(data, rng=rng)` does the same in one call. `decode(data, geometry=geometry)` draws nothing: it shows the same
region of another image, at its own size and with its own antialiasing.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.images.claims import Claim, unclaimed
from mpload.images.image import Image, open_image
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Box, Pixels, View

__all__ = ["DrawsGeometry", "Geometry", "check_rng", "decode_as", "open_as", "output_array", "show"]

_UINT8 = np.dtype(np.uint8)  # comparing with a dtype is faster than comparing with np.uint8
_MAX_EXACT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The part of an image that a sample shows, and how that part becomes the result.

    Coordinates are x and y in pixels of the image after its EXIF orientation was applied. They are continuous: the top
    left pixel covers 0 to 1 in both.

    Attributes:
        height: Height in pixels of the image that the geometry was drawn for.
        width: Its width in pixels.
        view: The part that is shown. Its window may extend beyond the resized box: nothing of the image is shown there.
        upside_down: The result is also mirrored top to bottom.
        fill: Value of all channels of an image where the result shows nothing of the image.

    Raises:
        ArgumentError: The box is empty or not inside the image.
    """

    height: int
    width: int
    view: View
    upside_down: bool = False
    fill: int = 0

    def __post_init__(self) -> None:
        top, left, height, width = self.view.box
        if not (0 <= top < top + height <= self.height and 0 <= left < left + width <= self.width):
            raise ArgumentError(f"the box must lie in the {self.width}x{self.height} image, got {self.view}")

    @classmethod
    def whole(cls, height: int, width: int) -> "Geometry":
        """Return the geometry that shows an image of `height` x `width` whole, at its own size."""
        box = Box(top=0, left=0, height=height, width=width)
        return cls(height=height, width=width, view=View(box=box, full=(height, width)))

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        window = self.view.window
        return self.view.full if window is None else window[2:]

    def points(self, xy: ArrayLike) -> NDArray[np.float64]:
        """Return where points of the image lie in the result: x and y, float64 [..., 2]. They may lie outside it.

        Args:
            xy: x and y of each point in the image, [..., 2].
        """
        scale, shift = self._affine()
        found: NDArray[np.float64] = np.asarray(xy, np.float64) * scale + shift
        return found

    def shown_area(self) -> tuple[float, float, float, float]:
        """Return the part of the result that shows the image: its left, top, right and bottom."""
        box, (height, width) = self.view.box, self.output_size
        (scale_x, scale_y), (shift_x, shift_y) = self._affine()
        left, right = sorted((box.left * scale_x + shift_x, (box.left + box.width) * scale_x + shift_x))
        top, bottom = sorted((box.top * scale_y + shift_y, (box.top + box.height) * scale_y + shift_y))
        return (
            max(0, min(left, width)),
            max(0, min(top, height)),
            max(0, min(right, width)),
            max(0, min(bottom, height)),
        )

    def _affine(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the factors for x and y, and the numbers that are added after that."""
        (top, left, height, width), (full_height, full_width), shown = self.view.box, self.view.full, self.view.shown
        scale_x, scale_y = full_width / width, full_height / height
        shift_x, shift_y = -left * scale_x - shown.left, -top * scale_y - shown.top
        if self.view.mirror:
            scale_x, shift_x = -scale_x, shown.width - shift_x
        if self.upside_down:
            scale_y, shift_y = -scale_y, shown.height - shift_y
        return (scale_x, scale_y), (shift_x, shift_y)

    def nearest(self, height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which pixels of an image or mask, shown whole as `height` x `width`, are nearest to the result's.

        The centre of each pixel of the result lies in exactly one pixel; on the border of two, in the right or lower.

        Returns:
            The row for each row of the result, int64 [h], and the column for each column, int64 [w]; -1 where the
            result shows nothing of the image.
        """
        box, full, shown = self.view.box, self.view.full, self.view.shown
        rows = _nearest(box.top, box.height, full[0], shown.top, shown.height, self.height, height)
        columns = _nearest(box.left, box.width, full[1], shown.left, shown.width, self.width, width)
        return rows[::-1] if self.upside_down else rows, columns[::-1] if self.view.mirror else columns

    def for_size(self, height: int, width: int) -> "Geometry":
        """Return the geometry that shows the same region of another image, to within a pixel of the smaller of both.

        If one is a whole number of times as large as the other, as in pairs for super-resolution, the region is exact.

        Args:
            height: Height in pixels of the other image, which shows the same scene at another resolution.
            width: Its width in pixels.
        """
        if (height, width) == (self.height, self.width):
            return self
        box = self.view.box
        top, rows = _scaled_span(box.top, box.height, self.height, height)
        left, columns = _scaled_span(box.left, box.width, self.width, width)
        view = self.view._replace(box=Box(top=top, left=left, height=rows, width=columns))
        return replace(self, height=height, width=width, view=view)

    def at_size(self, output_size: tuple[int, int]) -> "Geometry":
        """Return the geometry that shows the same region as a result of `output_size`, another height and width."""
        if output_size == self.output_size:
            return self
        shown, full, (height, width) = self.view.shown, self.view.full, output_size
        scaled = max(1, round(full[0] * height / shown.height)), max(1, round(full[1] * width / shown.width))
        top, left = round(shown.top * height / shown.height), round(shown.left * width / shown.width)
        window = Box(top=top, left=left, height=height, width=width)
        return replace(self, view=self.view._replace(full=scaled, window=_unless_whole(window, scaled)))


@runtime_checkable
class DrawsGeometry(Protocol):
    """A decoder of images that draws the geometry of a sample, such as `RandomResizedCrop`.

    It may have the attributes `output_shape`, `antialias` and `backend` of `RandomResizedCrop`. Without an
    `output_shape`, it shows all images whole, at their own size. If it has an attribute `resizes` that is false, an
    image is an error that would have to be resized or shifted to follow a geometry.
    """

    @property
    def exif_orientation(self) -> bool:
        """Whether images are turned as their EXIF data says, before anything else."""
        ...

    @property
    def limits(self) -> Limits:
        """Which files are refused."""
        ...

    def draw_geometry(self, height: int, width: int, rng: Any) -> Geometry:
        """Choose the geometry for an image of this height and width, after its EXIF orientation was applied."""
        ...


def open_as(decode: DrawsGeometry, data: ImageBytes, claim: Claim = unclaimed) -> Image:
    """Open an image as `decode` opens it.

    Raises:
        DecodeError: `data` is not an image of a known format, is damaged, or exceeds the decoder's limits.
    """
    backend: Any = getattr(decode, "backend", "auto")
    return open_image(data, upright=decode.exif_orientation, limits=decode.limits, backend=backend, claim=claim)


def show(decode: DrawsGeometry, image: Image, geometry: Geometry, out: Pixels | None = None) -> Pixels:
    """Return what the geometry shows of the image, as `decode` shows it, C-contiguous uint8 RGB [height, width, 3].

    Args:
        decode: The decoder, which decides the size of the result and the antialiasing.
        image: The image. If its size is not that of the image that drew the geometry, the same region is shown.
        geometry: The geometry, drawn by this decoder or by another.
        out: The array to write to, C-contiguous uint8 of the decoder's `output_shape`; None creates one.

    Raises:
        DecodeError: The image is damaged or truncated.
    """
    shape = getattr(decode, "output_shape", None)
    if shape is None:
        return np.ascontiguousarray(image.pixels())
    out = output_array(out, shape)
    antialias = getattr(decode, "antialias", False)
    drawn, geometry = geometry, geometry.for_size(image.height, image.width).at_size(shape[:2])
    view = geometry.view
    if geometry is not drawn and not getattr(decode, "resizes", True):
        _refuse_resizing(decode, drawn, geometry)
    if view.antialias != antialias:
        view = view._replace(antialias=antialias)
    if view.window is None or _is_inside(view.window, view.full):
        image.draw(view, out)
    else:
        _draw_padded(image, view, out, geometry.fill)
    if geometry.upside_down:
        np.copyto(out, out[::-1])
    return out


def decode_as(
    decode: DrawsGeometry,
    data: ImageBytes,
    rng: np.random.Generator | None,
    out: Pixels | None,
    claim: Claim,
    geometry: Geometry | None,
) -> Pixels:
    """Open an image, draw a geometry unless one is given, and show it.

    Raises:
        DecodeError: The image cannot be opened, or is damaged or truncated.
    """
    image = open_as(decode, data, claim)
    if geometry is None:
        geometry = decode.draw_geometry(image.height, image.width, rng)
    return show(decode, image, geometry, out)


def check_rng(decode: object, rng: np.random.Generator | None) -> np.random.Generator:
    """Return the generator to draw from.

    Raises:
        ArgumentError: There is none.
    """
    if rng is None:
        name = type(decode).__name__
        raise ArgumentError(f"a {name} draws random numbers: pass rng=, or geometry= with a geometry to show")
    return rng


def output_array(out: Pixels | None, shape: tuple[int, int, int]) -> Pixels:
    """Return `out`, or a new array if it is None.

    Raises:
        ArgumentError: `out` is not C-contiguous uint8 of this shape.
    """
    if out is None:
        return np.empty(shape, np.uint8)
    if out.shape != shape or out.dtype != _UINT8 or not out.flags.c_contiguous:
        layout = "C-contiguous" if out.flags.c_contiguous else "not C-contiguous"
        raise ArgumentError(f"out must be a C-contiguous uint8 {shape}, got {out.dtype} {out.shape}, {layout}")
    return out


def _draw_padded(image: Image, view: View, out: Pixels, fill: int) -> None:
    """Write a view whose window extends beyond the resized box."""
    window = view.shown
    top, left = max(0, window.top), max(0, window.left)
    bottom = min(view.full[0], window.top + window.height)
    right = min(view.full[1], window.left + window.width)
    out[...] = fill
    if bottom <= top or right <= left:
        return
    part = Box(top=top, left=left, height=bottom - top, width=right - left)
    place = Box(top=top - window.top, left=left - window.left, height=part.height, width=part.width)
    if view.mirror:
        place = place._replace(left=window.width - place.left - place.width)
    target = place.of(out)
    pixels = target if target.flags.c_contiguous else np.empty(target.shape, np.uint8)
    image.draw(view._replace(window=_unless_whole(part, view.full)), pixels)
    if pixels is not target:
        np.copyto(target, pixels)


def _refuse_resizing(decode: DrawsGeometry, drawn: Geometry, geometry: Geometry) -> None:
    """Raise `DecodeError` unless each pixel of a geometry's result is one pixel of the image, in the right place."""
    is_aligned = geometry.for_size(drawn.height, drawn.width).view.box == drawn.view.box
    if is_aligned and geometry.view.full == geometry.view.box[2:]:
        return
    raise DecodeError(
        f"{drawn.view.box} of the {drawn.width}x{drawn.height} image that was cropped first is no crop of whole pixels "
        f"in this image, {geometry.width}x{geometry.height}, in the size of {decode}. Images and decoders must have "
        "sizes of the same ratio. If the larger image comes first, pass the ratio as align to its decoder"
    )


def _is_inside(window: Box, full: tuple[int, int]) -> bool:
    top, left, height, width = window
    return 0 <= top <= full[0] - height and 0 <= left <= full[1] - width


def _unless_whole(window: Box, full: tuple[int, int]) -> Box | None:
    return None if window == (0, 0, *full) else window


def _nearest(
    start: int, length: int, full: int, first: int, count: int, image_side: int, side: int
) -> NDArray[np.int64]:
    """Return the nearest of `side` pixels for each of `count` pixels, in integers, so that no rounding can be wrong."""
    end = first + count
    largest = 2 * (full * start + (max(full, end) + 1) * length) * side
    exact: Any = np.int64 if largest < _MAX_EXACT else object
    odd = np.arange(2 * first + 1, 2 * end, 2).astype(exact, copy=False)  # centres of pixels, in half pixels
    found: NDArray[np.int64] = (odd * (length * side) + 2 * full * start * side) // (2 * full * image_side)
    found[: max(0, -first)] = -1
    found[max(0, count - max(0, end - full)) :] = -1
    return found.astype(np.int64, copy=False)


def _scaled_span(start: int, length: int, side: int, new_side: int) -> tuple[int, int]:
    """Return start and length of a part of a side in an image of another resolution.

    If one resolution is a multiple of the other, but the larger image lacks a few pixels or the smaller was rounded up,
    the part is exactly that many times as large.
    """
    times = max(1, round(new_side / side))
    ratio = Fraction(times, max(1, round(side / new_side)))
    if abs(new_side - side * ratio) >= times:
        ratio = Fraction(new_side, side)
    length = min(new_side, max(1, round(length * ratio)))
    return min(round(start * ratio), new_side - length), length
