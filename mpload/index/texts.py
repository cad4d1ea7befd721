"""Texts as Arrow arrays, which Arrow compares and converts without making a Python object for each."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["binary_array", "binary_parts", "booleans_of", "floats_in", "numbered"]

_Number = TypeVar("_Number", bound=np.generic)


def binary_array(texts: Sequence[bytes]) -> "pa.Array[Any]":
    """Return texts as Arrow's binary [n]; `pa.array` would import pandas."""
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(texts), [None, _buffer(ends), pa.py_buffer(b"".join(texts))])


def binary_parts(data: bytes, bounds: NDArray[np.int64]) -> "pa.Array[Any]":
    """Return parts of `data` as Arrow's binary [n]. `bounds` [n, 2] has where each begins and ends."""
    # An array with one item for each part, and one for what is between two parts. It refers to the data. Every other
    # item is then copied.
    offsets = _buffer(bounds.reshape(-1).astype(np.int32))
    both = pa.Array.from_buffers(pa.binary(), 2 * len(bounds) - 1, [None, offsets, pa.py_buffer(data)])
    places = np.arange(0, len(both), 2)
    return both.take(pa.Array.from_buffers(pa.int64(), len(places), [None, _buffer(places)]))


def floats_in(texts: "pa.Array[Any]") -> NDArray[np.float64] | None:
    """Return the numbers that binary [n] holds, float64 [n]; None if Arrow cannot read one of them."""
    try:
        return _values_of(texts.cast(pa.string()).cast(pa.float64()), np.float64)
    except pa.ArrowInvalid:
        return None


def numbered(texts: "pa.Array[Any]") -> tuple[NDArray[np.int32], list[object]]:
    """Return a number for each text, int32 [n], and the different texts in the order of these numbers."""
    encoded = texts.dictionary_encode()
    return _values_of(encoded.indices, np.int32), encoded.dictionary.to_pylist()


def booleans_of(array: "pa.Array[Any]") -> NDArray[np.bool_]:
    """Return Arrow's bool [n] as a NumPy array."""
    bits = np.frombuffer(_buffer_of(array), np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def _values_of(array: "pa.Array[Any]", dtype: type[_Number]) -> NDArray[_Number]:
    return np.frombuffer(_buffer_of(array), dtype)[array.offset : array.offset + len(array)]


def _buffer_of(array: "pa.Array[Any]") -> memoryview:
    buffer = array.buffers()[1]
    return memoryview(b"" if buffer is None else buffer)


def _buffer(values: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.data)
