"""A sample that kills its workers is found and named. It becomes a failure, is substituted or ends the job."""

import os
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import SampleError, WorkerError
from mpload.transport.batches import KilledSample, PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.transport.worker import ChunkReport
from tests.support.transport_works import LAYOUT, Numbers, assert_right, die, leaves_nothing, tasks

pytestmark = pytest.mark.processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("segfault", "killed its worker (SIGSEGV)"),
        ("kill", "killed its worker (SIGKILL)"),
        ("exit", "killed its worker (exit status 7)"),
        ("hang", "killed its worker (stuck for more than 0.5 s)"),
        ("stop", "killed its worker (stuck for more than 0.5 s)"),
    ],
)
def test_a_sample_that_kills_its_workers_is_found_and_named(how: str, cause: str) -> None:
    def sample(batch: int, place: int) -> None:
        if (batch, place) == (5, 13):
            die(how)

    options = PoolOptions(sample_timeout_seconds=0.5 if how in {"hang", "stop"} else 60.0)
    with WorkerPool(Numbers(sample), LAYOUT, num_slots=2, num_workers=2, options=options) as pool:
        for number, batch in enumerate(pool.stream(tasks(8))):
            bad = (13,) if number == 5 else ()  # by then its slot has held other batches
            assert [(failure.sample, failure.cause) for failure in batch.failures] == [(place, cause) for place in bad]
            assert_right(batch.arrays, number, bad=bad)
        # Two deaths with other samples, then two or six alone. On a busy machine other workers may exceed 0.5 s too.
        num_deaths = 8 if how == "kill" else 4
        assert num_deaths <= pool.num_deaths <= num_deaths + 3 * (how in {"hang", "stop"})


class DiesAfterwards(Numbers):
    def fill(self, task: tuple[int, ...], arrays: Any, first: int, last: int, report: ChunkReport) -> None:
        for sample in range(first, last):
            super().fill(task, arrays, sample, sample + 1, report)
            if sample == 13:
                os._exit(7)


def test_a_sample_that_kills_its_workers_after_it_was_written_is_zero() -> None:
    with WorkerPool(DiesAfterwards(), LAYOUT, num_slots=2, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(3))):
            assert [failure.sample for failure in batch.failures] == [13]
            assert_right(batch.arrays, number, bad=(13,))


class NeverReports(Numbers):
    def fill(self, task: tuple[int, ...], arrays: Any, first: int, last: int, report: ChunkReport) -> None:
        if first <= 13 < last:
            os._exit(7)
        super().fill(task, arrays, first, last, report)


def test_a_deadly_sample_is_found_even_if_the_work_never_reports_its_progress() -> None:
    with WorkerPool(NeverReports(), LAYOUT, num_slots=2, num_workers=2) as pool:
        for number, batch in enumerate(pool.stream(tasks(2))):
            assert [failure.sample for failure in batch.failures] == [13]
            assert_right(batch.arrays, number, bad=(13,))


def test_the_caller_may_substitute_another_sample_for_a_deadly_one() -> None:
    asked: list[KilledSample] = []

    class Substitutes(Numbers):
        def fill(self, task: tuple[int, ...], arrays: Any, first: int, last: int, report: ChunkReport) -> None:
            if len(task) == 1 and task[0] == 1 and first <= 5 < last:
                die("segfault")
            super().fill(task[-1:], arrays, first, last, report)

    def substitute(killed: KilledSample) -> tuple[int, ...]:
        asked.append(killed)
        return (*killed.task, 70)

    with WorkerPool(Substitutes(), LAYOUT, num_slots=2, num_workers=2, on_killed=substitute) as pool:
        batches = list(pool.stream(tasks(3)))
    assert asked == [KilledSample(task=(1,), sample=5, at=5, cause="killed its worker (SIGSEGV)")]
    assert not any(batch.failures for batch in batches)
    assert batches[1].arrays["label"].tolist() == [70_005 if place == 5 else 1000 + place for place in range(32)]


def test_a_substitute_for_a_deadly_sample_may_kill_a_worker_once_too(tmp_path: Path) -> None:
    class Substitutes(Numbers):
        def fill(self, task: tuple[int, ...], arrays: Any, first: int, last: int, report: ChunkReport) -> None:
            if first <= 5 < last and (len(task) == 1 or not (tmp_path / "once").exists()):
                if len(task) > 1:
                    (tmp_path / "once").touch()
                die("segfault")
            super().fill(task[-1:], arrays, first, last, report)

    def substitute(killed: KilledSample) -> tuple[int, ...] | None:
        return (*killed.task, 70) if len(killed.task) == 1 else None

    with WorkerPool(Substitutes(), LAYOUT, num_slots=1, num_workers=1, on_killed=substitute) as pool:
        batch = next(pool.stream(tasks(1)))
    assert not batch.failures
    assert batch.arrays["label"][5] == 70_005


def test_the_caller_may_end_the_job_over_a_deadly_sample() -> None:
    def refuse(killed: KilledSample) -> None:
        raise SampleError(f"sample {killed.sample} {killed.cause}")

    def sample(batch: int, place: int) -> None:
        if place == 3:
            die("exit")

    with leaves_nothing():
        pool = WorkerPool(Numbers(sample), LAYOUT, num_slots=2, num_workers=2, on_killed=refuse)
        with pytest.raises(SampleError, match=r"sample 3 killed its worker \(exit status 7\)"):
            next(pool.stream(tasks(1)))
        del pool


@pytest.mark.parametrize(("max_restarts", "dead"), [(7, "8 workers"), (0, "1 worker")])
def test_too_many_deaths_end_the_job_with_their_history(max_restarts: int, dead: str) -> None:
    def sample(batch: int, place: int) -> None:
        die("segfault")

    options = PoolOptions(max_restarts=max_restarts)
    with leaves_nothing():
        pool = WorkerPool(Numbers(sample), LAYOUT, num_slots=2, num_workers=2, options=options)
        stream = pool.stream(tasks(1))
        message = rf"(?s)^{dead} died .*max_restarts={max_restarts}\. .*SIGSEGV at sample"
        for _ in range(3):  # the pool is closed, and says why
            with pytest.raises(WorkerError, match=message) as caught:
                next(stream)
            assert len(caught.value.history) == max_restarts + 1
        del pool, stream, caught


def test_the_cause_of_a_death_names_a_lack_of_memory() -> None:
    def sample(batch: int, place: int) -> None:
        if place == 0:
            die("kill")

    counts = iter(range(100))
    with WorkerPool(Numbers(sample), LAYOUT, num_slots=1, num_workers=1, count_oom_kills=lambda: next(counts)) as pool:
        batch = next(pool.stream(tasks(1)))
    assert batch.failures[0].cause == "killed its worker (SIGKILL, out of memory)"
