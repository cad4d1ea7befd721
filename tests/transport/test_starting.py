"""Starting zygotes and workers: any process that is killed while it starts is replaced, in any kind of parent."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import RefusedError, WorkerError
from mpload.transport import launch
from mpload.transport.batches import PoolOptions
from mpload.transport.kernel import thread_names
from mpload.transport.launch import ZygoteProcess
from mpload.transport.pool import WorkerPool
from mpload.transport.zygote import flush_output
from tests.support.programs import REPOSITORY, run_script
from tests.support.threads import in_background
from tests.support.transport_works import (
    LAYOUT,
    Numbers,
    assert_right,
    children,
    is_alive,
    leaves_nothing,
    pid_of,
    tasks,
    wait_until,
)


@contextmanager
def first_children_killed(num_kills: int, chance: random.Random, *, within_seconds: float) -> Iterator[None]:
    """Kill `num_kills` children of this process, one after another, each at a random moment after its start."""
    before = children()

    def run(end: threading.Event) -> None:
        for _ in range(num_kills):
            while not (found := children() - before):
                if end.wait(0.001):
                    return
            end.wait(chance.uniform(0, within_seconds))
            pid = min(found)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            wait_until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]

    with in_background(run):
        yield


@pytest.mark.slow
@pytest.mark.processes
def test_a_zygote_killed_at_any_moment_of_its_start_is_replaced() -> None:
    chance = random.Random(0)
    with leaves_nothing():
        for within_seconds in (0.01, 0.1, 0.2, 0.3, 0.3, 0.4):  # a start takes about 0.3 s
            with (
                first_children_killed(3, chance, within_seconds=within_seconds),
                WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=1) as pool,
            ):
                for number, batch in enumerate(pool.stream(tasks(10))):
                    assert_right(batch.arrays, number)
                del batch
            del pool


class Dies(Numbers):
    """Kills the zygote with a signal each time it is loaded, and logs that to a file."""

    def __init__(self, number: signal.Signals, log: Path) -> None:
        super().__init__()
        self.number, self.log = number, log

    def __reduce__(self) -> Any:
        return _die, (self.number, str(self.log))


def _die(number: int, log: str) -> None:
    with Path(log).open("a") as file:
        file.write(".")
    os.kill(os.getpid(), number)


@pytest.mark.slow
@pytest.mark.processes
def test_a_zygote_that_is_killed_at_every_start_ends_the_job_after_max_restarts(tmp_path: Path) -> None:
    log, options = tmp_path / "starts", PoolOptions(max_restarts=5)
    with leaves_nothing(), pytest.raises(WorkerError, match=r"max_restarts=5") as caught:
        WorkerPool(Dies(signal.SIGKILL, log), LAYOUT, num_slots=2, num_workers=1, options=options)
    assert log.read_text() == "." * 6
    assert len(caught.value.history) == 6
    assert all("while it loaded the work (SIGKILL)" in line for line in caught.value.history)


@pytest.mark.slow
@pytest.mark.processes
def test_a_zygote_that_is_killed_at_every_start_ends_the_job_after_the_time_limit(tmp_path: Path) -> None:
    log, options = tmp_path / "starts", PoolOptions(start_timeout_seconds=1.5)
    # On a busy machine the last zygote may also exceed the limit.
    with (
        leaves_nothing(),
        pytest.raises(WorkerError, match=r"died while it loaded the work \(SIGKILL\)|has not loaded"),
    ):
        WorkerPool(Dies(signal.SIGKILL, log), LAYOUT, num_slots=2, num_workers=1, options=options)
    assert 1 <= len(log.read_text()) < 50


@pytest.mark.slow
@pytest.mark.processes
def test_work_that_crashes_the_zygote_is_retried_only_a_few_times(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    with leaves_nothing(), pytest.raises(WorkerError, match=r"died while it loaded the work \(SIGSEGV\)"):
        WorkerPool(Dies(signal.SIGSEGV, log), LAYOUT, num_slots=2, num_workers=1)
    assert log.read_text() == "...."


@pytest.mark.slow
@pytest.mark.processes
def test_a_start_that_runs_out_of_memory_is_retried_only_a_few_times(tmp_path: Path) -> None:
    log, counts = tmp_path / "starts", iter(range(100))
    with leaves_nothing(), pytest.raises(WorkerError, match="SIGKILL"):
        WorkerPool(Dies(signal.SIGKILL, log), LAYOUT, num_slots=2, num_workers=1, count_oom_kills=lambda: next(counts))
    assert log.read_text() == "...."


@pytest.mark.slow
@pytest.mark.processes
def test_a_zygote_that_closes_its_socket_but_lives_on_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.transport.launch._END_SECONDS", 0.2)

    class HangsUp(Numbers):
        def __reduce__(self) -> Any:
            return exec, ("import os, time; os.closerange(3, os.sysconf('SC_OPEN_MAX')); time.sleep(3600)",)

    with leaves_nothing(), pytest.raises(WorkerError, match="closed its connection"):
        WorkerPool(HangsUp(), LAYOUT, num_slots=2, num_workers=1, options=PoolOptions(start_timeout_seconds=60))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("starts_fresh", [False, True])
def test_a_parent_that_ignores_sigchld_still_replaces_dead_processes(starts_fresh: bool) -> None:
    done = run_script(f"""
        import os, signal, subprocess
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        from mpload.transport.batches import PoolOptions
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, assert_right, is_alive, pid_of, tasks, wait_until

        def sample(batch, place):  # a worker can wait for its own children
            if place == 0:
                assert subprocess.run(["sh", "-c", "exit 7"]).returncode == 7

        options = PoolOptions(starts_fresh={starts_fresh})
        with WorkerPool(Numbers(sample), LAYOUT, num_slots=3, num_workers=2, options=options) as pool:
            first, zygote = pid_of(pool, "mpload-worker-0"), pool.pids["mpload-zygote"]
            os.kill(first, signal.SIGKILL)
            assert wait_until(lambda: not is_alive(first))
            for number, batch in enumerate(pool.stream(tasks(20))):
                assert_right(batch.arrays, number)
                assert not batch.failures
            while pool.num_deaths < 1:
                pool._poll(0.1)
            assert pool.pids["mpload-zygote"] == zygote
            os.kill(zygote, signal.SIGKILL)
            assert wait_until(lambda: not is_alive(zygote))
            for number, batch in enumerate(pool.stream(tasks(20))):
                assert_right(batch.arrays, number)
            print(pool.num_deaths, pool._crew._history[-1][1])
    """)
    assert done.stderr == ""
    assert done.stdout == "2 the zygote died: cause unknown: this process ignores SIGCHLD\n"


@pytest.mark.processes
@pytest.mark.parametrize("made_by", [pytest.param("main thread", marks=pytest.mark.slow), "thread that ends"])
def test_stopped_processes_die_with_the_parent(made_by: str) -> None:
    script = f"""
        import threading
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, pid_of, tasks

        pools = []
        def make():
            pools.append(WorkerPool(Numbers(sleep_seconds=0.01), LAYOUT, num_slots=4, num_workers=2))

        if {made_by!r} == "main thread":
            make()
        else:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        for worker in range(2):
            pid_of(pools[0], f"mpload-worker-{{worker}}")
        for number, batch in enumerate(pools[0].stream(tasks(10**6))):
            if number == 5:
                print(*pools[0].pids.values(), flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    try:
        assert len(pids) == 3
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        process.stdout.close()
        assert wait_until(lambda: not any(is_alive(pid) for pid in pids), 5.0)
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.processes
def test_a_pool_outlives_the_thread_that_made_it() -> None:
    with leaves_nothing():
        before = threading.active_count()
        pools: list[WorkerPool] = []

        def make() -> None:
            pools.append(WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=2))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        with pools.pop() as pool:
            zygote = pool.pids["mpload-zygote"]
            pid_of(pool, "mpload-worker-1")
            for number, batch in enumerate(pool.stream(tasks(50))):
                assert_right(batch.arrays, number)
            assert (pool.num_deaths, pool.pids["mpload-zygote"]) == (0, zygote)
            del batch
        del pool
        assert wait_until(lambda: threading.active_count() == before)


def test_a_zygote_that_cannot_be_launched_in_a_thread_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(_: ZygoteProcess, control_fd: int) -> None:
        raise FileNotFoundError(2, "No such file or directory", "python")

    monkeypatch.setattr(ZygoteProcess, "_launch", launch)
    caught: list[BaseException] = []

    def make() -> None:
        try:
            WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=2)
        except WorkerError as error:
            caught.append(error)

    with leaves_nothing():
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    assert "workers cannot start: No such file or directory" in str(caught.pop())


def test_threads_may_end_while_their_names_are_read() -> None:
    end = threading.Event()

    def churn() -> None:
        while not end.is_set():
            threading.Thread(target=int).start()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(1000):
            assert thread_names()
    finally:
        end.set()
        thread.join()


def test_an_embedded_python_is_started_as_the_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", None)
    monkeypatch.setattr(spawn, "_python_exe", b"/opt/python")
    assert launch._interpreter() == "/opt/python"
    monkeypatch.setattr(spawn, "_python_exe", None)
    with pytest.raises(RefusedError, match=r"sys\.executable is None, so there is no Python to start them with"):
        launch._interpreter()


def test_an_output_without_flush_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", object())
    flush_output()
