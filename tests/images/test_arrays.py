"""A raw array is the bytes of one array and nothing else."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from mpload import RawArray
from mpload.errors import ArgumentError, DecodeError
from mpload.images.decoders import RawBytes
from mpload.images.many import row_bytes

NUMBERS = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(), arrays.floating_dtypes(), arrays.complex_number_dtypes()
)
ARRAYS = arrays.arrays(NUMBERS, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))


@given(ARRAYS)
def test_an_array_of_numbers_comes_back_from_its_bytes(array: NDArray[Any]) -> None:
    decode = RawArray(array.shape, dtype=array.dtype)
    read = decode(array.tobytes())
    np.testing.assert_array_equal(read, array)
    assert (read.shape, read.dtype) == (decode.output_shape, decode.output_dtype)
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.flags.writeable


@given(ARRAYS, st.integers(-8, 8))
def test_bytes_of_another_length_are_an_error_that_says_both_lengths(array: NDArray[Any], more: int) -> None:
    data = (array.tobytes() + bytes(8))[: max(0, array.nbytes + more)]
    decode = RawArray(array.shape, dtype=array.dtype)
    if len(data) == array.nbytes:
        np.testing.assert_array_equal(decode(data), array)
        return
    with pytest.raises(DecodeError, match=rf"^{len(data):,} bytes, but .* has {array.nbytes:,}: .*Pass the shape"):
        decode(data)


def test_decoders_of_one_dtype_are_equal_in_any_notation() -> None:
    order = "<>"[sys.byteorder == "big"]
    notations = ("float32", "f4", np.float32, np.dtype("f4"), f"{order}f4", "=f4")
    assert {RawArray((3,), dtype=notation) for notation in notations} == {RawArray((3,), dtype="float32")}
    assert RawArray((3,), dtype=">f4") != RawArray((3,), dtype="<f4")
    assert repr(RawArray((3,), dtype=np.float32)) == "RawArray(shape=(3,), dtype='float32', makes_images=False)"


@pytest.mark.parametrize(
    ("shape", "more", "message"),
    [
        (3, {}, "shape must be a tuple of sizes"),
        ((3, -1), {}, "shape must be a tuple of sizes"),
        ((3.0,), {}, "shape must be a tuple of sizes"),
        ((3,), {"dtype": "object"}, "dtype must be a NumPy dtype of numbers, such as 'float32', got object"),
        ((3,), {"dtype": "U5"}, "dtype must be a NumPy dtype of numbers"),
        ((3,), {"dtype": "longdouble"}, "dtype must be a NumPy dtype of numbers"),
        ((3,), {"dtype": "i4,f8"}, "dtype must be a NumPy dtype of numbers"),
        ((3,), {"dtype": "number"}, "dtype must be a NumPy dtype of numbers, such as 'float32', got 'number'"),
        ((3,), {"dtype": None}, "dtype must be a NumPy dtype of numbers, such as 'float32', got None"),
        ((3, 4), {"makes_images": True}, r"images are arrays \[\.\.\., H, W, C\], got shape \(3, 4\)"),
    ],
)
def test_illegal_shapes_and_dtypes_are_refused(shape: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RawArray(shape, **more)


class Reversed(RawArray):
    """Decodes differently from its base class."""


def test_only_arrays_that_are_stored_as_in_memory_can_be_read_straight_into_a_batch() -> None:
    assert row_bytes(RawArray((32, 32, 3))) == 3072
    assert row_bytes(RawArray((), dtype="float64")) == 8
    assert row_bytes(RawArray((2,), dtype="<>"[sys.byteorder == "little"] + "f4")) is None
    assert row_bytes(RawArray((2, 0))) is None
    assert row_bytes(Reversed((2,))) is None
    assert row_bytes(RawBytes()) is None
