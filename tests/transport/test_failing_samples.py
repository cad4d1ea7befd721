"""Samples that raise are failures with a cause, and their values are zero. The other samples are right."""

import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mpload.transport.messages import Failure
from mpload.transport.pool import WorkerPool
from mpload.transport.worker import ChunkReport
from tests.support.transport_works import LAYOUT, Gate, Numbers, assert_right, die, tasks

pytestmark = pytest.mark.processes


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
                assert "During handling" not in failure.details["traceback"]
                assert failure.cause in {"ValueError: no good", "SystemExit: enough"}
                assert "in die" in failure.details["traceback"]
        assert pool.num_deaths == 0


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


def test_a_work_may_report_failures_and_use_counters() -> None:
    with WorkerPool(Reports(), LAYOUT, num_slots=2, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(3))):
            assert_right(batch.arrays, number)
            assert batch.failures == (Failure(sample=0, cause="was replaced", details={"substitute": 5}),)
        assert sum(tally.counts[1] for tally in pool.stats.by_worker.values()) == 3 * 2 * 32  # all were made twice
