"""The crew: which workers have exceeded their time limit. The board is real; the test drives the zygote and clock."""

import errno
import sys
from contextlib import closing
from itertools import count
from typing import cast

import pytest

from mpload.errors import MploadWarning
from mpload.transport.batches import PoolOptions
from mpload.transport.board import ParentBoard, WorkerBoard
from mpload.transport.crew import Crew, ObservedClock
from mpload.transport.launch import WorkerEnded, WorkerForked, WorkerRefused, ZygoteProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


class ScriptedZygote:
    """Reports the events that the test gives it, and records which workers it was asked to fork and to kill."""

    def __init__(self) -> None:
        self.events: list[WorkerForked | WorkerRefused | WorkerEnded] = []
        self.forked: list[int] = []
        self.killed: list[int] = []

    def fork(self, worker: int) -> bool:
        self.forked.append(worker)
        return True

    def kill_worker(self, worker: int) -> bool:
        self.killed.append(worker)
        return True

    def read(self) -> list[WorkerForked | WorkerRefused | WorkerEnded]:
        events, self.events = self.events, []
        return events

    def is_dead(self) -> bool:
        return False


def test_a_worker_whose_number_was_refused_before_has_the_full_time_to_start() -> None:
    with closing(ParentBoard(num_plain_entries=4)) as board:
        zygote = ScriptedZygote()
        crew = Crew(
            cast("ZygoteProcess", zygote),
            board,
            options=PoolOptions(sample_timeout_seconds=3.0, start_timeout_seconds=3.0, max_restarts=9),
            count_oom_kills=None,
        )
        seconds = count()
        crew._clock = ObservedClock(lambda: float(next(seconds)))
        crew.resize(2)
        crew.check()
        idle = WorkerBoard(board.fds)
        idle.use_row(0)
        idle._cells[idle._row] = 0
        zygote.events = [WorkerForked(worker=0, pid=1), WorkerRefused(worker=1, error_number=errno.EAGAIN)]
        with pytest.warns(MploadWarning, match="Continuing with 1 of 2"):
            crew.check()
        for _ in range(5):
            crew.check()
        crew.resize(2)
        zygote.events = [WorkerForked(worker=1, pid=2)]
        crew.check()
        assert zygote.forked == [0, 1, 1]
        assert zygote.killed == []
        for _ in range(5):  # now it is stuck
            crew.check()
        assert zygote.killed == [1]


def test_time_without_observations_does_not_count() -> None:
    now = 100.0
    clock = ObservedClock(lambda: now)
    now += 0.5
    assert clock.observe() == 0.5
    now += 3600
    assert clock.observe() == 1.5
