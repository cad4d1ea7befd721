"""What the last step of a batch joins is what the training process would join."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from mpload import Flat, Pad
from mpload.errors import ArgumentError
from mpload.loader.collate import join_in_workers
from mpload.transport.ring import SlotRing
from mpload.transport.slots import RaggedField, SlotLayout

FIELD = RaggedField(name="x", dtype="float32", num_dims=2, max_sample_bytes=1 << 12)
numbers = arrays_of.arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(0, 3)), elements=st.integers(-9, 9))


def joined(join: Any, values: list[Any], places: list[int], *, max_bytes: int = 1 << 20) -> Any:
    """Join the values at some places in a slot, as workers do."""
    how = join_in_workers(join, FIELD, max_bytes=max_bytes)
    assert how is not None
    ring = SlotRing(num_slots=1, layout=SlotLayout(num_samples=max(1, len(values)), fields=(FIELD, how.into)))
    try:
        arrays = ring.views(0)
        for array in arrays.values():
            array.begin(0, len(values))
        for place, value in enumerate(values):
            arrays["x"].put(place, value)
        how.write(arrays, np.array(places))
        found = how.read(arrays, np.array(places))
        return found and (found.values.copy(), found.offsets)
    finally:
        ring.close()


@given(st.lists(numbers, min_size=1, max_size=5), st.data())
def test_workers_pad_as_the_training_process_does(values: list[Any], data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.sampled_from(range(len(values))), min_size=1)))
    expected, _ = Pad(0.5).joined([values[place] for place in places], key="x")
    found, offsets = joined(Pad(0.5), values, places)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype
    assert offsets is None


@given(st.lists(numbers.map(lambda array: np.resize(array, (len(array), 2))), min_size=1, max_size=5), st.data())
def test_workers_join_end_to_end_as_the_training_process_does(values: list[Any], data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.sampled_from(range(len(values))), min_size=1)))
    expected, expected_offsets = Flat().joined([values[place] for place in places], key="x")
    found = joined(Flat(), values, places)
    if not len(expected):
        assert found is None  # left to the training process
        return
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], expected_offsets)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_arrays_without_rows_fit_to_any_others_with_rows(values: list[Any]) -> None:
    widths = {value.shape[1] for value in values if len(value)}
    if len(widths) != 1:  # none has rows, or those with rows differ
        return
    found, offsets = joined(Flat(), values, list(range(len(values))))
    expected = np.concatenate([value for value in values if len(value)])
    lengths = [len(value) for value in values]
    for made, ends in ((found, offsets), Flat().joined(values, key="x")):
        np.testing.assert_array_equal(made, expected)
        assert made.dtype == np.float32
        np.testing.assert_array_equal(ends, np.cumsum([0, *lengths]))


@pytest.mark.parametrize("shapes", [[(1, 2), (0, 3), (1, 3)], [(0, 2), (0, 3)]])
def test_arrays_that_differ_in_another_axis_are_not_joined(shapes: list[tuple[int, int]]) -> None:
    values = [np.zeros(shape, np.float32) for shape in shapes]
    assert joined(Flat(), values, list(range(len(values)))) is None
    with pytest.raises(ArgumentError, match=rf"x differs in others too: it is \[{shapes[0][0]}, 2\] and .*, 3\]"):
        Flat().joined(values, key="x")


def test_what_cannot_be_joined_is_left_to_the_training_process() -> None:
    assert joined(Flat(), [np.zeros((1, 2), "f"), np.zeros((1, 3), "f")], [0, 1]) is None  # which raises the error
    assert joined(Pad(0), [np.zeros((9, 9), "f")] * 2, [0, 1], max_bytes=100) is None
    counts = RaggedField(name="n", dtype="uint8")
    assert join_in_workers(Pad(-1), counts, max_bytes=100) is None
    with pytest.raises(OverflowError):
        np.uint8(-1)


def test_flat_promotes_dtypes_as_numpy_does() -> None:
    joined, offsets = Flat().joined([np.array([0], np.int8), np.array([300], np.int64)], key="x")
    assert joined.dtype == np.int64
    assert (joined.tolist(), offsets.tolist()) == ([0, 300], [0, 1, 2])


def test_flat_refuses_arrays_of_another_number_of_axes() -> None:
    with pytest.raises(ArgumentError, match="differs in others too"):
        Flat().joined([np.empty((0, 3)), np.zeros(2)], key="x")
