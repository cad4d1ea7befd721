"""Decoders: they turn the bytes of one image into the pixels of a sample, uint8 RGB [height, width, 3].

The contract between the pipeline and a decoder, for the decoders below and for a user's own:

- A decoder's first argument is the bytes of one image. It returns an array (or anything else that a batch can hold).
- If it has a parameter `rng`, it is given the sample's generator. It may draw random numbers from `rng`, or from the
  global generators of `random`, NumPy, OpenCV and torch, which are then seeded for the sample too. It draws the same
  number of times for every image, so that all images of a sample are cropped alike.
- If its attribute `makes_images` is true, its arrays [..., H, W, C] are images, which batches show as [..., C, H, W];
  other arrays keep their axes.
- If it has an attribute `output_shape`, every result has that shape and the dtype `output_dtype`, or uint8 without such
  an attribute. It then takes `out=`, a C-contiguous array of that shape and dtype, writes all of it and returns it.
- If it has a method `draw_geometry`, it draws the geometry of a sample as `mpload.images.geometry` says. If it has a
  parameter `geometry`, it is given the geometry that the sample's first such decoder drew, or None if there is none.
- It raises `DecodeError` for bytes that it cannot decode.
- If it has a parameter `claim`, it calls `claim` with a number of bytes before it allocates that much memory. If the
  number exceeds a worker's part of `memory_budget`, the call returns once no other worker uses that much. The decoder
  must not hold a lock of its own during the call.
- If it has an attribute `limits`, files of more than `limits.max_bytes` are not read.

The decoders below are values: their fields define equality, `repr` and pickling.
"""

import math
from dataclasses import KW_ONLY, InitVar, dataclass
from io import BytesIO
from tokenize import TokenError
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.images.backends import Backend, check_backend, jpeg_backend
from mpload.images.checks import check_interval, check_probability, pair, set_max_pixels, set_size
from mpload.images.claims import Claim, unclaimed
from mpload.images.crops import middle_strip, random_crop_box
from mpload.images.geometry import Geometry, check_rng, decode_as, open_as
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Box, Pixels, View

__all__ = [
    "ImageDecoder",
    "NpyHeader",
    "NumpyDecoder",
    "RandomResizedCrop",
    "RawBytes",
    "ResizeCenterCrop",
    "center_short_side",
    "jpeg_backend",
    "read_npy_header",
]


@dataclass(frozen=True, slots=True)
class ImageDecoder:
    """Decode the whole image, at its own size.

    Attributes:
        exif_orientation: Rotate and mirror the image as its EXIF data says.
        limits: Which files are refused, such as too large or truncated ones.
        max_pixels: Short for setting `max_pixels` in `limits`.

    Raises:
        ArgumentError: `max_pixels` is not positive.
    """

    _: KW_ONLY
    exif_orientation: bool = True
    limits: Limits = Limits()
    max_pixels: InitVar[int | None] = None
    makes_images: ClassVar[bool] = True

    def __post_init__(self, max_pixels: int | None) -> None:
        set_max_pixels(self, max_pixels)

    def draw_geometry(self, height: int, width: int, rng: object = None) -> Geometry:  # noqa: ARG002  not random
        """Return the geometry that shows an image of `height` x `width` whole; draws nothing from `rng`."""
        return Geometry.whole(height, width)

    def __call__(self, data: ImageBytes, claim: Claim = unclaimed) -> Pixels:
        """Return the pixels, uint8 RGB [height, width, 3], C-contiguous.

        Raises:
            DecodeError: `data` is not a complete image of a known format, or it exceeds `limits`.
        """
        return np.ascontiguousarray(open_as(self, data, claim).pixels())


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """Crop a random region of the image, resize it to `size`, and mirror it half of the time.

    `random_crop_box` chooses the region; the resize is bilinear. A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size
    if the region then still has at least as many pixels as the result. The native decoder decodes the region only:
    damage below it is not noticed, but a file that is truncated there is.

    Attributes:
        size: Height and width of the result; one number for both.
        scale: Smallest and largest area of the region, as fractions of the image's area.
        ratio: Smallest and largest ratio of the region's width to its height.
        flip: Probability of mirroring the result left to right, in [0, 1].
        antialias: When the region is downsized, average all its pixels (a triangle filter, as in torchvision), not only
            the four around each centre.
        backend: The JPEG decoder: `"native"`, `"simplejpeg"`, or with `"auto"` the first one that is available. Both
            give the same crops; pixels differ by at most 2 of 255.
        exif_orientation: Rotate and mirror the image as its EXIF data says, before anything else.
        limits: Which files are refused, such as too large or truncated ones.
        max_pixels: Short for setting `max_pixels` in `limits`.

    Raises:
        ArgumentError: A number is out of range.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    antialias: bool = False
    backend: Backend = "auto"
    exif_orientation: bool = True
    limits: Limits = Limits()
    max_pixels: InitVar[int | None] = None
    makes_images: ClassVar[bool] = True

    def __post_init__(self, max_pixels: int | None) -> None:
        set_size(self)
        check_interval("scale", self.scale)
        check_interval("ratio", self.ratio)
        if self.scale[1] > 1:
            raise ArgumentError(f"scale is a fraction of the image's area and must not exceed 1, got {self.scale}")
        check_probability("flip", self.flip)
        check_backend(self.backend)
        set_max_pixels(self, max_pixels)

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """The shape of every result: (height, width, 3)."""
        return (*pair(self.size), 3)

    def draw_geometry(self, height: int, width: int, rng: np.random.Generator | None) -> Geometry:
        """Choose the region of an image of `height` x `width` at random; draws 23 doubles from `rng`.

        Raises:
            ArgumentError: There is no `rng`.
        """
        rng = check_rng(self, rng)
        box = random_crop_box(height, width, rng, scale=self.scale, ratio=self.ratio)
        mirror = rng.random() < self.flip
        view = View(box=box, full=pair(self.size), mirror=mirror, antialias=self.antialias)
        return Geometry(height=height, width=width, view=view)

    def __call__(
        self,
        data: ImageBytes,
        rng: np.random.Generator | None = None,
        out: Pixels | None = None,
        claim: Claim = unclaimed,
        geometry: Geometry | None = None,
    ) -> Pixels:
        """Return a random crop, uint8 RGB `output_shape`.

        Args:
            data: The bytes of one image.
            rng: The generator to draw from, always 23 doubles: equal generators crop and mirror all images alike.
            out: The array to write to, C-contiguous uint8 `output_shape`; None creates one.
            claim: As for `open_image`.
            geometry: The geometry to show. Nothing is drawn then, and no `rng` is needed.

        Raises:
            ArgumentError: There is neither an `rng` nor a `geometry`.
            DecodeError: `data` is not a complete image of a known format, or it exceeds `limits`.
        """
        return decode_as(self, data, rng, out, claim, geometry)


@dataclass(frozen=True, slots=True)
class ResizeCenterCrop:
    """Resize the image so that its shorter side is `resize`, and crop the middle, as is usual for evaluation.

    Sizes and positions are those of torchvision's `Resize` and `CenterCrop`; the resize is bilinear.

    Attributes:
        size: Height and width of the result; one number for both.
        resize: Length of the image's shorter side before the crop, in pixels; None means `size` * 256 / 224.
        antialias: When the image is downsized, average all its pixels (a triangle filter, as in torchvision), not only
            the four around each centre.
        backend: The JPEG decoder: `"native"`, `"simplejpeg"`, or with `"auto"` the first one that is available. Both
            give the same crops; pixels differ by at most 2 of 255.
        exif_orientation: Rotate and mirror the image as its EXIF data says, before anything else.
        limits: Which files are refused, such as too large or truncated ones.
        max_pixels: Short for setting `max_pixels` in `limits`.

    Raises:
        ArgumentError: A number is out of range, or `resize` is shorter than a side of the crop.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    resize: int | None = None
    antialias: bool = False
    backend: Backend = "auto"
    exif_orientation: bool = True
    limits: Limits = Limits()
    max_pixels: InitVar[int | None] = None
    makes_images: ClassVar[bool] = True

    def __post_init__(self, max_pixels: int | None) -> None:
        set_size(self)
        if self.resize is not None and self.resize < max(pair(self.size)):
            raise ArgumentError(
                f"resize must be at least as long as the crop, got resize={self.resize} for size={self.size}",
            )
        check_backend(self.backend)
        set_max_pixels(self, max_pixels)

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """The shape of every result: (height, width, 3)."""
        return (*pair(self.size), 3)

    def draw_geometry(self, height: int, width: int, rng: object = None) -> Geometry:  # noqa: ARG002  not random
        """Return the geometry that shows the middle of an image of `height` x `width`; draws nothing from `rng`."""
        shown_height, shown_width = pair(self.size)
        short_side = center_short_side(self)
        box = middle_strip(height, width)
        if box.height < box.width:
            full = (short_side, short_side * box.width // box.height)
        else:
            full = (short_side * box.height // box.width, short_side)
        top, left = round((full[0] - shown_height) / 2), round((full[1] - shown_width) / 2)
        window = Box(top=top, left=left, height=shown_height, width=shown_width)
        view = View(box=box, full=full, window=window, antialias=self.antialias)
        return Geometry(height=height, width=width, view=view)

    def __call__(
        self,
        data: ImageBytes,
        out: Pixels | None = None,
        claim: Claim = unclaimed,
        geometry: Geometry | None = None,
    ) -> Pixels:
        """Return the middle of the resized image, uint8 RGB `output_shape`.

        Args:
            data: The bytes of one image.
            out: The array to write to, C-contiguous uint8 `output_shape`; None creates one.
            claim: As for `open_image`.
            geometry: The geometry to show instead of the middle.

        Raises:
            DecodeError: `data` is not a complete image of a known format, or it exceeds `limits`.
        """
        return decode_as(self, data, None, out, claim, geometry)


def center_short_side(crop: ResizeCenterCrop) -> int:
    """Return the length in pixels of the resized image's shorter side."""
    return round(max(pair(crop.size)) * 256 / 224) if crop.resize is None else crop.resize


@dataclass(frozen=True, slots=True)
class RawBytes:
    """Return the bytes unchanged, without decoding them.

    Attributes:
        as_array: Return an array, so that batches hold one tensor, uint8 [n], per sample, as needed by
            `torchvision.io.decode_jpeg`. An MPLoader returns such tensors without a copy, but has to copy each `bytes`.
    """

    _: KW_ONLY
    as_array: bool = False

    def __call__(self, data: ImageBytes) -> bytes | NDArray[np.uint8]:
        """Return `data` as bytes, or as an array uint8 [n] that may be read-only and share `data`'s memory."""
        return np.frombuffer(data, np.uint8) if self.as_array else bytes(data)


@dataclass(frozen=True, slots=True)
class NumpyDecoder:
    """Read the array in a `.npy` file. It must hold numbers; nothing in the file is executed or unpickled.

    For a `.npz` file, pass a function of your own, which returns `dict(numpy.load(io.BytesIO(data)))`.

    Attributes:
        max_bytes: Size of the largest file that is read.
        makes_images: Arrays are images [H, W, C], as `pack` stores decoded images, and batches show them as [C, H, W];
            otherwise they keep their axes.

    Raises:
        ArgumentError: `max_bytes` is not positive.
    """

    _: KW_ONLY
    max_bytes: int = 1 << 30
    makes_images: bool = False

    def __post_init__(self) -> None:
        _ = self.limits

    @property
    def limits(self) -> Limits:
        """Which files are refused."""
        return Limits(max_bytes=self.max_bytes)

    def __call__(self, data: ImageBytes) -> NDArray[Any]:
        """Return the array, C-contiguous, in this machine's byte order; it may be read-only and share `data`'s memory.

        Raises:
            DecodeError: `data` is not a complete `.npy` file, does not hold numbers, or exceeds `max_bytes`.
        """
        self.limits.check_bytes(len(data))
        shape, is_fortran, dtype, header_bytes = read_npy_header(data)
        if dtype.char in "gG":
            kept = "float64" if dtype.char == "g" else "complex128"
            raise DecodeError(f"the .npy file holds {dtype}, which PyTorch does not have. Store it as {kept}")
        expected_bytes, num_bytes = math.prod(shape) * dtype.itemsize, len(data) - header_bytes
        if min(shape, default=0) < 0 or expected_bytes != num_bytes:
            raise DecodeError(
                f".npy is damaged or truncated: {num_bytes:,} bytes follow its header, but {dtype}{list(shape)} has "
                f"{expected_bytes:,}"
            )
        array = np.frombuffer(data, dtype, math.prod(shape), header_bytes) if num_bytes else np.empty(0, dtype)
        array = array.reshape(shape, order="F" if is_fortran else "C")
        return np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)


_ZIP = b"PK"
"""The first bytes of ZIP files, which .npz files are."""


class NpyHeader(NamedTuple):
    """The header of a `.npy` file: the form of its array, and how the file stores it."""

    shape: tuple[int, ...]
    is_fortran: bool
    """Whether the first axis varies fastest."""
    dtype: np.dtype[Any]
    num_bytes: int
    """Size of the header. The array's bytes follow it."""


def read_npy_header(data: ImageBytes) -> NpyHeader:
    """Read the header of a `.npy` file.

    Raises:
        DecodeError: It is damaged, or the array does not hold numbers.
    """
    if bytes(data[: len(_ZIP)]) == _ZIP:
        raise DecodeError(
            "this is a .npz archive of several arrays, or another ZIP file, not a .npy file. Read it by a decoder of "
            "your own, a function that returns dict(numpy.load(io.BytesIO(data)))"
        )
    file = BytesIO(data)
    try:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, TokenError) as error:
        raise DecodeError(f"not a .npy file, or its header is damaged: {error}") from error
    if dtype.kind not in "biufc" or dtype.shape:
        raise DecodeError(f"the .npy file holds {dtype}. Only arrays of numbers are read")
    return NpyHeader(shape, is_fortran, dtype, file.tell())
