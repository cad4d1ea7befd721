"""Dead processes are replaced and their chunks retried, and the batches are the same as without deaths."""

import random
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpload.transport.crew import Death
from mpload.transport.launch import ZygoteProcess
from mpload.transport.pool import WorkerPool
from mpload.transport.worker import ChunkReport
from tests.support.transport_kills import (
    SEVERAL,
    check_stream,
    disturbed,
    kill,
    kill_a_worker,
    kill_all_processes,
    kill_all_workers,
    kill_the_zygote,
)
from tests.support.transport_works import (
    LAYOUT,
    Gate,
    Numbers,
    assert_right,
    children,
    is_alive,
    leaves_nothing,
    pid_of,
    tasks,
    wait_until,
)

pytestmark = pytest.mark.processes


class ReadsAhead(Numbers):
    """Reserves chunks that it will fill next, as works for slow storage do."""

    def fill(self, task: tuple[int, ...], arrays: Any, first: int, last: int, report: ChunkReport) -> None:
        for chunk in report.upcoming(3):
            assert 0 <= chunk.first < chunk.last <= 32
        report.begun(first % 4)
        super().fill(task, arrays, first, last, report)


@pytest.mark.parametrize(
    ("disturb", "every_seconds", "work"),
    [
        (kill_a_worker, 0.05, ReadsAhead),
        (kill_all_workers, 0.15, Numbers),
        (kill_the_zygote, 0.7, ReadsAhead),
        (kill_all_processes, 0.7, Numbers),
        pytest.param(kill_a_worker, 0.05, Numbers, marks=pytest.mark.slow),
        pytest.param(kill_all_workers, 0.15, ReadsAhead, marks=pytest.mark.slow),
        pytest.param(kill_the_zygote, 0.7, Numbers, marks=pytest.mark.slow),
        pytest.param(kill_all_processes, 0.7, ReadsAhead, marks=pytest.mark.slow),
    ],
)
def test_killed_processes_lose_and_repeat_no_sample(
    disturb: Callable[[dict[str, int]], None], every_seconds: float, work: type[Numbers]
) -> None:
    with leaves_nothing():
        pool = WorkerPool(work(sleep_seconds=0.001), LAYOUT, num_slots=5, num_workers=3, options=SEVERAL)
        with pool, disturbed(pool, disturb, every_seconds):
            check_stream(pool, 100)
            while not pool.num_deaths:
                check_stream(pool, 20)
        del pool


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundreds_of_kills_change_no_batch() -> None:
    random.seed(0)

    def disturb(pids: dict[str, int]) -> None:
        random.choices([kill_a_worker, kill_all_workers, kill_all_processes], [50, 4, 1])[0](pids)

    pool = WorkerPool(Numbers(sleep_seconds=0.001), LAYOUT, num_slots=6, num_workers=4, options=SEVERAL)
    with pool, disturbed(pool, disturb, 0.02, jitter_seconds=0.1):
        while pool.num_deaths <= 300:
            check_stream(pool, 1200)


@pytest.mark.slow
def test_a_new_zygote_that_is_killed_while_it_starts_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=1) as pool:
        check_stream(pool, 5)
        await_ready = ZygoteProcess._await_ready
        num_killed = 0

        def killed_twice(zygote: ZygoteProcess) -> None:
            nonlocal num_killed
            if num_killed < 2:
                num_killed += 1
                kill(zygote.pid)
            await_ready(zygote)

        monkeypatch.setattr(ZygoteProcess, "_await_ready", killed_twice)
        killed = pool.pids
        kill(killed["mpload-zygote"])  # and its worker with it, which may have finished some batches
        assert wait_until(lambda: not any(map(is_alive, killed.values())))
        check_stream(pool, 5)
        assert (num_killed, pool.num_deaths) == (2, 3)


def test_a_chunk_that_is_still_queued_or_taken_by_another_worker_is_not_retried(tmp_path: Path) -> None:
    with WorkerPool(Numbers(Gate(tmp_path).wait), LAYOUT, num_slots=3, num_workers=1) as pool:
        for task in tasks(3):
            pool.submit(task)
        assert wait_until(lambda: pool._crew.holds(min(pool._issuing.issued)))
        issued = dict(pool._issuing.issued)
        # As if the worker had been killed while it took the chunk, and as if another worker had taken it since.
        for serial in (max(issued), min(issued)):
            pool._retry(Death(worker=1, cause="SIGKILL", serial=serial))
        assert pool._issuing.issued == issued
        pool._retry(Death(worker=1, cause="SIGKILL", serial=10**6))  # a chunk that was answered long ago


def test_after_the_zygotes_death_a_chunk_that_a_new_worker_has_taken_is_not_retried(tmp_path: Path) -> None:
    with WorkerPool(Numbers(Gate(tmp_path).wait), LAYOUT, num_slots=3, num_workers=1) as pool:
        pool.submit(tasks(1)[0])
        assert wait_until(lambda: pool._crew.holds(min(pool._issuing.issued)))
        issued = dict(pool._issuing.issued)
        pool._retry(Death(worker=None, cause="SIGKILL"))  # as if the worker that holds the chunk were a new one
        assert pool._issuing.issued == issued


def test_dead_workers_leak_no_descriptor_of_the_zygote() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=1) as pool:
        nums_fds = []
        for number in range(4):
            check_stream(pool, 2)
            pid = pid_of(pool, "mpload-worker-0")
            nums_fds.append(len(list(Path(f"/proc/{pool.pids['mpload-zygote']}/fd").iterdir())))
            kill(pid)
            while pool.num_deaths <= number:
                pool._poll(0.1)
        assert len(set(nums_fds)) == 1


def test_a_dead_worker_is_replaced_while_batches_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.transport.pool._CREW_CHECK_SECONDS", 0.0)
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=1) as pool:
        for task in tasks(4):
            pool.submit(task)
        pid_of(pool, "mpload-worker-0")
        while pool._issuing.issued:
            pool._poll(0.1)
        kill_all_workers(pool.pids)
        assert select.select([pool._zygote.control], [], [], 60)[0]
        assert_right(pool.next().arrays, 0)
        assert pool.num_deaths == 1


def test_a_dead_worker_does_not_affect_finished_batches() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=1) as pool:
        for task in tasks(4):
            pool.submit(task)
        ready = [pool.ring.views(slot)["label"] for slot in range(4)]
        assert wait_until(lambda: {int(label[31]) // 1000 for label in ready} == set(range(4)))
        for pid in children():
            kill(pid)
        for number in range(4):
            assert_right(pool.next().arrays, number)


def test_cancelled_chunks_of_dead_workers_free_their_slots() -> None:
    with WorkerPool(Numbers(sleep_seconds=0.005), LAYOUT, num_slots=4, num_workers=2) as pool:
        for _ in range(3):
            stream = pool.stream(tasks(10))
            next(stream)
            kill_all_workers(pool.pids)
            stream.close()
        check_stream(pool, 10)
        while pool.num_free_slots < 4:
            pool._poll(0.1)


def test_killing_workers_during_a_resize_keeps_the_wanted_number() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=4, options=SEVERAL) as pool:
        check_stream(pool, 20)
        for num_workers in (1, 4, 2, 3):
            pool.num_workers = num_workers
            kill_a_worker(pool.pids)
            check_stream(pool, 20)

        def settled() -> bool:
            check_stream(pool, 1)
            return len(children()) == 4

        assert wait_until(settled)


def test_slots_become_free_although_workers_die() -> None:
    with WorkerPool(Numbers(sleep_seconds=0.0005), LAYOUT, num_slots=4, num_workers=2, options=SEVERAL) as pool:
        with disturbed(pool, kill_a_worker, 0.05):
            check_stream(pool, 60)
        assert wait_until(lambda: pool.num_free_slots == 4)


def test_no_reference_to_a_batch_remains_after_a_new_zygote_was_killed_while_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await_ready = ZygoteProcess._await_ready

    def die_once(zygote: ZygoteProcess) -> None:
        monkeypatch.setattr(ZygoteProcess, "_await_ready", await_ready)
        kill(zygote.pid)
        await_ready(zygote)

    with leaves_nothing():
        with WorkerPool(Numbers(sleep_seconds=0.001), LAYOUT, num_slots=4, num_workers=2) as pool:
            check_stream(pool, 3)
            monkeypatch.setattr(ZygoteProcess, "_await_ready", die_once)
            kill(pool.pids["mpload-zygote"])
            while pool.num_deaths < 2:
                check_stream(pool, 3)
        del pool
