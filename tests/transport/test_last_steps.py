"""The last step of a batch: one worker finishes what others have made, whatever dies meanwhile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload.transport.batches import BatchTask
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.transport.worker import ChunkReport
from tests.support.transport_works import Gate, are_asleep, die, tasks, wait_until

pytestmark = pytest.mark.processes

LAYOUT = SlotLayout(
    num_samples=20,
    fields=(
        Field(name="number", dtype="int64"),
        RaggedField(name="joined", dtype="int64", num_dims=2, max_sample_bytes=1 << 20, is_whole=True),
    ),
)


class Joining:
    """Numbers the samples; the last step writes the numbers of all samples, and twice of them, to one array."""

    def __init__(self, deadly: tuple[int, ...] = (), *, once: Path | None = None, gate: Gate | None = None) -> None:
        self.deadly = deadly
        self.once = once
        self.gate = gate

    def open(self, worker: int) -> None:
        pass

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        if self.gate and task[0] == 2 and first == 0:  # one worker waits, the other finishes batch 1
            self.gate.wait()
        arrays["number"][first:last] = task[0] * 1000 + np.arange(first, last)

    def finish(self, task: tuple[int, ...], arrays: Mapping[str, Any], num_samples: int, report: ChunkReport) -> None:
        if task[0] in self.deadly and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            die("segfault")
        if task[0] == 6:
            raise LookupError("six")
        joined = arrays["joined"]
        joined.begin(0, 1)
        joined.room(0, (2, num_samples))[:] = arrays["number"][:num_samples] * [[1], [2]]


def joined(batch: int, num_samples: int) -> NDArray[Any]:
    return np.multiply(batch * 1000 + np.arange(num_samples), [[1], [2]])


@pytest.mark.parametrize(("num_workers", "num_slots"), [(1, 1), (2, 3), (7, 4)])
def test_a_batch_is_finished_after_all_its_samples_were_made(num_workers: int, num_slots: int) -> None:
    work = [BatchTask(numbers=(number,), num_samples=1 + number % 20) for number in range(40) if number != 6]
    with WorkerPool(Joining(), LAYOUT, num_slots=num_slots, num_workers=num_workers) as pool:
        kept = list(pool.stream(work))  # most are copied out of their slots
        assert pool.stats.num_samples == sum(task.num_samples for task in work)
    for task, batch in zip(work, kept, strict=True):
        np.testing.assert_array_equal(batch.arrays["joined"][0], joined(task.numbers[0], task.num_samples))


def test_a_worker_that_dies_in_the_last_step_is_replaced(tmp_path: Path) -> None:
    with WorkerPool(Joining((3,), once=tmp_path / "once"), LAYOUT, num_slots=3, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(6, 20))):
            np.testing.assert_array_equal(batch.arrays["joined"][0], joined(number, 20))
        assert pool.num_deaths == 1


def test_a_last_step_that_fails_or_kills_its_workers_is_a_failure_of_its_batch_alone() -> None:
    with WorkerPool(Joining((3,)), LAYOUT, num_slots=3, num_workers=2, on_killed=lambda _: (5,)) as pool:
        failures = {}
        for number, batch in enumerate(pool.stream(tasks(9, 20))):
            np.testing.assert_array_equal(batch.arrays["number"], joined(number, 20)[0])
            failures[number] = [(failure.sample, failure.cause) for failure in batch.failures]
            if not failures[number]:
                np.testing.assert_array_equal(batch.arrays["joined"][0], joined(number, 20))
        assert pool.num_deaths == 2
    found = {number: failure for number, failure in failures.items() if failure}
    assert found == {3: [(20, "killed its worker (SIGSEGV)")], 6: [(20, "LookupError: six")]}


def test_an_abandoned_stream_frees_all_slots() -> None:
    with WorkerPool(Joining(), LAYOUT, num_slots=4, num_workers=2) as pool:
        for _ in range(10):
            for batch in pool.stream(tasks(5, 20)):
                del batch
                break
        while pool.num_free_slots < 4:
            pool.wait()


def test_later_batches_are_finished_while_the_parent_does_something_else(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with WorkerPool(Joining(gate=gate), LAYOUT, num_slots=3, num_workers=2) as pool:

        def finished() -> set[int]:
            arrays = [pool.ring.views(slot)["joined"][0] for slot in range(3)]  # the parent only reads memory
            return {int(array[0, 0]) // 1000 for array in arrays if len(array)}

        def made() -> set[int]:
            return {int(pool.ring.views(slot)["number"][19]) // 1000 for slot in range(3)}

        for task in tasks(3, 20):
            pool.submit(task)
        kept = [pool.next()]
        while 1 not in finished():
            pool.wait()
        pool.wait()  # for the answer that says so
        gate.open()
        assert wait_until(lambda: 2 in made() and are_asleep(pool))
        kept.append(pool.next())
        assert wait_until(lambda: 2 in finished())
