"""Stopped processes, lost answers and lost wake-ups delay the pool only briefly, and idle workers are not stuck."""

import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest

from mpload.transport.batches import PoolOptions
from mpload.transport.pool import WorkerPool
from tests.support.transport_kills import check_stream
from tests.support.transport_works import LAYOUT, Numbers, are_asleep, assert_right, is_alive, pid_of, tasks, wait_until

pytestmark = pytest.mark.processes


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


def test_a_lost_answer_stalls_the_pool_only_briefly() -> None:
    with WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=2) as pool:
        pool.submit(tasks(1)[0])
        answers = pool._inbox._ours
        assert select.select([answers], [], [], 60)[0]
        assert answers.recv(1 << 16)
        assert_right(pool.next().arrays, 0)


def test_a_worker_that_hangs_in_open_is_replaced(tmp_path: Path) -> None:
    class HangsOnce(Numbers):
        def open(self, worker: int) -> None:
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
