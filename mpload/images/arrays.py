"""`RawArray`: samples that are the bytes of an array, all of one shape and dtype, as `pack` stores them in rows."""

import math
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits

__all__ = ["RawArray"]

_NUMBERS = "?bhilqBHILQefdFD"
"""The characters of dtypes that hold numbers: all but long doubles, which torch cannot hold."""


@dataclass(frozen=True, slots=True)
class RawArray:
    """Read samples that are the bytes of an array and nothing else, all of one shape and dtype.

    `mpload pack --format arrays` writes such samples: the rows of `.npy` files. So do tools that write small images,
    embeddings or tokens one after another into a file. Each batch is one tensor [B, *shape].

    Attributes:
        shape: Shape of the array of one sample; `()` for a number.
        dtype: Type of its numbers, in any notation of NumPy. The bytes are in the byte order of this dtype, the results
            in that of this machine.
        makes_images: Arrays are images [H, W, C], and batches show them as [C, H, W]; otherwise they keep their axes.

    Memory:
        Workers map up to 2 GiB of the files into memory and copy rows from there, because reading a row takes longer.
        These pages are page cache, which the kernel may drop, but tools count them as memory of each worker.

    Raises:
        ArgumentError: `shape` or `dtype` is not that of an array of numbers, or images have fewer than three axes.
    """

    shape: tuple[int, ...]
    _: KW_ONLY
    dtype: DTypeLike = "uint8"
    makes_images: bool = False

    def __post_init__(self) -> None:
        if not _is_shape(self.shape):
            raise ArgumentError(f"shape must be a tuple of sizes, such as (32, 32, 3), got {self.shape!r}")
        stored = _dtype_of(self.dtype)
        if stored is None or stored.char not in _NUMBERS:
            shown = repr(self.dtype) if stored is None else stored
            raise ArgumentError(f"dtype must be a NumPy dtype of numbers, such as 'float32', got {shown}")
        if self.makes_images and len(self.shape) < 3:
            raise ArgumentError(f"images are arrays [..., H, W, C], got shape {self.shape}. Pass makes_images=False")
        # Decoders with the same dtype are equal, whichever notation was used.
        object.__setattr__(self, "dtype", stored.name if stored.isnative else stored.str)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of every result."""
        return self.shape

    @property
    def output_dtype(self) -> np.dtype[Any]:
        """The dtype of every result, in this machine's byte order."""
        return np.dtype(self.dtype).newbyteorder("=")

    @property
    def limits(self) -> Limits:
        """Which files are refused: those larger than 1 GiB are not even read, unless a sample is that large."""
        return Limits(max_bytes=max(self.sample_bytes, Limits().max_bytes))

    @property
    def sample_bytes(self) -> int:
        """The number of bytes of every sample."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __call__(self, data: ImageBytes, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the array, C-contiguous `output_dtype` `output_shape`.

        Args:
            data: The bytes of the array, in C order.
            out: The array to write to, C-contiguous `output_dtype` `output_shape`; None creates one.

        Raises:
            DecodeError: `data` does not have the length of such an array, or it exceeds `limits`.
        """
        self.limits.check_bytes(len(data))
        if len(data) != self.sample_bytes:
            raise DecodeError(
                f"{len(data):,} bytes, but {self.dtype}{list(self.shape)} has {self.sample_bytes:,}: a RawArray reads "
                "the bytes of one array and nothing else. Pass the shape and dtype of the samples, or use "
                "NumpyDecoder() for .npy files"
            )
        if out is None:
            out = np.empty(self.shape, self.output_dtype)
        elif out.shape != self.shape or out.dtype != self.output_dtype or not out.flags.c_contiguous:
            layout = "C-contiguous" if out.flags.c_contiguous else "not C-contiguous"
            raise ArgumentError(
                f"out must be a C-contiguous {self.output_dtype} {self.shape}, got {out.dtype} {out.shape}, {layout}"
            )
        out[...] = np.ndarray(self.shape, self.dtype, data)
        return out


def _is_shape(given: object) -> bool:
    return isinstance(given, tuple) and all(isinstance(size, int) and size >= 0 for size in given)


def _dtype_of(given: Any) -> np.dtype[Any] | None:
    if given is None:  # NumPy takes it for float64
        return None
    with suppress(TypeError, ValueError):
        found: np.dtype[Any] = np.dtype(given)
        return found
    return None
