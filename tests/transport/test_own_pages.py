"""A child that the user forks keeps the batches that its parent held, and the parent loses no slot and no page."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
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


Forked = Callable[[Any], Connection]


@pytest.fixture
def forked() -> Iterator[Forked]:
    """What forks a child that has an array, and answers with its sum whenever it is asked."""
    children: list[tuple[Any, Connection]] = []

    def fork(array: Any) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_answer, args=(array, theirs))
        child.start()
        children.append((child, ours))
        return ours

    yield fork
    for child, end in children:
        end.send(False)
        child.join()


def _lent(layout: SlotLayout = LAYOUT) -> tuple[SlotRing, Any, Any]:
    """Return a ring of one slot, what a worker sees of the slot, and the batch in it, which is lent and holds twos."""
    owner = SlotRing(num_slots=1, layout=layout)
    worker = SlotRing.attach(os.dup(owner.fd), num_slots=1, layout=layout)
    slot = owner.take()
    assert slot == 0
    seen = worker.views(slot)["x"]
    seen[:] = 2
    return owner, seen, owner.lend(slot, layout.num_samples)["x"]


def _sum_in(child: Connection) -> int:
    child.send(True)
    found: int = child.recv()
    return found


def test_a_child_keeps_what_the_parent_lends_again(forked: Forked) -> None:
    owner = SlotRing(num_slots=1, layout=LAYOUT)
    worker = SlotRing.attach(os.dup(owner.fd), num_slots=1, layout=LAYOUT)
    children = []
    for number in range(1, 4):
        slot = owner.take()
        assert slot == 0
        worker.views(slot)["x"][:] = number
        batch = owner.lend(slot, 4)["x"]
        before = owner.used_bytes
        children.append(forked(batch))
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


def test_a_fork_without_lent_slots_and_one_of_a_closed_ring_change_nothing(forked: Forked) -> None:
    owner = SlotRing(num_slots=2, layout=LAYOUT)
    child = forked(np.ones(3))
    slot = owner.take()
    assert slot is not None
    batch = owner.lend(slot, 4)["x"]
    with ring.without_lent():
        other = forked(np.ones(3))
    assert not owner._unshared
    batch[:] = 1
    owner.close()  # nothing writes to it any more
    assert list(map(_sum_in, (child, other, forked(batch)))) == [3, 3, 12000]


@pytest.mark.parametrize("function", ["_own", "_map"])
def test_if_memory_runs_out_the_parent_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, forked: Forked, function: str
) -> None:
    owner, seen, batch = _lent()
    with monkeypatch.context() as patch:
        patch.setattr(own_pages, function, lambda *_: os.close(-1))
        forked(batch)
    batch[0] = 3
    assert int(batch.sum()) == 2 * 12000 + 3000
    del batch
    assert owner.take() == 0
    seen[:] = 7
    assert (owner.views(0)["x"] == 7).all()


def test_kernels_without_populate_copy_page_by_page(monkeypatch: pytest.MonkeyPatch, forked: Forked) -> None:
    monkeypatch.setattr(own_pages, "_MADV_POPULATE_WRITE", 12345)
    _, seen, batch = _lent()
    child = forked(batch)
    seen[:] = 7
    assert (int(batch.sum()), _sum_in(child)) == (24000, 24000)


def test_what_another_thread_writes_during_a_fork_is_kept() -> None:
    layout = SlotLayout(num_samples=1, fields=(Field(name="x", shape=(4 * MIB,), dtype="int64"),))
    for _ in range(10):
        owner, _, batch = _lent(layout)
        adding = threading.Thread(target=np.add, args=(batch, 1, batch))
        adding.start()
        owner.keep_lent()
        adding.join()
        assert (batch == 3).all()


def test_a_child_closes_a_ring_that_another_thread_was_changing_at_the_fork() -> None:
    owner, _, _ = _lent()
    child = multiprocessing.get_context("fork").Process(target=owner.close)

    def fork() -> None:
        with ring.without_lent():
            child.start()

    with owner._changing:
        other = threading.Thread(target=fork)
        other.start()
        other.join()
    child.join(20)
    child.kill()
    child.join()
    assert child.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"collate_fn": torch.utils.data.default_collate}])
def test_a_child_keeps_a_batch_of_a_loader(forked: Forked, options: dict[str, Any]) -> None:
    children, expected = [], []
    with MPLoader(Named(400), batch_size=4, num_workers=1, memory_budget=256 * MIB, **options) as loader:
        for number, batch in enumerate(loader):
            values = batch["x"] if isinstance(batch, dict) else batch[0]
            if number % 20 == 7:
                children.append(forked(values))
                expected.append(int(values.sum()))
            del batch, values
    assert list(map(_sum_in, children)) == expected


def test_a_slot_that_is_returned_while_another_thread_forks_is_shared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, seen, batch = _lent()
    lent, taken = [batch], list[int | None]()
    del batch
    main = threading.Thread(target=lambda: taken.append(owner.take()))
    own = own_pages._own

    def slowly(*arguments: int) -> None:
        own(*arguments)
        lent.clear()
        main.start()
        main.join(0.2)

    monkeypatch.setattr(own_pages, "_own", slowly)
    owner.keep_lent()
    main.join()
    assert taken == [0]
    seen[:] = 7
    assert (owner.views(0)["x"] == 7).all()


def test_a_slot_that_was_lent_at_a_fork_is_not_locked_until_it_is_shared_again() -> None:
    owner, _, batch = _lent()
    owner.keep_lent()
    assert owner.lock(batch.ctypes.data) is None
    del batch
    assert owner.take() == 0
    assert owner.lock(owner.lend(0, 4)["x"].ctypes.data) is not None
