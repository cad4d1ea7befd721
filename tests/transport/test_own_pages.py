"""A child that the user forks keeps the batches that its parent held, and the parent loses no slot and no page."""

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch

from mpload import MPLoader
from mpload.transport import own_pages, ring
from mpload.transport.ring import SlotRing
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.units import GIB, MIB
from tests.support.map_styles import Named

pytestmark = pytest.mark.processes
LAYOUT = SlotLayout(
    num_samples=4, fields=(Field(name="x", shape=(3000,), dtype="int64"), RaggedField(name="y", max_sample_bytes=GIB))
)


def _answer(array: Any, end: Connection) -> None:
    while end.recv():
        end.send(int(array.sum()))


def _forked(array: Any) -> Connection:
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=_answer, args=(array, theirs), daemon=True).start()
    return ours


def _sum_in(child: Connection) -> int:
    child.send(True)
    found: int = child.recv()
    return found


def test_a_child_keeps_what_the_parent_lends_again() -> None:
    owner = SlotRing(num_slots=1, layout=LAYOUT)
    worker = SlotRing.attach(os.dup(owner.fd), num_slots=1, layout=LAYOUT)
    children = []
    for number in range(1, 4):
        slot = owner.take()
        assert slot == 0
        worker.views(slot)["x"][:] = number
        batch = owner.lend(slot, 4)["x"]
        before = owner.used_bytes
        children.append(_forked(batch))
        assert owner.used_bytes == before  # holes of ragged fields stay holes
        assert owner.lock(batch.ctypes.data) is None
        batch[0, 0] += 5  # the user may write to it; the child does not see that
        assert int(batch.sum()) == 12000 * number + 5
        del batch
    assert list(map(_sum_in, children)) == [12000, 24000, 36000]
    slot = owner.take()
    assert slot == 0
    worker.views(slot)["x"][:] = 9
    assert (owner.views(slot)["x"] == 9).all()
    for child in children:
        child.send(False)


def test_a_fork_without_lent_slots_and_one_of_a_closed_ring_change_nothing() -> None:
    owner = SlotRing(num_slots=2, layout=LAYOUT)
    child = _forked(np.ones(3))
    slot = owner.take()
    assert slot is not None
    batch = owner.lend(slot, 4)["x"]
    with ring.without_lent():
        other = _forked(np.ones(3))
    assert not owner._unshared
    batch[:] = 1
    owner.close()  # nothing writes to it any more
    assert list(map(_sum_in, (child, other, _forked(batch)))) == [3, 3, 12000]


def test_if_memory_runs_out_the_batch_stays_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = SlotRing(num_slots=1, layout=LAYOUT)
    slot = owner.take()
    assert slot is not None
    batch = owner.lend(slot, 4)["x"]
    monkeypatch.setattr(own_pages, "_copy", lambda *_: os.close(-1))
    _forked(batch)
    assert not owner._unshared
    batch[:] = 3
    del batch
    assert owner.take() == slot


@pytest.mark.parametrize("options", [{}, {"collate_fn": torch.utils.data.default_collate}])
def test_a_child_keeps_a_batch_of_a_loader(options: dict[str, Any]) -> None:
    children, expected = [], []
    with MPLoader(Named(400), batch_size=4, num_workers=1, memory_budget=256 * MIB, **options) as loader:
        for number, batch in enumerate(loader):
            values = batch["x"] if isinstance(batch, dict) else batch[0]
            if number % 20 == 7:
                children.append(_forked(values))
                expected.append(int(values.sum()))
            del batch, values
    assert list(map(_sum_in, children)) == expected


def test_a_slot_that_is_returned_while_another_thread_forks_is_shared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = SlotRing(num_slots=1, layout=LAYOUT)
    worker = SlotRing.attach(os.dup(owner.fd), num_slots=1, layout=LAYOUT)
    taken: list[int | None] = []
    main = threading.Thread(target=lambda: taken.append(owner.take()))
    slot = owner.take()
    assert slot is not None
    lent = [owner.lend(slot, 4)["x"]]
    copy = own_pages._copy

    def slowly(*arguments: int) -> None:
        copy(*arguments)
        lent.clear()
        main.start()
        main.join(0.2)

    monkeypatch.setattr(own_pages, "_copy", slowly)
    owner.keep_lent()
    main.join()
    assert taken == [slot]
    worker.views(slot)["x"][:] = 7
    assert (owner.views(slot)["x"] == 7).all()
