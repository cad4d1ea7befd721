"""`Mask`: one value per pixel, such as class ids or depths, which follow the sample's geometry unchanged."""

import math
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpload.errors import ArgumentError, DecodeError, warn
from mpload.images.claims import Claim, unclaimed
from mpload.images.geometry import Geometry
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.opencv import cv2
from mpload.images.stored_values import stored_values
from mpload.native import how_to_build, native_module

__all__ = ["Mask", "check_ratio", "check_shape", "nearest_values"]

_HOW_TO_BUILD = how_to_build("libdeflate's headers", "libdeflate-dev")
_TRANSPOSED = frozenset(map(np.dtype, ("uint8", "uint16", "int16", "int32", "float32")))
"""Types that OpenCV transposes."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Read a mask: one number per pixel, such as class ids, instance ids or depths.

    The mask follows the crop and the flips of the sample's image by nearest neighbour: each value of the result is that
    of the mask's pixel in which the centre of the result's pixel lies. No value is ever mixed with another or scaled.
    Without an image that is cropped, the mask is returned whole.

    PNG, BMP, TIFF, PGM and `.npy` files with one channel are read. Values are those that the file stores: the ids of a
    palette, not its colours, and 0 and 1 where the file has one bit per pixel. A mask may be larger or smaller than its
    image, but must have the same ratio of width to height, to within a pixel. It shows the scene upright, as viewers
    show the image: if masks were made for images whose EXIF orientation was ignored, pass `exif_orientation=False` to
    the image's decoder.

    Attributes:
        ignore: Value of the result where it shows nothing of the image, as around a `Letterbox`.
        dtype: Type of the results' numbers. The default suits PyTorch's losses; "uint8" takes an eighth of the memory,
            and "float32" keeps depths in metres.
        limits: Which files are refused, such as too large ones.

    Raises:
        ArgumentError: `dtype` is not a dtype of numbers, or cannot hold `ignore`.
    """

    target: ClassVar[str] = "mask"

    _: KW_ONLY
    ignore: float = 255
    dtype: DTypeLike = "int64"
    limits: Limits = Limits()
    has_geometry_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "iuf":
            raise ArgumentError(f"dtype must be a NumPy dtype of numbers, such as 'int64', got {self.dtype!r}")
        object.__setattr__(self, "dtype", dtype.name)  # equal, whichever notation was used
        if not _holds(dtype, np.asarray(self.ignore)):
            raise ArgumentError(f"ignore must be a value of dtype {dtype.name}, got {self.ignore!r}")
        if dtype.kind != "f":  # which the native decoder does not make
            _warn_of_slow_masks()

    def __call__(
        self,
        data: ImageBytes,
        geometry: Geometry | None = None,
        claim: Claim = unclaimed,
        out: NDArray[Any] | None = None,
    ) -> NDArray[np.generic]:
        """Return the values, `dtype` [height, width], in the size of the geometry's result.

        Args:
            data: The bytes of a PNG, BMP, TIFF, PGM or `.npy` file with one channel.
            geometry: What the sample shows of its image; None returns the whole mask.
            claim: As for `open_image`.
            out: The array to write to, `dtype` [height, width]; None creates one. It needs a geometry.

        Raises:
            DecodeError: `data` is not such a file, exceeds `limits`, holds a value that `dtype` cannot hold, or has
                another ratio of width to height than the image.
        """
        values = stored_values(data, limits=self.limits, claim=claim)
        dtype = np.dtype(self.dtype)
        if not np.can_cast(values.dtype, dtype) and not _holds(dtype, values):
            raise DecodeError(
                f"the mask holds {values.dtype} values from {values.min()} to {values.max()}, which do not fit into "
                f"{dtype}. Pass a dtype to Mask that holds them, such as {values.dtype.name!r}"
            )
        if values.dtype.kind == "f" and values.dtype != dtype:
            with np.errstate(invalid="ignore"):  # some NaNs would cause a warning
                values = values.astype(dtype)
        if geometry is None:
            return np.ascontiguousarray(values, dtype)
        height, width = values.shape
        check_shape(height, width, geometry)
        return nearest_values(values, geometry, ignore=self.ignore, dtype=dtype, out=out)


@cache  # Python shows warnings again whenever any library changes the filters
def _warn_of_slow_masks() -> None:
    if native_module("images._masks") is None:
        warn(
            "masks are decoded one at a time, which is slower, as mpload was installed without its native decoder of "
            f"PNG masks. {_HOW_TO_BUILD}"
        )


def check_shape(height: int, width: int, geometry: Geometry) -> None:
    """Raise `DecodeError` unless a mask of this size can belong to the geometry's image, as for `check_ratio`."""
    if (height, width) == (geometry.width, geometry.height) and height != width:
        raise DecodeError(
            f"the mask is {width}x{height}, but its image is {geometry.width}x{geometry.height} when it is turned "
            "upright by its EXIF orientation. Pass exif_orientation=False to the image's decoder if the masks were "
            "made without it"
        )
    check_ratio(height, width, image_size=(geometry.height, geometry.width))


def check_ratio(height: int, width: int, *, image_size: tuple[int, int]) -> None:
    """Raise `DecodeError` unless a mask of this size can belong to an image of a size.

    Both must have the same ratio of width to height, to within a pixel of the smaller of both.
    """
    larger = max((height, width), image_size, key=math.prod)
    if abs(height * image_size[1] - width * image_size[0]) >= sum(larger):
        raise DecodeError(
            f"the mask is {width}x{height}, but its image is {image_size[1]}x{image_size[0]}, which has another "
            "ratio of width to height. If the mask shows the whole image, resize it to the image's size by nearest "
            "neighbour; otherwise it belongs to another image"
        )


def nearest_values(
    values: NDArray[Any], geometry: Geometry, *, ignore: float, dtype: DTypeLike, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the values that the geometry shows by nearest neighbour, `dtype` [h, w]; `ignore` outside the image.

    Args:
        values: One value for each pixel of the image, at any resolution, [height, width].
        geometry: What the sample shows of the image.
        ignore: The value where the result shows nothing of the image.
        dtype: Type of the result, which must hold all values.
        out: The array to write to, `dtype` [h, w]; None creates one.
    """
    rows, columns = geometry.nearest(*values.shape)
    out = np.empty((len(rows), len(columns)), dtype) if out is None else out
    if out.shape != (len(rows), len(columns)):
        raise ArgumentError(f"out must be {len(rows)} x {len(columns)}, the size of the result, got {list(out.shape)}")
    if geometry.view.box.height * values.shape[0] < len(rows) * geometry.height:  # fewer rows are read than written
        ends = rows[0], rows[-1]
        first, last = (min(ends), max(ends)) if min(ends) >= 0 else (0, max(0, rows.max()))
        part = _columns(values[first : last + 1], columns).astype(dtype, copy=False)
        part.take(rows - first, axis=0, mode="clip", out=out)
    else:
        np.copyto(out, _columns(values.take(rows, axis=0, mode="clip"), columns), casting="unsafe")
    for places, axis in ((rows, 0), (columns, 1)):
        if min(places[0], places[-1]) < 0:  # only the ends can lie outside
            out[(slice(None),) * axis + (places < 0,)] = ignore
    return out


def _columns(values: NDArray[Any], columns: NDArray[np.int64]) -> NDArray[Any]:
    """Return `values[:, columns]`. Transposing and taking rows is faster than taking columns."""
    if values.dtype not in _TRANSPOSED:
        return values[:, columns]
    return cv2.transpose(cv2.transpose(values)[columns])


def _holds(dtype: np.dtype[Any], values: NDArray[Any]) -> bool:
    """Return whether `dtype` holds all values; a float may round them."""
    if dtype.kind == "f":
        return True
    if values.dtype.kind == "f" and not np.array_equal(values, np.trunc(values)):  # NaN is not equal either
        return False
    limits = np.iinfo(dtype)
    return bool(limits.min <= values.min() and values.max() <= limits.max)
