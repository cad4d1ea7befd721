"""Signals to the parent: after Ctrl-C, Ctrl-Z or its death, no worker is considered stuck and no process remains."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mpload.errors import WorkerError
from mpload.transport.pool import WorkerPool
from tests.support.programs import REPOSITORY
from tests.support.transport_works import LAYOUT, Numbers, assert_right, is_alive, leaves_nothing, tasks, wait_until

pytestmark = pytest.mark.processes


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


@pytest.mark.slow
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
    ("number", "starts_fresh"),
    [(signal.SIGKILL, False), (signal.SIGKILL, True), pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow)],
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


@pytest.mark.slow
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
