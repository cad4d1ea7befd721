"""Shards that are `.npy` files: each row is the array of one sample, and all rows have one shape and dtype."""

from io import BytesIO
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.arrays import RawArray
from mpload.images.decoders import ImageDecoder, NumpyDecoder, ResizeCenterCrop
from mpload.tools.pack.options import PackOptions

__all__ = ["header_of", "row_of", "rows_like"]


def rows_like(data: bytes, options: PackOptions) -> RawArray:
    """Return the decoder of rows whose shape and dtype are those of a sample with the bytes `data`.

    Raises:
        DecodeError: the bytes are neither an image nor a `.npy` file.
    """
    array = _array_of(data, options)
    makes_images = options.decode is not None or not _is_npy(data)
    return RawArray(array.shape, dtype=array.dtype, makes_images=makes_images)


def row_of(data: bytes, options: PackOptions, rows: RawArray) -> bytes:
    """Return the row of a sample with the bytes `data`.

    Raises:
        DecodeError: the bytes are neither an image nor a `.npy` file, or their array is unlike the other rows.
    """
    array = _array_of(data, options)
    if array.shape != rows.output_shape or array.dtype != rows.output_dtype:
        raise DecodeError(
            f"its array is {array.dtype}{list(array.shape)}, but that of the first sample is "
            f"{rows.dtype}{list(rows.shape)}, and all rows need one shape and dtype. Crop images with decode=SIZE"
        )
    return array.tobytes()


def header_of(rows: RawArray, num_samples: int) -> bytes:
    """Return the header of the `.npy` file of `num_samples` rows."""
    file = BytesIO()
    shape = (num_samples, *rows.shape)
    descr = npy.dtype_to_descr(rows.output_dtype)
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def _array_of(data: bytes, options: PackOptions) -> NDArray[Any]:
    if options.decode is not None:
        return ResizeCenterCrop(options.decode, resize=options.decode)(data)
    return NumpyDecoder()(data) if _is_npy(data) else ImageDecoder()(data)


def _is_npy(data: bytes) -> bool:
    return data.startswith(npy.MAGIC_PREFIX)
