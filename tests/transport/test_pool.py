"""The pool: correct batches in order, whichever worker fills them, and no leftovers when it is closed."""

import gc
import math
import multiprocessing
import os
import resource
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError, DecodeError, WorkerError
from mpload.transport.batches import BatchTask, FilledBatch, PoolOptions
from mpload.transport.chunks import MAX_CHUNKS, Chunk, after_death, cut
from mpload.transport.crew import ObservedClock
from mpload.transport.messages import MAX_COUNTS, Answer, Failure, Tally, cause_of
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, SlotLayout
from mpload.transport.worker import ChunkReport
from tests.support.transport_works import (
    LAYOUT,
    Gate,
    Numbers,
    are_asleep,
    assert_right,
    children,
    die,
    leaves_nothing,
    tasks,
    wait_until,
)


@given(
    num_samples=st.integers(1, 5000), share=st.integers(0, 5000), sample_ns=st.floats(0, 1e12) | st.just(float("inf"))
)
def test_the_chunks_of_a_batch_cover_each_sample_once(num_samples: int, share: int, sample_ns: float) -> None:
    chunks = cut(batch=1, slot=2, num_samples=num_samples, task=(7,), share=share, sample_ns=sample_ns)
    assert [sample for chunk in chunks for sample in range(chunk.first, chunk.last)] == list(range(num_samples))
    assert len(chunks) <= MAX_CHUNKS


def test_chunks_of_fast_samples_are_as_large_as_a_workers_share_allows() -> None:
    def sizes(share: int, sample_ns: float) -> set[int]:
        return {chunk.num_samples for chunk in cut(
            batch=1, slot=2, num_samples=256, task=(), share=share, sample_ns=sample_ns
        )}  # fmt: skip

    assert sizes(512, 1_000_000) == {16}
    assert sizes(512, 125_000) == sizes(512, 80_000) == {64}
    assert sizes(512, 10) == {256}
    assert sizes(64, 10) == {32}


@given(share=st.integers(0, 5000), sample_ns=st.floats(1, 1e9))
def test_larger_chunks_begin_where_smaller_ones_do(share: int, sample_ns: float) -> None:
    def begins(sample_ns: float) -> set[int]:
        chunks = cut(batch=1, slot=2, num_samples=1000, task=(), share=share, sample_ns=sample_ns)
        return {chunk.first for chunk in chunks}

    assert begins(sample_ns) <= begins(math.inf)


@given(
    first=st.integers(0, 50),
    size=st.integers(1, 64),
    deadly=st.integers(0, 200),
    is_marked=st.booleans(),
    is_from_outside=st.booleans(),
)
def test_a_deadly_sample_is_found_and_nothing_else_is_blamed(
    first: int, size: int, deadly: int, is_marked: bool, is_from_outside: bool
) -> None:
    todo = [Chunk(batch=1, slot=0, first=first, last=first + size, task=())]
    filled: list[int] = []
    blamed: list[int] = []
    num_deaths = num_alone = 0
    while todo:
        chunk = todo.pop()
        if not chunk.first <= deadly < chunk.last:
            filled += range(chunk.first, chunk.last)
            continue
        num_deaths += 1
        num_alone += chunk.num_samples == 1
        again = after_death(chunk, deadly if is_marked else None, is_from_outside=is_from_outside)
        todo += again
        blamed += [] if again else [chunk.first]
    assert sorted(filled + blamed) == list(range(first, first + size))
    assert blamed == ([deadly] if first <= deadly < first + size else [])
    assert num_deaths <= (4 if is_marked else 2 * (size.bit_length() + 1)) + 4 * is_from_outside
    assert num_alone == (6 if is_from_outside else 2) * len(blamed), "a death over several samples does not count"


@given(first=st.integers(0, 50), size=st.integers(2, 64), sample=st.integers(-2, 120))
def test_the_parts_of_a_split_chunk_cover_it_once_whichever_sample_its_worker_died_over(
    first: int, size: int, sample: int
) -> None:
    chunk = Chunk(batch=1, slot=0, first=first, last=first + size, task=(), num_deaths=1)
    parts = after_death(chunk, sample)
    assert len(parts) > 1
    assert [at for part in parts for at in range(part.first, part.last)] == list(range(first, first + size))


DETAILS = st.dictionaries(st.text(max_size=9), st.none() | st.integers() | st.text(max_size=9), max_size=3)


@given(st.lists(st.tuples(st.integers(0, 1000), st.text(max_size=50), DETAILS), max_size=16))
def test_answers_survive_encoding(failures: list[tuple[int, str, dict[str, Any]]]) -> None:
    answer = Answer(
        worker=3,
        serial=1 << 60,
        tally=Tally(num_samples=1, busy_ns=2, counts=list(range(3, 3 + MAX_COUNTS))),
        failures=tuple(Failure(sample=s, cause=c, details=d) for s, c, d in failures),
    )
    assert Answer.decode(answer.encode()) == answer


def test_an_answer_fits_a_message_whatever_its_failures_say() -> None:
    failures = tuple(Failure(sample=n, cause="\U0001f600" * 10**6, details={"x": "y" * 10**6}) for n in range(64))
    assert len(Answer(worker=0, serial=1, failures=failures).encode()) < 200_000


def test_samples_that_fail_alike_all_keep_their_causes() -> None:
    failures = tuple(
        Failure(sample=n, cause=f"{n}: " + "as the others do " * 20, details={"traceback": f"line {n}\n" * 100})
        for n in range(256)
    )
    answer = Answer(worker=0, serial=1, failures=failures)
    message = answer.encode()
    assert len(message) < 200_000
    assert Answer.decode(message) == answer


def test_a_cause_names_the_type_of_errors_that_are_not_ours() -> None:
    assert cause_of(ValueError("no")) == "ValueError: no"
    assert cause_of(DecodeError("no JPEG")) == "no JPEG"


def test_time_without_observations_does_not_count() -> None:
    now = 100.0
    clock = ObservedClock(lambda: now)
    now += 0.5
    assert clock.observe() == 0.5
    now += 3600
    assert clock.observe() == 1.5


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
def test_a_stream_of_depth_zero_makes_one_batch_at_a_time() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=1) as pool:
        pool.depth = 0
        assert [batch.task.numbers for batch in pool.stream(tasks(3))] == [(0,), (1,), (2,)]


@pytest.mark.processes
def test_cancelling_frees_the_slots_of_finished_batches() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=2) as pool:
        for task in tasks(4):
            pool.submit(task)
        while pool._issued:
            pool._poll(0.1)
        pool.next()
        pool.cancel()
        assert pool.num_free_slots == 4


@pytest.mark.processes
@pytest.mark.parametrize("how", ["raise", "sys.exit"])
def test_samples_that_raise_are_failures_and_do_not_affect_the_others(how: str) -> None:
    def sample(batch: int, place: int) -> None:
        if batch == 5 and place in {3, 17}:
            die(how)

    with WorkerPool(Numbers(sample), LAYOUT, num_slots=2, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(8))):
            bad = (3, 17) if number == 5 else ()  # by then its slot has held other batches
            assert tuple(failure.sample for failure in batch.failures) == bad
            assert_right(batch.arrays, number, bad=bad)
            for failure in batch.failures:
                assert failure.cause in {"ValueError: no good", "SystemExit: enough"}
                assert "in die" in failure.details["traceback"]
        assert pool.num_deaths == 0


@pytest.mark.processes
def test_failures_are_in_the_order_of_their_samples(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def sample(batch: int, place: int) -> None:
        if place == 3:
            gate.wait()
        if place in {3, 17}:
            die("raise")

    with WorkerPool(Numbers(sample), LAYOUT, num_slots=2, num_workers=2) as pool:
        pool.submit(tasks(1)[0])
        assert select.select([pool._inbox._ours], [], [], 60)[0]  # the second half of the batch has been answered
        gate.open()
        assert [failure.sample for failure in pool.next().failures] == [3, 17]


class FailsHalfway(Numbers):
    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        for sample in range(first, last):
            super().fill(task, arrays, sample, sample + 1, report)
            if sample % 5 == 2:
                raise ValueError("after it was written")


@pytest.mark.processes
@pytest.mark.parametrize("num_samples", [3, 32])
def test_a_sample_that_fails_after_it_was_written_is_zero(num_samples: int) -> None:
    with WorkerPool(FailsHalfway(), LAYOUT, num_slots=2, num_workers=2) as pool:
        bad = tuple(range(2, num_samples, 5))
        for number, batch in enumerate(pool.stream(tasks(4, num_samples))):
            assert tuple(failure.sample for failure in batch.failures) == bad
            assert_right(batch.arrays, number, num_samples=num_samples, bad=bad)


class Reports(Numbers):
    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        super().fill(task, arrays, first, last, report)
        report.tally.counts[1] += last - first
        if first == 0:
            report.failed(0, "was replaced", {"substitute": 5})
        if last - first > 1:
            raise ValueError("reports of the first attempt do not count")


@pytest.mark.processes
def test_a_work_may_report_failures_and_use_counters() -> None:
    with WorkerPool(Reports(), LAYOUT, num_slots=2, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(3))):
            assert_right(batch.arrays, number)
            assert batch.failures == (Failure(sample=0, cause="was replaced", details={"substitute": 5}),)
        assert sum(tally.counts[1] for tally in pool.stats.by_worker.values()) == 3 * 2 * 32  # all were made twice


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
def test_a_garbage_collected_pool_leaves_no_process_or_descriptor() -> None:
    with leaves_nothing():
        pool = WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2)
        next(pool.stream(tasks(3)))
        del pool
        gc.collect()


@pytest.mark.processes
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


@pytest.mark.processes
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


@pytest.mark.processes
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


def _num_maps() -> int:
    """Number of mappings of the transport's shared memory in this process, the only one left after a close."""
    return Path("/proc/self/maps").read_text().count("memfd:mpload")


@pytest.mark.processes
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
