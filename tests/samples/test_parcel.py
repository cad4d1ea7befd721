"""Parcels: any value becomes bytes in shared memory and the same value again."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from mpload import ArgumentError
from mpload.samples.parcel import pack, unpack

Point = namedtuple("Point", "x y")  # noqa: PYI024  users have those


@dataclass
class Pair:
    first: Any
    second: Any


def parcel(value: Any) -> NDArray[np.uint8]:
    made: list[NDArray[np.uint8]] = []

    def room(num_bytes: int) -> NDArray[np.uint8]:
        memory = np.zeros(num_bytes + 64, np.uint8)
        start = -memory.ctypes.data % 64
        made.append(memory[start : start + num_bytes])
        return made[0]

    pack(value, room)
    return made[0]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or str(a) == "nan")


LEAVES = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    arrays(st.sampled_from(["u1", "<i4", "f8", "?", "c8"]), st.lists(st.integers(0, 3), max_size=3).map(tuple)),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


@given(VALUES)
def test_every_value_comes_back(value: Any) -> None:
    assert same(value, unpack(parcel(value)))


IMAGES = torch.arange(120.0).reshape(2, 3, 4, 5)
TENSORS = {
    "contiguous": IMAGES,
    "channels last": IMAGES.to(memory_format=torch.channels_last),
    "transposed": IMAGES.transpose(1, 3),
    "a part": IMAGES[:, 1:, ::2],
    "bfloat16": IMAGES.bfloat16(),
    "float8": IMAGES.to(torch.float8_e4m3fn),
    "bool": IMAGES > 7,
    "complex": torch.complex(IMAGES, IMAGES).conj(),
    "number": torch.tensor(3),
    "empty": torch.empty(0, 3, dtype=torch.int16),
    "sparse": torch.eye(3).to_sparse(),
    "parameter": torch.nn.Parameter(torch.ones(3)),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_every_tensor_comes_back_with_its_layout(kind: str) -> None:
    tensor = TENSORS[kind]
    received = unpack(parcel({"tensor": tensor}))["tensor"]
    assert type(received) is type(tensor)
    assert (received.dtype, received.shape, received.requires_grad) == (
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
    )
    if not tensor.is_sparse:
        assert received.is_contiguous(memory_format=torch.channels_last) == (kind == "channels last")
        assert same(bits(received), bits(tensor))


def bits(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy()


def test_classes_of_the_user_keep_their_identity() -> None:
    for value in (Pair(Point(1, 2), OrderedDict(a=1)), Point([1], None)):
        received = unpack(parcel(value))
        assert type(received) is type(value)
        assert received == value


def test_arrays_are_views_of_the_parcel_and_are_not_pickled() -> None:
    memory = parcel([np.zeros(1000, np.uint8), torch.zeros(1000)])
    array, tensor = unpack(memory)
    memory[:] = 255
    assert array.tolist() == [255] * 1000
    assert tensor.isnan().all()
    assert memory.size < 1000 + 4000 + 1000


READ_ONLY: dict[str, NDArray[Any]] = {
    "bytes": np.frombuffer(b"some bytes", np.uint8),
    "a number": np.array(3.0),
    "columns": np.arange(12).reshape(3, 4).T,
    "a part": np.arange(12).reshape(3, 4)[:, 1:3],
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "records": np.array([(1, 2.0), (3, 4.0)], np.dtype([("a", "i2"), ("b", "f8")], align=True)),
    "times": np.array(["2026-11-28"], "datetime64[s]"),
    "objects": np.array([1, "a"], object),
    "nothing": np.empty((0, 3)),
}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_an_array_that_is_read_only_here_can_be_written_to_there(kind: str) -> None:
    array = READ_ONLY[kind].view()
    array.flags.writeable = False
    first, again = unpack(parcel([array, array]))
    assert first is again
    assert first.dtype == array.dtype
    assert np.array_equal(first, array)
    if array.flags.f_contiguous and array.size:
        assert first.strides == array.strides
    assert first.flags.writeable
    first[...] = first
    assert not array.flags.writeable


def test_a_read_only_array_is_a_view_of_the_parcel_too() -> None:
    memory = parcel(np.frombuffer(bytes(1000), np.uint8))
    array = unpack(memory)
    memory[:] = 255
    assert array.tolist() == [255] * 1000
    assert memory.size < 1000 + 500


@pytest.mark.parametrize(
    "view",
    [
        memoryview(b"ab"),
        memoryview(bytearray(b"abc"))[::2],
        memoryview(bytes(24)).cast("i", (2, 3)),
        np.arange(6.0).reshape(2, 3).T.data,
        memoryview(b""),
    ],
)
def test_a_memoryview_stays_one(view: memoryview) -> None:
    received = unpack(parcel(view))
    assert type(received) is memoryview
    assert received.tolist() == view.tolist()
    assert (received.format, received.shape, received.readonly) == (view.format, view.shape, view.readonly)


def test_a_tensor_with_a_graph_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a tensor of shape \[2\] requires grad, .* Call detach"):
        parcel({"x": torch.ones(2, requires_grad=True) * 2})


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.complex64, torch.bool])
def test_a_single_number_of_a_larger_tensor_has_any_stride(dtype: torch.dtype) -> None:
    table = torch.arange(15).reshape(3, 5).to(dtype)
    for tensor in (table[1:2, 2], table[None, 2, 3], table[1:2, 2:3], torch.ones((), dtype=dtype).expand(1)):
        assert torch.equal(unpack(parcel(tensor)), tensor)
