"""Ragged fields of many samples at once: the same values as one by one, with and without the native module."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.transport import ragged
from mpload.transport.ragged import RaggedArray
from mpload.transport.ring import SlotRing
from mpload.transport.slots import RaggedField, SlotLayout

NUM_SAMPLES = 12
MAX_BYTES = 100
NATIVE: Any = ragged._NATIVE
needs_native = pytest.mark.skipif(NATIVE is None, reason="the native module is not built")
POSITION = st.integers(-2, 130) | st.sampled_from([-(1 << 63), (1 << 63) - 1])


def new_array() -> RaggedArray:
    layout = SlotLayout(num_samples=NUM_SAMPLES, fields=(RaggedField(name="text", max_sample_bytes=MAX_BYTES),))
    ring = SlotRing(num_slots=1, layout=layout)
    array: RaggedArray = ring.lend(0, NUM_SAMPLES)["text"]
    ring.close()  # the array keeps the memory
    array.begin(0, NUM_SAMPLES)
    return array


@needs_native
@given(
    data=st.binary(max_size=130),
    bounds=st.lists(st.tuples(POSITION, POSITION), max_size=NUM_SAMPLES),
)
def test_many_pieces_are_put_like_one_or_refused(data: bytes, bounds: Sequence[tuple[int, int]]) -> None:
    array, alone = new_array(), new_array()
    made = array.put_many(0, data, np.array(bounds, np.int64).reshape(-1, 2))
    for sample, (start, end) in enumerate(bounds):
        is_piece = 0 <= start <= end <= len(data)
        assert made[sample] == (is_piece and end - start <= MAX_BYTES)
        if made[sample]:
            alone.put(sample, data[start:end])
    assert array.strings(None, as_text=False) == alone.strings(None, as_text=False)
    assert np.array_equal(array._starts[: len(bounds)][made], alone._starts[: len(bounds)][made])


@pytest.mark.parametrize("is_native", [pytest.param(True, marks=needs_native), False])
@given(values=st.lists(st.binary(max_size=MAX_BYTES), min_size=NUM_SAMPLES, max_size=NUM_SAMPLES), data=st.data())
def test_strings_are_what_was_put(is_native: bool, values: list[bytes], data: st.DataObject) -> None:
    kept = data.draw(st.none() | st.lists(st.integers(0, NUM_SAMPLES - 1)))
    array = new_array()
    for sample, value in enumerate(values):
        array.put(sample, value)
    wanted = values if kept is None else [values[sample] for sample in kept]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ragged, "_NATIVE", NATIVE if is_native else None)
        chosen = None if kept is None else np.array(kept, np.int64)
        assert array.strings(chosen, as_text=False) == wanted
        assert array.strings(chosen, as_text=True) == [each.decode("utf-8", "surrogateescape") for each in wanted]
        assert array.copy().strings(chosen, as_text=False) == wanted


@pytest.mark.parametrize("is_native", [pytest.param(True, marks=needs_native), False])
@given(
    shapes=st.lists(st.sampled_from([(2, 3), (2, 2), (0, 3)]), min_size=4, max_size=4)
    | st.lists(st.sampled_from([(2, 3), (1, 3), (0, 3)]), min_size=4, max_size=4)
    | st.sampled_from([[(2, 3)] * 4, [(0, 0)] * 4, [(1, 0), (2, 0)] * 2]),
    kept=st.none() | st.lists(st.integers(0, 3)),
)
def test_samples_of_one_shape_are_stacked(
    is_native: bool, shapes: list[tuple[int, int]], kept: list[int] | None
) -> None:
    field = RaggedField(name="pixels", dtype="int16", num_dims=2, max_sample_bytes=12)
    array = SlotRing(num_slots=1, layout=SlotLayout(num_samples=4, fields=(field,))).lend(0, 4)["pixels"]
    array.begin(0, 4)
    values = [np.arange(np.prod(shape), dtype=np.int16).reshape(shape) - place for place, shape in enumerate(shapes)]
    for place in (2, 0, 3, 1):
        array.put(place, values[place])
    chosen = values if kept is None else [values[place] for place in kept]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ragged, "_NATIVE", NATIVE if is_native else None)
        found = array.stacked(None if kept is None else np.array(kept, np.int64))
    assert isinstance(found, np.ndarray) == (len({value.shape for value in chosen}) == 1)
    assert len(found) == len(chosen)
    assert all(map(np.array_equal, found, chosen))
    assert all(value.dtype == np.int16 for value in found)


@pytest.mark.parametrize("num_bytes", [1023, 1024, 1025])
def test_small_samples_are_copied_out_of_their_slot_and_large_ones_are_views(num_bytes: int) -> None:
    field = RaggedField(name="values", num_dims=1, max_sample_bytes=4096)
    array = SlotRing(num_slots=1, layout=SlotLayout(num_samples=2, fields=(field,))).lend(0, 2)["values"]
    array.begin(0, 2)
    values = [np.full(num_bytes + more, 9, np.uint8) for more in (7, -7)]
    for place, value in enumerate(values):
        array.put(place, value)
    found = array.stacked(None)
    assert all(map(np.array_equal, found, values))
    assert [np.shares_memory(value, array.area) for value in found] == [num_bytes > 1024] * 2


SHAPES = st.sampled_from([(2, 400), (3, 400), (0, 400), (2, 0)])


@given(
    shapes=st.lists(SHAPES, min_size=6, max_size=6) | st.builds(lambda shape: [shape] * 6, SHAPES),
    order=st.permutations(range(6)),
    again=st.lists(st.integers(0, 5), max_size=3),
    kept=st.none() | st.lists(st.integers(0, 5)),
)
def test_samples_of_the_usual_shape_are_stacked_without_a_copy(
    shapes: list[tuple[int, int]], order: list[int], again: list[int], kept: list[int] | None
) -> None:
    field = RaggedField(name="pixels", dtype="int16", num_dims=2, max_sample_bytes=9600, usual_shape=(2, 400))
    array = SlotRing(num_slots=1, layout=SlotLayout(num_samples=6, fields=(field,))).lend(0, 6)["pixels"]
    array.begin(0, 4)  # two chunks, as two workers fill them
    values = [np.full(shape, place, np.int16) for place, shape in enumerate(shapes)]
    for place in sorted(order, key=lambda place: place >= 4):
        if place >= 4 and not array.shapes[4:].any():
            array.begin(4, 6)
        array.put(place, values[place])
        if place in again:  # it has failed, and is made again
            array.put(place, np.ones((1, 400), np.int16))
            array.put(place, values[place])
    chosen = values if kept is None else [values[place] for place in kept]
    found = array.stacked(None if kept is None else np.array(kept, np.int64))
    assert len(found) == len(chosen)
    assert all(map(np.array_equal, found, chosen))
    assert all(map(np.array_equal, array.copy(), values))
    assert all(map(np.array_equal, array, values))
    if shapes == [(2, 400)] * 6 and kept is None:
        assert np.shares_memory(found, array.area)
        assert array.copy().stacked(None).shape == (6, 2, 400)


def test_an_empty_shape_is_never_the_usual_one() -> None:
    field = RaggedField(name="pixels", num_dims=2, max_sample_bytes=64, usual_shape=(0, 3))
    assert field.usual_shape is None
    array = SlotRing(num_slots=1, layout=SlotLayout(num_samples=2, fields=(field,))).lend(0, 2)["pixels"]
    array.begin(0, 2)
    array.put(0, np.empty((0, 3), np.uint8))
    array.put(1, np.ones((2, 3), np.uint8))
    assert [value.shape for value in array] == [(0, 3), (2, 3)]


def test_samples_of_the_usual_shape_leave_the_room_of_others() -> None:
    field = RaggedField(name="pixels", max_sample_bytes=64, usual_shape=(100,))
    array = SlotRing(num_slots=1, layout=SlotLayout(num_samples=3, fields=(field,))).lend(0, 3)["pixels"]
    array.begin(0, 3)
    assert array.fits((100,))
    assert not array.fits((65,))
    for place in range(3):
        array.put(place, bytes([place]) * 100)
    assert array.has_room(3)
    array.put(1, b"\7" * 64)
    assert [value.tobytes() for value in array] == [b"\0" * 100, b"\7" * 64, b"\2" * 100]


def test_room_is_counted_in_samples_of_the_greatest_size() -> None:
    array = new_array()
    assert array.has_room(NUM_SAMPLES)
    array.use(64)
    assert not array.has_room(NUM_SAMPLES)
    assert array.has_room(NUM_SAMPLES - 1)


@needs_native
@given(start=POSITION, size=POSITION)
def test_a_damaged_slot_is_never_read_beyond_its_end(start: int, size: int) -> None:
    area = np.arange(64, dtype=np.uint8)
    starts, sizes = np.array([start], np.int64), np.array([size], np.int64)
    if 0 <= start <= 64 and 0 <= size <= 64 - start:
        assert NATIVE.values(area, starts, sizes, False) == [area[start : start + size].tobytes()]
    else:
        with pytest.raises(ValueError, match="outside of the area"):
            NATIVE.values(area, starts, sizes, False)


@needs_native
def test_arrays_that_do_not_fit_together_are_refused() -> None:
    area, one, two = np.zeros(64, np.uint8), np.zeros(1, np.int64), np.zeros((1, 2), np.int64)
    for arguments in ([b"", one, area, 9, one, one], [b"", two, area, 9, one, two], [b"", two, area, 9, two, one]):
        with pytest.raises(ValueError, match="must be int64"):
            NATIVE.put(*arguments)
    with pytest.raises(ValueError, match="must be int64"):
        NATIVE.values(area, one, two, False)
    with pytest.raises(ValueError, match="must be int64"):
        NATIVE.gather(area, one, two, area)
    for size, start, out_bytes in ((8, 60, 8), (8, -1, 8), (8, 0, 7), (-1, 0, 8)):
        with pytest.raises(ValueError, match=r"outside of the area, or has no room"):
            NATIVE.gather(area, one + start, one + size, np.zeros(out_bytes, np.uint8))


@pytest.mark.parametrize("is_native", [True, False])
def test_samples_in_the_other_byte_order_are_stacked_in_that_of_the_machine(is_native: bool) -> None:
    swapped = np.dtype(np.int16).newbyteorder("S")
    field = RaggedField(name="pixels", dtype=swapped, max_sample_bytes=6)
    array = SlotRing(num_slots=1, layout=SlotLayout(num_samples=2, fields=(field,))).lend(0, 2)["pixels"]
    array.begin(0, 2)
    for place in range(2):
        array.put(place, np.arange(3).astype(swapped))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ragged, "_NATIVE", NATIVE if is_native else None)
        found = array.stacked(None)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int16, "torch takes no other byte order"
    np.testing.assert_array_equal(found, [[0, 1, 2]] * 2)
