"""Samples that are written several at a time are in the slot what they are if they are written one by one."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mpload.errors import ArgumentError
from mpload.samples.leaf_arrays import LeafWriter
from mpload.samples.leaf_columns import ColumnWriter, are_small
from mpload.samples.leaves import Leaf, leaves_of, marked, template_of
from mpload.samples.sample_form import has_form
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import Field
from tests.support.native import needs_native_lines

Pair = namedtuple("Pair", "one other")  # noqa: PYI024  as users write it


class Own(torch.Tensor):
    pass


class Lengths:
    """A ragged array that has room for anything, and keeps nothing."""

    def put_many(self, first: int, data: bytes, bounds: Any) -> Any:
        assert first == 0
        assert bounds[-1, 1] == len(data)
        return np.full(len(bounds), fill_value=True)


NUMBERS = st.sampled_from([True, False, 0, 7, -(1 << 63), (1 << 63) - 1, 1 << 63, 1 << 70, 0.5, float("nan"), 1e300])
TEXTS = st.sampled_from(["", "a", "ü" * 40, "\ud800", "a" * 5000, np.str_("b"), b"", b"\0\xff", b"c" * 3000])
SCALARS = st.sampled_from([np.float32(0.1), np.int64(-5), np.uint64((1 << 64) - 1), np.bool_(1), np.complex64(1j)])
ARRAYS = st.sampled_from(
    [
        np.arange(3),
        np.arange(3, dtype=np.int32),
        np.arange(3, dtype=">i4"),
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24.0).reshape(3, 8)[:, ::2],
        np.zeros((0, 4)),
        np.array(5),
        np.ma.masked_array([1, 2, 3], [False, True, False]),
        np.array(["a"]),
    ]
)
TENSORS = st.sampled_from(
    [
        torch.arange(3),
        torch.arange(3.0),
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(4, 3).T,
        torch.tensor(5),
        torch.zeros(0),
        torch.arange(3.0, requires_grad=True),
        torch.arange(3).bfloat16(),
        torch.arange(3.0).to_sparse(),
        torch.complex(torch.arange(3.0), torch.arange(3.0)).conj(),
        torch.arange(3.0).as_subclass(Own),
        torch.tensor([1.0, 2.0], device="meta"),
    ]
)
SAMPLES = st.recursive(
    NUMBERS | TEXTS | SCALARS | ARRAYS | TENSORS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        st.builds(lambda value: OrderedDict(a=value), inner),
        st.builds(lambda value: MappingProxyType({"a": value}), inner),
    ),
    max_leaves=4,
)


def filled(template: Any, num_samples: int) -> dict[str, Any]:
    """Arrays of a slot, by the leaf's name, ready for the samples from number 1 on."""
    return {leaf.name: _array(leaf, num_samples) for leaf in leaves_of(template)}


def _array(leaf: Leaf, num_samples: int) -> Any:
    field = leaf.field(room_bytes=4096)
    if isinstance(field, Field):
        return np.full((num_samples, *field.shape), 1, field.dtype)
    starts, shapes = np.zeros(num_samples, np.int64), np.zeros((num_samples, field.num_dims), np.int64)
    array = RaggedArray(field, starts=starts, shapes=shapes, area=np.zeros(num_samples * field.room_bytes, np.uint8))
    array.begin(1, num_samples)
    return array


def contents(array: Any) -> Any:
    return array.tobytes() if isinstance(array, np.ndarray) else [value.tobytes() for value in array]


def with_mixed_numbers(template: Any) -> Any:
    return marked(template, set(), {leaf.number for leaf in leaves_of(template) if leaf.is_number})


@given(first=SAMPLES, others=st.lists(SAMPLES, max_size=2), copies=st.integers(1, 3), is_mixed=st.booleans())
@example(first=(1, 2.0), others=[(1 << 63, 2.0)], copies=2, is_mixed=False)
@example(first=(1, 2.0), others=[(1 << 63, 2.0)], copies=2, is_mixed=True)
@example(first={"a": 1, "b": 2}, others=[{"a": 0.5, "b": True}], copies=2, is_mixed=True)
@example(first={"a": 1, "b": 2}, others=[{"b": 2, "a": 1}], copies=2, is_mixed=False)
@example(first=np.arange(3), others=[np.arange(3, dtype=">i8")], copies=1, is_mixed=False)
@example(first=("a", 1), others=[("bc", 1), ("", 2)], copies=2, is_mixed=False)
def test_samples_written_together_are_what_they_are_alone(
    first: Any, others: list[Any], copies: int, *, is_mixed: bool
) -> None:
    try:
        template = template_of(first)
    except (ArgumentError, NotImplementedError):
        return
    if is_mixed:
        template = with_mixed_numbers(template)
    if not are_small(template):
        return
    for samples in ([first] * copies, [first] * copies + others):
        together = filled(template, len(samples) + 2)
        if not ColumnWriter(template).store(together, 1, samples):
            continue
        alone = filled(template, len(samples) + 2)
        writer = LeafWriter(template, alone)
        for place, sample in enumerate(samples, 1):
            assert has_form(template, sample)
            writer.store(place, sample)
        for name, array in alone.items():
            assert contents(array) == contents(together[name])


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ((torch.zeros(4096), 1), False),
        ((torch.zeros(4000), 1), True),
        ({"text": "a"}, True),
        ((torch.zeros(4096), "a"), False),
        (torch.zeros(3).bfloat16(), False),
        ([np.zeros(3), {"a": (1, 2.0)}], True),
    ],
)
def test_small_samples_are_written_together(sample: Any, *, expected: bool) -> None:
    assert are_small(template_of(sample)) is expected


@pytest.mark.parametrize(
    "sample",
    [
        7,
        (torch.arange(3.0), torch.tensor(1)),
        {"a": np.arange(3), "b": [np.float32(2), True]},
        Pair(torch.complex(torch.arange(3.0), torch.arange(3.0)).conj(), 0.5),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        pytest.param({"text": "a" * 100, "bytes": b"", "id": 5}, marks=needs_native_lines),
    ],
)
def test_ordinary_samples_are_written_together(sample: Any) -> None:
    for template in (template_of(sample), with_mixed_numbers(template_of(sample))):
        assert ColumnWriter(template).store(filled(template, 4), 1, [sample] * 3)


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 256), (100, 256), (100_000, 41), (10_000_000, 1)])
def test_texts_are_held_until_they_take_four_mebibytes(num_bytes: int, expected: int) -> None:
    template = template_of("a")
    writer, array = ColumnWriter(template), Lengths()
    for _ in range(10):
        writer.store({"0": array}, 0, ["a" * num_bytes] * 2)
    assert writer.num_at_once == expected


@pytest.mark.parametrize("make", [lambda _: np.zeros(3), lambda _: torch.zeros(3), lambda number: {"number": number}])
def test_samples_with_memory_of_their_own_are_written_together(make: Callable[[int], Any]) -> None:
    template = template_of(make(0))
    writer, arrays = ColumnWriter(template), filled(template, 9)
    for number in range(8):
        assert writer.num_at_once == 1
        assert writer.store(arrays, number, [make(number)])
    assert writer.num_at_once == 256


ARRAY, TENSOR, LIST = np.zeros(3), torch.zeros(3), [1, 2]


@pytest.mark.parametrize("make", [lambda: ARRAY[:], lambda: {"a": (TENSOR.view(3),)}, lambda: LIST])
def test_samples_that_use_the_same_memory_again_are_written_alone(make: Callable[[], Any]) -> None:
    template = template_of(make())
    writer, arrays = ColumnWriter(template), filled(template, 9)
    for _ in range(20):
        assert writer.store(arrays, 1, [make()])
        assert writer.num_at_once == 1
