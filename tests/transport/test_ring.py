"""The ring: layout by arithmetic, anonymous memory, and lent slots that become free when their last view dies."""

import gc
import mmap
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError
from mpload.transport.ring import SlotRing
from mpload.transport.slots import ALIGN_BYTES, Field, RaggedField, SlotLayout
from mpload.units import GIB, MIB

LAYOUT = SlotLayout(
    num_samples=4,
    fields=(
        Field(name="image", shape=(5, 7, 3), dtype="uint8"),
        Field(name="label", dtype="int64"),
        RaggedField(name="text", max_sample_bytes=1000),
    ),
)


@given(
    num_samples=st.integers(1, 300),
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5),
    dtype=st.sampled_from(["uint8", "int16", "float32", "complex128"]),
)
def test_arrays_of_a_slot_are_aligned_and_never_overlap(num_samples: int, shapes: list[list[int]], dtype: str) -> None:
    fields = tuple(Field(name=str(i), shape=tuple(shape), dtype=dtype) for i, shape in enumerate(shapes))
    layout = SlotLayout(num_samples=num_samples, fields=(*fields, RaggedField(name="r", max_sample_bytes=77)))
    parts = sorted((part for group in layout.parts.values() for part in group), key=lambda part: part.offset_bytes)
    assert all(part.offset_bytes % ALIGN_BYTES == 0 for part in parts)
    assert all(a.end_bytes <= b.offset_bytes for a, b in pairwise(parts))
    assert parts[-1].end_bytes <= layout.slot_bytes
    assert layout.slot_bytes % mmap.PAGESIZE == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Field(name="x", dtype=object), "Python objects"),
        (lambda: Field(name="x", shape=(-1,), dtype="uint8"), "negative"),
        (lambda: RaggedField(name="x", num_dims=0), "num_dims"),
        (lambda: RaggedField(name="x", max_sample_bytes=0), "max_sample_bytes"),
        (lambda: SlotLayout(num_samples=0, fields=LAYOUT.fields), "num_samples must be at least 1, got 0"),
        (lambda: SlotLayout(num_samples=1, fields=()), "at least one field"),
        (lambda: SlotLayout(num_samples=1, fields=LAYOUT.fields * 2), "each name once"),
        (lambda: SlotRing(num_slots=0, layout=LAYOUT), "num_slots must be at least 1, got 0"),
    ],
)
def test_an_invalid_layout_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_an_attached_ring_shares_its_memory_with_the_owner() -> None:
    ring = SlotRing(num_slots=2, layout=LAYOUT)
    other = SlotRing.attach(os.dup(ring.fd), num_slots=2, layout=LAYOUT)
    other.views(1)["label"][:] = [1, 2, 3, 4]
    other.views(1)["image"][2] = 9
    views = ring.views(1)
    assert views["label"].tolist() == [1, 2, 3, 4]
    assert views["image"][2].min() == 9
    assert views["image"].shape == (4, 5, 7, 3)
    assert not ring.views(0)["label"].any()
    del views
    ring.close()
    other.close()


def test_a_lent_slot_becomes_free_when_its_last_view_dies() -> None:
    torch = pytest.importorskip("torch")
    ring = SlotRing(num_slots=2, layout=LAYOUT)
    slot = ring.take()
    assert slot is not None
    batch = ring.lend(slot, 3)
    pixels = torch.from_numpy(batch["image"]).permute(0, 3, 1, 2)[1:]
    text = batch["text"]
    assert batch["image"].shape == (3, 5, 7, 3)
    del batch
    assert (ring.num_free, ring.num_lent) == (1, 1)
    del text
    channel = pixels[:, 0]
    del pixels
    assert ring.num_lent == 1
    del channel
    assert (ring.num_free, ring.num_lent) == (2, 0)
    ring.close()


def test_a_copied_slot_is_free_at_once_and_the_copy_never_changes() -> None:
    ring = SlotRing(num_slots=1, layout=LAYOUT)
    slot = ring.take()
    assert slot is not None
    assert ring.take() is None
    views = ring.views(slot)
    views["label"][:] = 5
    views["text"].begin(0, 4)
    views["text"].put(2, b"seven")
    copy = ring.copy_out(slot, 3)
    assert ring.num_free == 1
    views["label"][:] = 6
    views["text"].begin(0, 4)
    assert copy["label"].tolist() == [5, 5, 5]
    assert [value.tobytes() for value in copy["text"]] == [b"", b"", b"seven"]


def test_the_slot_that_was_freed_last_is_taken_first() -> None:
    ring = SlotRing(num_slots=3, layout=LAYOUT)
    slots = [ring.take(), ring.take()]
    for slot in slots:
        assert slot is not None
        ring.give_back(slot)
        assert ring.take() == slot  # still in the CPU caches
        lent = ring.lend(slot, 4)
        del lent
        assert ring.take() == slot
    ring.close()


def test_lent_arrays_outlive_a_closed_ring() -> None:
    ring = SlotRing(num_slots=2, layout=LAYOUT)
    slot = ring.take()
    assert slot is not None
    ring.views(slot)["label"][:] = 7
    label = ring.lend(slot, 4)["label"]
    ring.close()
    ring.close()
    gc.collect()
    assert label.tolist() == [7, 7, 7, 7]


def test_memory_is_allocated_on_first_write_and_can_be_returned() -> None:
    layout = SlotLayout(num_samples=64, fields=(Field(name="x", shape=(MIB,), dtype="uint8"), RaggedField(name="r")))
    assert layout.slot_bytes > 4 * GIB  # ragged fields reserve address space only
    ring = SlotRing(num_slots=2, layout=layout)
    assert ring.used_bytes == 0
    slot = ring.take()
    assert slot is not None
    ring.views(slot)["x"][:4] = 1
    assert ring.used_bytes == 4 * MIB
    ring.drop_free_memory()
    assert ring.used_bytes == 4 * MIB  # the slot is not free yet
    ring.give_back(slot)
    ring.drop_free_memory()
    assert ring.used_bytes == 0
    assert not ring.views(slot)["x"][:4].any()
    ring.close()


def test_memory_that_a_device_may_read_is_never_returned() -> None:
    ragged = RaggedField(name="r", max_sample_bytes=MIB)
    layout = SlotLayout(num_samples=2, fields=(ragged, Field(name="x", shape=(MIB,), dtype="uint8")))
    assert layout.fixed_bytes == 2 * MIB  # without the pages that ragged fields reserve
    ring = SlotRing(num_slots=3, layout=layout)
    slots = [slot for _ in range(2) if (slot := ring.take()) is not None]
    for slot in slots:
        views = ring.views(slot)
        views["x"][:] = 7
        views["r"].begin(0, 2)
        views["r"].put(0, bytes(MIB))
    read = ring.views(slots[0])
    address = read["x"][1].ctypes.data
    memory = ring.lock(address)
    assert memory is not None
    assert memory.nbytes == 2 * MIB
    assert ring.lock(read["r"][0].ctypes.data) is None
    assert ring.lock(address - MIB - 1 - slots[0] * layout.slot_bytes) is None  # before the ring
    assert ring.lock(address + 3 * layout.slot_bytes) is None
    for slot in slots:
        ring.give_back(slot)
    ring.drop_free_memory()
    assert ring.used_bytes == 2 * MIB
    ring.close()
    assert (memory == 7).all()


def test_rings_leave_no_descriptor() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        with pytest.raises(ArgumentError):
            SlotRing(num_slots=-1, layout=LAYOUT)
        SlotRing(num_slots=3, layout=LAYOUT, huge_pages=True).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.data())
def test_ragged_values_are_read_as_written_for_any_division_into_chunks(
    values: list[bytes], data: st.DataObject
) -> None:
    field = RaggedField(name="r", max_sample_bytes=300)
    ring = SlotRing(num_slots=1, layout=SlotLayout(num_samples=len(values), fields=(field,)))
    cuts = sorted({0, len(values), *data.draw(st.lists(st.integers(0, len(values))))})
    chunks = data.draw(st.permutations(list(pairwise(cuts))))
    for first, last in chunks:
        ragged = ring.views(0)["r"]  # a separate writer per chunk, in any order
        ragged.begin(first, last)
        for sample in range(first, last):
            ragged.put(sample, values[sample])
    assert [value.tobytes() for value in ring.views(0)["r"]] == values
    ring.close()


def test_ragged_images_keep_their_shape_and_can_be_written_in_place() -> None:
    layout = SlotLayout(
        num_samples=3, fields=(RaggedField(name="r", dtype="float32", num_dims=2, max_sample_bytes=96),)
    )
    ring = SlotRing(num_slots=1, layout=layout)
    ragged = ring.views(0)["r"]
    ragged.begin(0, 3)
    ragged.room(0, (2, 3))[:] = 1.5
    for _ in range(50):  # a retry of a sample reuses the same memory
        ragged.put(1, np.full((4, 6), 2.5, np.float32))
    assert ragged[0].tolist() == [[1.5] * 3] * 2
    assert ragged[1].shape == (4, 6)
    assert ragged[2].shape == (0, 0)
    assert ragged.copy()[1].tolist() == [[2.5] * 6] * 4


def test_beginning_a_chunk_again_empties_its_samples() -> None:
    ragged = SlotRing(num_slots=1, layout=LAYOUT).views(0)["text"]
    ragged.begin(0, 4)
    for sample in range(4):
        ragged.put(sample, b"before")
    ragged.begin(1, 3)
    assert [value.tobytes() for value in ragged] == [b"before", b"", b"", b"before"]


def test_ragged_values_are_aligned_for_any_vector_load() -> None:
    ragged = SlotRing(num_slots=1, layout=LAYOUT).views(0)["text"]
    ragged.begin(0, 4)
    for sample in range(4):
        ragged.put(sample, b"x" * (sample + 1))
        assert ragged[sample].ctypes.data % ALIGN_BYTES == 0


def test_samples_written_repeatedly_never_overwrite_the_next_chunk() -> None:
    ring = SlotRing(num_slots=1, layout=LAYOUT)
    first, second = ring.views(0)["text"], ring.views(0)["text"]
    first.begin(0, 2)
    second.begin(2, 4)
    second.put(2, b"y" * 1000)

    def write_repeatedly() -> None:
        for turn in range(10):
            first.put(turn % 2, b"x" * 1000)

    with pytest.raises(ArgumentError, match="does not fit"):
        write_repeatedly()
    assert first[2].tobytes() == b"y" * 1000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"x" * 1001, "Make samples or batches smaller"),
        (np.zeros((2, 2), np.uint8), "1 dimensions"),
        (np.zeros(2), "holds uint8"),
    ],
)
def test_a_ragged_value_that_does_not_fit_is_refused(value: object, message: str) -> None:
    ragged = SlotRing(num_slots=1, layout=LAYOUT).views(0)["text"]
    ragged.begin(0, 4)
    ragged.put(0, b"x" * 1000)
    with pytest.raises(ArgumentError, match=message):
        ragged.put(1, value)
    assert ragged[0].tobytes() == b"x" * 1000
