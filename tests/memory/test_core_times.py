"""Tests of what the kernel says about the time of processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mpload.memory.core_times import CoreShares, CoreTimes, core_shares, read_core_times, read_core_times_of

BUSY = "print(flush=True)\nwhile True: pass"
ASLEEP = "import time\nprint(flush=True)\nwhile True: time.sleep(0.01)"
SPAN_SECONDS = 0.5

needs_schedstat = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel has no schedstat")


@contextmanager
def running(*programs: str) -> Iterator[list[int]]:
    """Run Python programs on one core, and yield their process ids as soon as all have begun."""
    core = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        processes = []
        for program in programs:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE))
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {core})
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in processes]


def shares_of(*programs: str) -> list[CoreShares]:
    with running(*programs) as pids:
        before = read_core_times_of(pids)
        time.sleep(SPAN_SECONDS)
        shares = core_shares(before, read_core_times_of(pids))
        return [shares[pid] for pid in pids]


@pytest.mark.processes
def test_process_that_sleeps_is_told_from_one_that_computes() -> None:
    busy, asleep = shares_of(BUSY, ASLEEP)
    assert busy.sleeping < 0.2
    assert asleep.running < 0.2
    assert asleep.sleeping > busy.sleeping
    assert busy.seconds >= SPAN_SECONDS


@pytest.mark.processes
@needs_schedstat
def test_processes_that_share_a_core_wait_for_it_and_do_not_sleep() -> None:
    for share in shares_of(BUSY, BUSY, BUSY):
        assert share.running < 0.7
        assert share.delayed > 0.3
        assert share.sleeping < 0.2


@pytest.mark.parametrize("has_clock", [True, False])
def test_time_of_threads_that_have_ended_is_counted(has_clock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_clock:
        monkeypatch.setattr(sys, "platform", "other")
    before = read_core_times(os.getpid())
    used: list[float] = []
    thread = threading.Thread(target=lambda: used.append(compute(seconds=0.3)))
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():  # it ends a little after it was joined
        time.sleep(0.01)
    after = read_core_times(os.getpid())
    assert before is not None
    assert after is not None
    assert after.running_seconds - before.running_seconds > used[0] - 0.05  # psutil counts in steps of 10 ms


def compute(*, seconds: float) -> float:
    """Use a core for this long. Return how long this thread has used it."""
    while time.thread_time() < seconds:
        pass
    return time.thread_time()


@pytest.mark.processes
def test_process_that_has_ended_is_left_out() -> None:
    with running(ASLEEP) as pids:
        before = read_core_times_of(pids)
    after = read_core_times_of(pids)
    assert before
    assert not after
    assert not core_shares(before, after)


def test_shares_are_never_negative_when_a_thread_ends() -> None:
    before = CoreTimes(at_seconds=0.0, running_seconds=5.0, delayed_seconds=2.0)
    after = CoreTimes(at_seconds=2.0, running_seconds=3.0, delayed_seconds=1.0)
    assert core_shares({1: before}, {1: after}) == {1: CoreShares(seconds=2.0, running=0.0, delayed=0.0)}
