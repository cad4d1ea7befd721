"""A closed pool leaves no process, descriptor or memory behind, and forked children do not keep its workers alive."""

import gc
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import WorkerError
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, SlotLayout
from tests.support.transport_works import LAYOUT, Numbers, assert_right, children, leaves_nothing, tasks

pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_a_garbage_collected_pool_leaves_no_process_or_descriptor() -> None:
    with leaves_nothing():
        pool = WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2)
        next(pool.stream(tasks(3)))
        del pool
        gc.collect()


@pytest.mark.slow
def test_closing_is_idempotent_and_final() -> None:
    with leaves_nothing():
        pool = WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2)
        stream = pool.stream(tasks(3))
        next(stream)
        pool.close()
        pool.close()
        with pytest.raises(WorkerError, match="closed"):
            next(stream)
        with pytest.raises(WorkerError, match="closed"):
            pool.num_workers = 3
        pool.cancel()
        del stream, pool
        gc.collect()


def _use_in_child(pool: WorkerPool, result: Any) -> None:
    try:
        pool.next()
    except WorkerError as error:
        result.put(str(error))
    pool.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_can_neither_use_the_pool_nor_disturb_it() -> None:
    context = multiprocessing.get_context("fork")
    with WorkerPool(Numbers(sleep_seconds=0.004), LAYOUT, num_slots=6, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(16))):
            assert_right(batch.arrays, number)
            if number in {1, 7}:
                result = context.SimpleQueue()
                child = context.Process(target=_use_in_child, args=(pool, result))
                child.start()
                assert f"belong to process {os.getpid()}" in result.get()
                child.join()
                assert child.exitcode == 0
                result.close()
        assert pool.num_deaths == 0


@pytest.mark.slow
def test_a_long_lived_forked_child_does_not_keep_workers_alive() -> None:
    with leaves_nothing():
        pool = WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=2)
        next(pool.stream(tasks(3)))
        closed_by_parent, parent_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(parent_end)
            os.read(closed_by_parent, 1)
            os._exit(0)
        os.close(closed_by_parent)
        pool.close()
        alive = children()
        os.close(parent_end)
        os.waitpid(child, 0)
        assert alive == {child}
        del pool
        gc.collect()


def _num_maps() -> int:
    """Number of mappings of the transport's shared memory in this process, the only one left after a close."""
    return Path("/proc/self/maps").read_text().count("memfd:mpload")


@pytest.mark.parametrize("num_cycles", [20, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_making_and_closing_pools_leaks_no_process_descriptor_or_memory(num_cycles: int) -> None:
    layout = SlotLayout(num_samples=32, fields=(*LAYOUT.fields, Field(name="large", shape=(1 << 15,), dtype="uint8")))
    gc.collect()  # garbage of earlier tests
    before = _num_maps()
    with leaves_nothing():
        for _ in range(num_cycles):
            with WorkerPool(Numbers(), layout, num_slots=3, num_workers=2) as pool:
                batch = next(pool.stream(tasks(3)))
                assert_right(batch.arrays, 0)
            del batch, pool
        gc.collect()
    assert _num_maps() == before
