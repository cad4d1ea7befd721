"""The pool: correct batches in order, whichever worker fills them."""

import gc
import resource
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload.errors import ArgumentError
from mpload.transport.batches import BatchTask, FilledBatch, PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, SlotLayout
from tests.support.transport_works import (
    LAYOUT,
    Gate,
    Numbers,
    are_asleep,
    assert_right,
    children,
    leaves_nothing,
    tasks,
    wait_until,
)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("num_workers", "num_slots"), [(1, 1), (1, 3), (2, 2), (3, 5), (7, 4)])
def test_batches_are_right_and_in_order_for_any_number_of_workers_and_slots(num_workers: int, num_slots: int) -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=num_slots, num_workers=num_workers) as pool:
        for num_samples in (1, 8, 32):
            seen = 0
            for batch in pool.stream(tasks(30, num_samples)):
                assert batch.task.numbers == (seen,)
                assert_right(batch.arrays, seen, num_samples=num_samples)
                seen += 1
            assert seen == 30
        assert pool.stats.num_samples == 30 * (1 + 8 + 32)
        tallies = pool.stats.by_worker.values()
        assert sum(tally.num_samples for tally in tallies) == 30 * (1 + 8 + 32)
        assert min(tally.busy_ns for tally in tallies) > 0


@pytest.mark.processes
def test_workers_prefetch_while_the_parent_does_something_else() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=6, num_workers=2) as pool:
        for task in tasks(6):
            pool.submit(task)
        pool.next()
        # The parent only reads memory: every slot is filled without its help.
        newest = [pool.ring.views(slot)["label"] for slot in range(6)]
        assert wait_until(lambda: {int(label[31]) // 1000 for label in newest} == set(range(6)))


@pytest.mark.processes
def test_workers_that_sleep_are_woken_when_a_batch_is_submitted() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2) as pool:
        assert len(list(pool.stream(tasks(3)))) == 3
        assert wait_until(lambda: are_asleep(pool))
        pool.submit(tasks(8)[7])
        labels = [pool.ring.views(slot)["label"] for slot in range(2)]  # the parent only reads memory
        assert wait_until(lambda: any(int(label[31]) // 1000 == 7 for label in labels))


@pytest.mark.processes
def test_a_stream_keeps_no_more_batches_in_flight_than_its_depth() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=5, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(20))):
            assert_right(batch.arrays, number)
            pool.depth = 2
            assert pool.num_pending <= (4 if number == 0 else 3 if number == 1 else 2 if number == 2 else 1)


@pytest.mark.processes
def test_workers_and_batches_in_flight_can_be_added_while_a_batch_is_awaited(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def sample(batch: int, _: int) -> None:
        if batch == 0:
            gate.wait()

    with WorkerPool(Numbers(sample), LAYOUT, num_slots=6, num_workers=2) as pool:
        pool.depth = 1
        labels = [pool.ring.views(slot)["label"] for slot in range(6)]

        def on_wait() -> None:
            pool.num_workers, pool.depth = 4, 5
            if {int(label[31]) // 1000 for label in labels} >= {1, 2, 3, 4}:  # all but the first, which waits
                gate.open()

        for number, batch in enumerate(pool.stream(tasks(12), on_wait=on_wait)):
            assert_right(batch.arrays, number)
        assert number == 11
        assert wait_until(lambda: len(pool.pids) == 5)


@pytest.mark.processes
def test_progress_is_known_in_the_middle_of_a_chunk(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def sample(_: int, place: int) -> None:
        if place == 5:
            gate.wait()

    with WorkerPool(Numbers(sample), LAYOUT, num_slots=3, num_workers=2) as pool:
        assert wait_until(lambda: pool.progress().num_opening == 0)
        pool.submit(tasks(1)[0])  # two chunks of 16 samples
        assert wait_until(lambda: (pool.progress().num_samples, pool.progress().num_idle) == (5 + 16, 1))
        assert pool.num_pending == 1
        gate.open()
        assert_right(pool.next().arrays, 0)
        assert pool.progress().num_samples == 32
        assert pool.progress().occupied_seconds > 0


@pytest.mark.processes
def test_a_slow_sample_delays_only_its_own_batch(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def sample(batch: int, place: int) -> None:
        if (batch, place) == (0, 5):
            gate.wait()

    with WorkerPool(Numbers(sample), LAYOUT, num_slots=5, num_workers=2) as pool:
        for task in tasks(5):
            pool.submit(task)
        newest = [pool.ring.views(slot)["label"] for slot in range(5)]
        assert wait_until(lambda: {int(label[31]) // 1000 for label in newest} == set(range(5)))
        gate.open()
        for number in range(5):
            assert_right(pool.next().arrays, number)


@pytest.mark.processes
def test_a_consumer_that_keeps_all_batches_gets_copies_and_never_wrong_data() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=2) as pool:
        kept: list[FilledBatch] = list(pool.stream(tasks(40)))
        assert pool.stats.num_copied_batches == 38
        assert pool.ring.num_lent == 2
        for number, batch in enumerate(kept):
            assert_right(batch.arrays, number)
        kept.clear()
        del batch
        assert pool.ring.num_lent == 0
        for number, batch in enumerate(pool.stream(tasks(20))):
            assert_right(batch.arrays, number)
        assert pool.stats.num_copied_batches == 38


@pytest.mark.slow
@pytest.mark.processes
def test_kept_batches_stay_right_after_close() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=2) as pool:
        kept = list(pool.stream(tasks(10)))
    del pool
    gc.collect()
    for number, batch in enumerate(kept):
        assert_right(batch.arrays, number)


@pytest.mark.processes
def test_writing_into_a_batch_changes_no_other_batch() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(20))):
            assert_right(batch.arrays, number)
            batch.arrays["pixels"][:] = -1


@pytest.mark.processes
def test_an_abandoned_stream_leaves_a_usable_pool() -> None:
    with WorkerPool(Numbers(sleep_seconds=0.001), LAYOUT, num_slots=4, num_workers=2) as pool:
        for _ in range(5):
            for number, batch in enumerate(pool.stream(tasks(10))):
                assert_right(batch.arrays, number)
                if number == 2:
                    break
        for number, batch in enumerate(pool.stream(tasks(10, 7))):
            assert_right(batch.arrays, number, num_samples=7)
        del batch
        assert wait_until(lambda: pool.num_free_slots == 4)


@pytest.mark.processes
def test_a_stream_that_something_still_refers_to_ends_when_another_begins() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=2) as pool:
        for _ in range(3):
            earlier = pool.stream(tasks(20))
            assert_right(next(earlier).arrays, 0)
            found = [batch.arrays["label"].tolist() for batch in pool.stream(tasks(5))]
            assert [labels[0] // 1000 for labels in found] == list(range(5))
            assert list(earlier) == []


@pytest.mark.processes
def test_a_stream_of_depth_zero_makes_one_batch_at_a_time() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=1) as pool:
        pool.depth = 0
        assert [batch.task.numbers for batch in pool.stream(tasks(3))] == [(0,), (1,), (2,)]


@pytest.mark.processes
@pytest.mark.parametrize(("num_workers", "num_samples"), [(1, 8), (2, 32), (3, 5)])
def test_announced_batches_are_right_and_in_order_also_after_others_were_cancelled(
    num_workers: int, num_samples: int
) -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=num_workers) as pool:
        for num_announced in (5 * num_samples, 2 * num_samples, 0):
            pool.announce_up_to(num_announced)
            for num_taken in (20, 7, 1, 20):
                stream = pool.stream(tasks(20, num_samples))
                for seen in range(num_taken):
                    batch = next(stream)
                    assert batch.task.numbers == (seen,)
                    assert_right(batch.arrays, seen, num_samples=num_samples)
                    assert pool._issuing._announced or num_announced == 0 or seen + 3 >= 20 - 1
                stream.close()


@pytest.mark.processes
def test_batches_must_be_submitted_in_the_order_in_which_they_are_announced() -> None:
    first, second = tasks(2)
    with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=1) as pool:
        assert not pool.announce(first)
        pool.announce_up_to(first.num_samples)
        assert pool.announce(first)
        assert not pool.announce(second)
        with pytest.raises(ArgumentError, match=r"\(0,\) was announced, so submit it first"):
            pool.submit(second)
        pool.submit(first)
        pool.submit(second)
        assert [pool.next().task.numbers for _ in range(2)] == [(0,), (1,)]


@pytest.mark.processes
def test_cancelling_frees_the_slots_of_finished_batches() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=2) as pool:
        for task in tasks(4):
            pool.submit(task)
        while pool._issuing.issued:
            pool._poll(0.1)
        pool.next()
        pool.cancel()
        assert pool.num_free_slots == 4


@pytest.mark.parametrize(
    ("numbers", "num_samples", "message"),
    [
        ((), 0, "num_samples must be at least 1, got 0"),
        ((0,) * 11, 1, "at most 10 numbers"),
        ((1 << 63,), 1, "64 bits"),
    ],
)
def test_invalid_tasks_are_refused(numbers: tuple[int, ...], num_samples: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BatchTask(numbers=numbers, num_samples=num_samples)


@pytest.mark.processes
def test_invalid_calls_are_refused_and_leave_the_pool_usable() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=1, num_workers=1) as pool:
        with pytest.raises(ArgumentError, match=r"num_samples must be in \[1, 32\], got 33"):
            pool.submit(BatchTask(numbers=(), num_samples=33))
        with pytest.raises(ArgumentError, match="Submit one first"):
            pool.next()
        pool.submit(tasks(1)[0])
        with pytest.raises(ArgumentError, match="no slot is free"):
            pool.submit(tasks(1)[0])
        assert_right(pool.next().arrays, 0)


@pytest.mark.slow
@pytest.mark.processes
def test_options_and_numbers_out_of_range_are_refused_and_leave_no_process() -> None:
    with pytest.raises(ArgumentError, match="sample_timeout_seconds must be positive, got 0"):
        PoolOptions(sample_timeout_seconds=0)
    with pytest.raises(ArgumentError, match="max_restarts"):
        PoolOptions(max_restarts=-1)
    for num_workers in (0, 257):
        with leaves_nothing(), pytest.raises(ArgumentError, match=rf"\[1, 256\], got {num_workers}"):
            WorkerPool(Numbers(), LAYOUT, num_slots=1, num_workers=num_workers)


@pytest.mark.processes
def test_the_number_of_workers_may_change_during_a_stream() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=1) as pool:
        for number, batch in enumerate(pool.stream(tasks(300))):
            assert_right(batch.arrays, number)
            if number % 10 == 0:
                pool.num_workers = 1 + number // 10 % 5
        assert pool.num_deaths == 0
        pool.num_workers = 2
        for number, batch in enumerate(pool.stream(tasks(20))):
            assert_right(batch.arrays, number)
        assert wait_until(lambda: len(children()) == 3)


@pytest.mark.processes
def test_surplus_workers_exit_even_if_no_chunk_is_posted() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=4) as pool:
        assert len(list(pool.stream(tasks(4)))) == 4
        assert wait_until(lambda: len(children()) == 5 and are_asleep(pool))
        pool.num_workers = 1
        assert wait_until(lambda: len(children()) == 2)


@pytest.mark.processes
def test_pools_are_independent() -> None:
    with (
        WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=1) as train,
        WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2) as validation,
    ):
        pairs = zip(train.stream(tasks(10)), validation.stream(tasks(10)), strict=True)
        for number, (left, right) in enumerate(pairs):
            assert_right(left.arrays, number)
            assert_right(right.arrays, number)


@pytest.mark.processes
def test_a_pool_works_within_64_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, highest + 20), hard))
    try:
        with WorkerPool(Numbers(), LAYOUT, num_slots=8, num_workers=20) as pool:
            for number, batch in enumerate(pool.stream(tasks(50))):
                assert_right(batch.arrays, number)
            assert pool.num_deaths == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.processes
def test_free_slots_return_their_memory_to_the_kernel() -> None:
    layout = SlotLayout(num_samples=32, fields=(*LAYOUT.fields, Field(name="large", shape=(1 << 15,), dtype="uint8")))

    class Fills(Numbers):
        def fill(self, task: Any, arrays: Mapping[str, Any], first: int, last: int, report: Any) -> None:
            super().fill(task, arrays, first, last, report)
            arrays["large"][first:last] = 1

    with WorkerPool(Fills(), layout, num_slots=3, num_workers=2) as pool:
        for round_number in range(2):
            for number, batch in enumerate(pool.stream(tasks(6))):
                assert_right(batch.arrays, number)
                assert np.all(batch.arrays["large"] == 1), round_number
            del batch
            assert pool.ring.used_bytes > 1 << 20
            assert wait_until(lambda: pool.num_free_slots == 3)
            pool.ring.drop_free_memory()
            assert pool.ring.used_bytes == 0


@pytest.mark.processes
def test_complete_batches_are_taken_in_any_order_with_what_they_cost(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def hold_the_first(batch: int, _: int) -> None:
        if not batch and not gate.path.exists():
            gate.wait()

    with WorkerPool(Numbers(hold_the_first), LAYOUT, num_slots=8, num_workers=2) as pool:
        for task in tasks(4, 8):
            pool.submit(task)
        found: list[FilledBatch] = []
        answers = select.poll()  # `select.select` refuses descriptors above 1023
        answers.register(pool.answers_fd, select.POLLIN)

        def take(num_batches: int) -> bool:
            found.extend(pool.take_complete() if answers.poll(50) else ())
            return len(found) >= num_batches

        assert wait_until(lambda: take(3))
        assert sorted(batch.task.numbers[0] for batch in found) == [1, 2, 3]
        assert (pool.num_pending, pool.take_complete()) == (1, [])
        gate.open()
        assert wait_until(lambda: take(4))
        assert [batch.tally.num_samples for batch in found] == [8] * 4
        assert min(batch.tally.busy_ns for batch in found) > 0
        for batch in found:
            assert_right(batch.arrays, batch.task.numbers[0], num_samples=8)
        pool.submit(tasks(1)[0])
        assert pool.next().task.numbers == (0,)
