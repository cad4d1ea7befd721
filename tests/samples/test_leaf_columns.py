"""Samples that are written several at a time are in the slot what they are if they are written one by one."""

from collections import OrderedDict, namedtuple
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
from mpload.samples.leaves import leaves_of, template_of
from mpload.samples.sample_form import has_form

Pair = namedtuple("Pair", "one other")  # noqa: PYI024  as users write it


class Own(torch.Tensor):
    pass


NUMBERS = st.sampled_from([True, False, 0, 7, -(1 << 63), (1 << 63) - 1, 1 << 63, 1 << 70, 0.5, float("nan"), 1e300])
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
    NUMBERS | SCALARS | ARRAYS | TENSORS,
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
    return {leaf.name: np.full((num_samples, *leaf.shape), 1, leaf.dtype) for leaf in leaves_of(template)}


@given(first=SAMPLES, others=st.lists(SAMPLES, max_size=2), copies=st.integers(1, 3))
@example(first=(1, 2.0), others=[(1 << 63, 2.0)], copies=2)
@example(first={"a": 1, "b": 2}, others=[{"b": 2, "a": 1}], copies=2)
@example(first=np.arange(3), others=[np.arange(3, dtype=">i8")], copies=1)
def test_samples_written_together_are_what_they_are_alone(first: Any, others: list[Any], copies: int) -> None:
    try:
        template = template_of(first)
    except (ArgumentError, NotImplementedError):
        return
    if not are_small(template):
        return
    for samples in ([first] * copies, [first] * copies + others):
        together = filled(template, len(samples) + 2)
        if not ColumnWriter(template, together).store(1, samples):
            continue
        alone = filled(template, len(samples) + 2)
        writer = LeafWriter(template, alone)
        for place, sample in enumerate(samples, 1):
            assert has_form(template, sample)
            writer.store(place, sample)
        for name, array in alone.items():
            assert array.tobytes() == together[name].tobytes()


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ((torch.zeros(4096), 1), False),
        ((torch.zeros(4000), 1), True),
        ({"text": "a"}, False),
        (torch.zeros(3).bfloat16(), False),
        ([np.zeros(3), {"a": (1, 2.0)}], True),
    ],
)
def test_small_samples_of_arrays_and_numbers_are_written_together(sample: Any, *, expected: bool) -> None:
    assert are_small(template_of(sample)) is expected


@pytest.mark.parametrize(
    "sample",
    [
        7,
        (torch.arange(3.0), torch.tensor(1)),
        {"a": np.arange(3), "b": [np.float32(2), True]},
        Pair(torch.complex(torch.arange(3.0), torch.arange(3.0)).conj(), 0.5),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    ],
)
def test_ordinary_samples_are_written_together(sample: Any) -> None:
    template = template_of(sample)
    assert ColumnWriter(template, filled(template, 4)).store(1, [sample] * 3)
