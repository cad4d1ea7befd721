"""Dead processes are replaced and their chunks retried, and the batches are the same as without deaths."""

import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import SampleError, WorkerError
from mpload.transport.batches import KilledSample, PoolOptions
from mpload.transport.crew import Death
from mpload.transport.launch import ZygoteProcess
from mpload.transport.pool import WorkerPool
from mpload.transport.worker import ChunkReport
from tests.support.programs import REPOSITORY
from tests.support.transport_works import (
    LAYOUT,
    Gate,
    Numbers,
    are_asleep,
    assert_right,
    children,
    die,
    is_alive,
    leaves_nothing,
    pid_of,
    tasks,
    wait_until,
)

pytestmark = pytest.mark.processes

SEVERAL = PoolOptions(max_restarts=100_000)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it had already ended


@contextmanager
def disturbed(
    pool: WorkerPool, disturb: Callable[[dict[str, int]], None], every_seconds: float, *, jitter_seconds: float = 0.0
) -> Iterator[None]:
    """Call `disturb` with the pool's process ids repeatedly, from a thread.

    It waits for a new batch before each call. On a busy machine no worker would otherwise live long enough to make one.
    """
    end = threading.Event()

    def run() -> None:
        num_batches = -1
        while not end.wait(every_seconds + random.uniform(0, jitter_seconds)):
            if pool.stats.num_batches > num_batches:
                num_batches = pool.stats.num_batches
                disturb(dict(pool.pids))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def check_stream(pool: WorkerPool, num_batches: int) -> None:
    seen = -1
    for seen, batch in enumerate(pool.stream(tasks(num_batches))):
        assert batch.task.numbers == (seen,)
        assert not batch.failures
        assert_right(batch.arrays, seen)
    assert seen == num_batches - 1


def kill_a_worker(pids: dict[str, int]) -> None:
    workers = [pid for name, pid in pids.items() if name != "mpload-zygote"]
    if workers:
        kill(random.choice(workers))


def kill_all_workers(pids: dict[str, int]) -> None:
    for name, pid in pids.items():
        if name != "mpload-zygote":
            kill(pid)


def kill_the_zygote(pids: dict[str, int]) -> None:
    kill(pids["mpload-zygote"])


def kill_all_processes(pids: dict[str, int]) -> None:
    for pid in pids.values():
        kill(pid)


class ReadsAhead(Numbers):
    """Reserves chunks that it will fill next, as works for slow storage do."""

    def fill(self, task: tuple[int, ...], arrays: Any, first: int, last: int, report: ChunkReport) -> None:
        for chunk in report.upcoming(3):
            assert 0 <= chunk.first < chunk.last <= 32
        super().fill(task, arrays, first, last, report)


@pytest.mark.parametrize("work", [Numbers, ReadsAhead])
@pytest.mark.parametrize(
    ("disturb", "every_seconds"),
    [(kill_a_worker, 0.05), (kill_all_workers, 0.15), (kill_the_zygote, 0.7), (kill_all_processes, 0.7)],
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


def test_a_stopped_worker_is_replaced() -> None:
    options = PoolOptions(sample_timeout_seconds=0.5)
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=2, options=options) as pool:
        for number, batch in enumerate(pool.stream(tasks(200))):
            assert_right(batch.arrays, number)
            if number == 5:
                os.kill(pid_of(pool, "mpload-worker-1"), signal.SIGSTOP)
        # No death is required: a worker that was stopped while idle delays nobody, and is not replaced.
    with WorkerPool(Numbers(sleep_seconds=0.002), LAYOUT, num_slots=4, num_workers=1, options=options) as pool:
        for number, batch in enumerate(pool.stream(tasks(8))):
            assert_right(batch.arrays, number)
            if number == 2:
                os.kill(pid_of(pool, "mpload-worker-0"), signal.SIGSTOP)
        assert pool.num_deaths >= 1


def test_a_stopped_zygote_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.transport.crew._ZYGOTE_SECONDS", 2.0)
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=1) as pool:
        check_stream(pool, 5)
        pid_of(pool, "mpload-worker-0")
        stopped = pool.pids
        os.kill(stopped["mpload-zygote"], signal.SIGSTOP)
        os.kill(stopped["mpload-worker-0"], signal.SIGKILL)
        pool.num_workers = 2  # sends the zygote a request
        check_stream(pool, 5)
        assert not any(is_alive(pid) for pid in stopped.values())


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


def test_a_worker_that_stops_with_the_lock_stalls_the_pool_only_briefly() -> None:
    import fcntl

    options = PoolOptions(sample_timeout_seconds=0.5)
    with WorkerPool(Numbers(), LAYOUT, num_slots=4, num_workers=2, options=options) as pool:
        check_stream(pool, 3)
        board = pool._board.fds.board
        fcntl.lockf(board, fcntl.LOCK_EX)  # as if a worker had been stopped while it held the lock

        def release() -> None:
            assert wait_until(lambda: pool.num_deaths > 0)
            fcntl.lockf(board, fcntl.LOCK_UN)

        released = threading.Thread(target=release)
        released.start()
        check_stream(pool, 20)
        released.join()


def test_a_chunk_that_is_still_queued_or_taken_by_another_worker_is_not_retried(tmp_path: Path) -> None:
    with WorkerPool(Numbers(Gate(tmp_path).wait), LAYOUT, num_slots=3, num_workers=1) as pool:
        for task in tasks(3):
            pool.submit(task)
        assert wait_until(lambda: pool._crew.holds(min(pool._issued)))
        issued = dict(pool._issued)
        # As if the worker had been killed while it took the chunk, and as if another worker had taken it since.
        for serial in (max(issued), min(issued)):
            pool._retry(Death(worker=1, cause="SIGKILL", serial=serial))
        assert pool._issued == issued
        pool._retry(Death(worker=1, cause="SIGKILL", serial=10**6))  # a chunk that was answered long ago


def test_after_the_zygotes_death_a_chunk_that_a_new_worker_has_taken_is_not_retried(tmp_path: Path) -> None:
    with WorkerPool(Numbers(Gate(tmp_path).wait), LAYOUT, num_slots=3, num_workers=1) as pool:
        pool.submit(tasks(1)[0])
        assert wait_until(lambda: pool._crew.holds(min(pool._issued)))
        issued = dict(pool._issued)
        pool._retry(Death(worker=None, cause="SIGKILL"))  # as if the worker that holds the chunk were a new one
        assert pool._issued == issued


def test_a_lost_answer_stalls_the_pool_only_briefly() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=2) as pool:
        pool.submit(tasks(1)[0])
        answers = pool._inbox._ours
        assert select.select([answers], [], [], 60)[0]
        assert answers.recv(1 << 16)
        assert_right(pool.next().arrays, 0)


def test_an_interrupted_step_closes_the_pool_and_an_interrupted_wait_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with leaves_nothing():
        with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=2) as pool:
            pool.submit(tasks(1)[0])
            with monkeypatch.context() as patch:
                patch.setattr(pool._inbox, "wait", lambda *_: signal.raise_signal(signal.SIGINT))
                with pytest.raises(KeyboardInterrupt):
                    pool.next()
            assert_right(pool.next().arrays, 0)
            monkeypatch.setattr(pool._ring, "lend", interrupt)
            pool.submit(tasks(1)[0])
            with pytest.raises(KeyboardInterrupt):
                pool.next()
            with pytest.raises(WorkerError, match="closed"):
                pool.submit(tasks(1)[0])
        del pool


def test_a_parent_that_was_stopped_does_not_consider_its_workers_stuck(tmp_path: Path) -> None:
    script = """
        import os, signal, subprocess, sys
        import time
        from mpload.transport.batches import PoolOptions
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, assert_right, tasks

        def sample(batch, place):
            for _ in range(30):
                time.sleep(0.01)  # a stopped process resumes here with little left to wait

        stop = "kill -STOP {0}; sleep 4; kill -CONT {0}"  # stopped for longer than the time limit
        options = PoolOptions(sample_timeout_seconds=3)  # much longer than a sample takes on a busy machine
        with WorkerPool(Numbers(sample), LAYOUT, num_slots=4, num_workers=2, options=options) as pool:
            for number, batch in enumerate(pool.stream(tasks(16, 1))):
                assert_right(batch.arrays, number, num_samples=1)
                if number == 1:  # stop all processes, as Ctrl-Z does
                    pids = " ".join(map(str, [os.getpid(), *pool.pids.values()]))
                    subprocess.Popen(["sh", "-c", stop.format(pids)])
            print(pool.num_deaths)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=60, cwd=REPOSITORY, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")


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


def test_a_worker_that_hangs_in_open_is_replaced(tmp_path: Path) -> None:
    class HangsOnce(Numbers):
        def open(self) -> None:
            try:
                (tmp_path / "once").touch(exist_ok=False)
            except FileExistsError:
                return
            time.sleep(3600)

    with WorkerPool(HangsOnce(), LAYOUT, num_slots=2, num_workers=1) as pool:
        # Not the limit for the zygote, which takes longer on a busy machine.
        pool._crew._options = PoolOptions(start_timeout_seconds=0.5)
        check_stream(pool, 3)
        assert pool.num_deaths >= 1


def test_idle_workers_are_not_considered_stuck() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2) as pool:
        check_stream(pool, 3)
        assert wait_until(pool._crew.are_idle)
        pool._crew._options = PoolOptions(sample_timeout_seconds=0.05)
        started = pool._crew._clock.observe()
        while pool._crew._clock.observe() < started + 0.5:
            pool._poll(0.02)
        assert pool.num_deaths == 0


def test_a_lost_wake_up_is_repeated_and_not_counted_towards_a_later_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2) as pool:
        wake = pool._board.wake

        def lose(_: int) -> None:
            monkeypatch.setattr(pool._board, "wake", wake)

        check_stream(pool, 3)
        for _ in range(2):
            assert wait_until(lambda: are_asleep(pool))
            monkeypatch.setattr(pool._board, "wake", lose)  # as if a worker had died with the byte it read
            check_stream(pool, 1)
            assert not pool._crew.check()
            pool._crew._clock._now_seconds += 3600  # much later, it happens again
        assert pool.num_deaths == 0


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
        while pool._issued:
            pool._poll(0.1)
        kill_all_workers(pool.pids)
        assert select.select([pool._zygote.control], [], [], 60)[0]
        assert_right(pool.next().arrays, 0)
        assert pool.num_deaths == 1


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
    assert asked == [KilledSample(task=(1,), sample=5, cause="killed its worker (SIGSEGV)")]
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


def test_too_many_deaths_end_the_job_with_their_history() -> None:
    def sample(batch: int, place: int) -> None:
        die("segfault")

    with leaves_nothing():
        pool = WorkerPool(Numbers(sample), LAYOUT, num_slots=2, num_workers=2, options=PoolOptions(max_restarts=7))
        with pytest.raises(WorkerError, match=r"(?s)8 workers died .*max_restarts=7.*SIGSEGV at sample") as caught:
            next(pool.stream(tasks(1)))
        assert len(caught.value.history) == 8
        del pool, caught


def test_the_cause_of_a_death_names_a_lack_of_memory() -> None:
    def sample(batch: int, place: int) -> None:
        if place == 0:
            die("kill")

    counts = iter(range(100))
    with WorkerPool(Numbers(sample), LAYOUT, num_slots=1, num_workers=1, count_oom_kills=lambda: next(counts)) as pool:
        batch = next(pool.stream(tasks(1)))
    assert batch.failures[0].cause == "killed its worker (SIGKILL, out of memory)"


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


@pytest.mark.parametrize(
    ("number", "starts_fresh"),
    [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False), (signal.SIGINT, False)],
)
def test_the_death_of_the_parent_ends_all_processes(number: signal.Signals, starts_fresh: bool) -> None:
    script = f"""
        from mpload.transport.batches import PoolOptions
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, children, pid_of, tasks, wait_until
        import os, time

        options = PoolOptions(starts_fresh={starts_fresh})
        pool = WorkerPool(Numbers(sleep_seconds=0.01), LAYOUT, num_slots=4, num_workers=3, options=options)
        stream = pool.stream(tasks(10**6))
        next(stream)
        assert wait_until(lambda: len(children()) == 4)
        for worker in range(3):
            pid_of(pool, f"mpload-worker-{{worker}}")
        if os.fork() == 0:  # a child that survives, with copies of all descriptors
            os.close(0), os.close(1), os.close(2)
            time.sleep(100)
            os._exit(0)
        print(*pool.pids.values(), flush=True)
        for batch in stream:
            pass
    """
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 4
        assert all(is_alive(pid) for pid in pids)
        process.send_signal(number)
        assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -number
        assert errors.count("Traceback") == (number == signal.SIGINT)  # only from the parent
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_only_the_parent_reacts_to_ctrl_c_in_the_process_group() -> None:
    script = """
        from mpload.errors import WorkerError
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, assert_right, children, tasks

        with WorkerPool(Numbers(sleep_seconds=0.002), LAYOUT, num_slots=4, num_workers=3) as pool:
            try:
                for number, batch in enumerate(pool.stream(tasks(10**6))):
                    assert_right(batch.arrays, number)
                    if number == 3: print("go", flush=True)
            except KeyboardInterrupt:
                pass
            try:
                for number, batch in enumerate(pool.stream(tasks(10))):
                    assert_right(batch.arrays, number)
            except WorkerError as error:  # the signal came in the middle of a step
                assert "closed" in str(error)
            print(pool.num_deaths, flush=True)
        print(len(children()))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (output, errors) == ("0\n0\n", "")


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
