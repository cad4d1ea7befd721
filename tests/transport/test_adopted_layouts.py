"""A ring whose slots get another layout while it is in use, and the workers that learn of it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload.transport.batches import BatchTask, PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.transport.ring import SlotRing
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.transport.worker import ChunkReport
from mpload.units import MIB

FIRST = SlotLayout(num_samples=8, fields=(RaggedField(name="any", max_sample_bytes=MIB),))
SECOND = SlotLayout(
    num_samples=8,
    fields=(Field(name="number", shape=(3,), dtype="int64"), RaggedField(name="any", max_sample_bytes=MIB // 2)),
    meaning=b"numbers",
)
THIRD = SlotLayout(num_samples=8, fields=(Field(name="number", dtype="float32"),), meaning=b"floats")


@pytest.mark.slow
def test_slots_have_the_layout_that_was_the_newest_when_they_were_taken() -> None:
    ring = SlotRing(num_slots=2, layout=FIRST)
    workers = SlotRing.attach(os.dup(ring.fd), num_slots=2, layout=FIRST)
    old = ring.take()
    assert ring.adopt(SECOND)
    new = ring.take()
    assert old is not None
    assert new is not None
    assert (ring.number_of(old), ring.number_of(new)) == (0, 1)
    workers.views(new, ring.number_of(new))["number"][...] = 7
    assert workers.layout_at(1) == SECOND
    assert workers.layout_at(1).meaning == b"numbers"
    assert list(ring.lend(old, 8)) == ["any"]
    assert np.array_equal(ring.copy_out(new, 8)["number"], np.full((8, 3), 7))
    ring.close()
    workers.close()


@pytest.mark.parametrize(
    "layout",
    [
        SlotLayout(num_samples=8, fields=(Field(name="large", shape=(2 * MIB,), dtype="uint8"),)),
        SlotLayout(num_samples=7, fields=SECOND.fields),
        SlotLayout(num_samples=8, fields=SECOND.fields, meaning=b"x" * (5 * MIB)),
    ],
)
def test_a_layout_that_does_not_fit_is_not_adopted(layout: SlotLayout) -> None:
    ring = SlotRing(num_slots=2, layout=FIRST)
    for _ in range(2):
        assert not ring.adopt(layout)
        assert ring.newest_layout is FIRST
    assert ring.adopt(SECOND)
    ring.close()


def test_memory_that_a_device_reads_keeps_its_place() -> None:
    ring = SlotRing(num_slots=2, layout=FIRST)
    assert ring.adopt(SECOND)
    slot = ring.take()
    assert slot is not None
    memory = ring.lock(ring.lend(slot, 8)["number"].ctypes.data)
    assert memory is not None
    assert memory.nbytes == SECOND.fixed_bytes
    same_place = SlotLayout(num_samples=8, fields=(*SECOND.fields, RaggedField(name="more", max_sample_bytes=9)))
    assert ring.adopt(same_place)
    assert not ring.adopt(FIRST)
    assert ring.newest_layout is same_place
    ring.close()


def test_no_slot_is_locked_whose_layout_would_lock_more_or_less_than_the_newest_one() -> None:
    ring = SlotRing(num_slots=2, layout=SECOND)
    old = ring.take()
    large = SlotLayout(num_samples=8, fields=(Field(name="number", shape=(600,), dtype="int64"),))
    assert large.fixed_bytes > SECOND.fixed_bytes
    assert ring.adopt(large)
    new = ring.take()
    assert old is not None
    assert new is not None
    assert ring.lock(ring.lend(old, 8)["number"].ctypes.data) is None
    held = ring.lend(new, 8)
    locked = ring.lock(held["number"].ctypes.data)
    assert locked is not None
    assert locked.nbytes == large.fixed_bytes
    again = ring.take()  # the old slot, now with the newest layout
    assert again == old
    locked = ring.lock(ring.lend(again, 8)["number"].ctypes.data)
    assert locked is not None
    assert locked.nbytes == large.fixed_bytes
    ring.close()


def test_so_many_layouts_are_adopted_and_no_more() -> None:
    ring = SlotRing(num_slots=2, layout=FIRST)
    workers = SlotRing.attach(os.dup(ring.fd), num_slots=2, layout=FIRST)
    layouts = [SlotLayout(num_samples=8, fields=SECOND.fields, meaning=b"%d" % number) for number in range(20)]
    adopted = [layout for layout in layouts if ring.adopt(layout)]
    assert 10 < len(adopted) < 20
    assert [workers.layout_at(number).meaning for number in range(len(adopted), 0, -1)] == [
        layout.meaning for layout in adopted[::-1]
    ]
    ring.close()
    workers.close()


class Relaid:
    """Writes what the layout of the slot says; kills its worker once, in the first batch of the third layout."""

    def __init__(self, once: Path) -> None:
        self.once = once

    def open(self, worker: int) -> None:
        pass

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        meaning = b"" if report.layout is None else report.layout.meaning
        for sample in range(first, last):
            report.at(sample)
            if meaning:
                arrays["number"][sample] = 100 * task[0] + sample
            if meaning == b"floats" and not self.once.exists():
                self.once.touch()
                os.kill(os.getpid(), 9)
            if "any" in arrays:
                arrays["any"].put(sample, b"%d" % task[0])


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("starts_fresh", [False, True])
def test_workers_write_in_the_layout_of_each_batch(starts_fresh: bool, tmp_path: Path) -> None:
    def tasks() -> Iterator[BatchTask]:
        for number in range(30):
            layout = (None, SECOND, None, THIRD)[min(number // 6, 3)]
            yield BatchTask(numbers=(number,), num_samples=8 - number % 3, layout=layout)

    options = PoolOptions(starts_fresh=starts_fresh)
    with WorkerPool(Relaid(tmp_path / "once"), FIRST, num_slots=5, num_workers=2, options=options) as pool:
        kept = list(pool.stream(tasks()))
        assert pool.num_deaths >= 1
        assert pool.stats.num_copied_batches
    for number, batch in enumerate(kept):
        expected = 100 * number + np.arange(8 - number % 3)
        assert batch.layout == (FIRST, SECOND, SECOND, THIRD)[min(number // 6, 3)]
        if number < 18:
            assert [value.tobytes() for value in batch.arrays["any"]] == [b"%d" % number] * len(expected)
        if number >= 6:
            assert np.array_equal(batch.arrays["number"].reshape(len(expected), -1)[:, 0], expected)
