"""Shards that are `.npy` files: each row is the array of one sample, and all rows have one shape and dtype."""

from io import BytesIO
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.arrays import RawArray
from mpload.images.decoders import ImageDecoder, NumpyDecoder, ResizeCenterCrop

__all__ = ["header_of", "row_of", "rows_like"]


def rows_like(data: bytes, crop: ResizeCenterCrop | None) -> RawArray:
    """Return the decoder of rows whose shape and dtype are those of a sample with the bytes `data`.

    `crop` decodes images; None decodes whole images, and reads arrays.

    Raises:
        DecodeError: the bytes are neither an image nor a `.npy` file.
    """
    array = _array_of(data, crop)
    makes_images = crop is not None or not _is_npy(data)
    return RawArray(array.shape, dtype=array.dtype, makes_images=makes_images)


def row_of(data: bytes, crop: ResizeCenterCrop | None, rows: RawArray) -> bytes:
    """Return the row of a sample with the bytes `data`, decoded as for `rows_like`.

    Raises:
        DecodeError: the bytes are neither an image nor a `.npy` file, or their array is unlike the other rows.
    """
    array = _array_of(data, crop)
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


def _array_of(data: bytes, crop: ResizeCenterCrop | None) -> NDArray[Any]:
    if crop is not None:
        return crop(data)
    return NumpyDecoder()(data) if _is_npy(data) else ImageDecoder()(data)


def _is_npy(data: bytes) -> bool:
    return data.startswith(npy.MAGIC_PREFIX)
