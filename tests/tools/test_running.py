"""What other processes see of a running job, held against clocks of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from mpload.memory.contention import read_pressure
from mpload.memory.core_times import CoreTimes
from mpload.telemetry.page import page_facts
from mpload.telemetry.stats import LoaderStats, Timings, WorkerStats
from mpload.tools.running import Reading, facts_between, find_job

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel has no schedstat")

NUM_THREADS = 3
JOB = f"""
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from mpload import MPLoader, Topology

class Hashes:
    threads = None
    def __len__(self): return 10**9
    def __getitem__(self, number):
        self.threads = self.threads or ThreadPoolExecutor({NUM_THREADS})
        return list(self.threads.map(lambda _: sha256(bytes(1 << 22)).digest()[0], range({NUM_THREADS})))

if __name__ == "__main__":
    with MPLoader(Hashes(), batch_size=1, num_workers=1, topology=Topology()) as loader:
        for batch in loader:
            print("running", flush=True)
"""
BUSY = "print('running', flush=True)\nwhile True: pass"


@contextmanager
def running_on_one_core(*programs: str) -> Iterator[list[int]]:
    core = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        pids = []
        for program in programs:
            command = ["taskset", "-c", str(core), sys.executable, "-c", program]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            pids.append(process.pid)
        yield pids


def worker_of(pid: int) -> int:
    """Return the only worker of a job, as soon as its loader has named it."""
    for _ in range(600):
        for page in find_job(pid).pages.values():
            for worker in page["stats"]["workers"]:
                return int(worker["pid"])
        time.sleep(0.1)
    raise TimeoutError("the loader has named no worker for 60 s")


def cpu_seconds(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


@pytest.mark.slow
@pytest.mark.processes
def test_share_without_a_core_is_that_of_all_threads_of_the_workers() -> None:
    with running_on_one_core(JOB, BUSY, BUSY) as (pid, *_):
        worker = worker_of(pid)
        before = find_job(pid)
        used, started = cpu_seconds(worker), time.monotonic()
        time.sleep(2.0)
        after = find_job(pid)
        used, seconds = cpu_seconds(worker) - used, time.monotonic() - started
        ((_, facts),) = facts_between(before, after).values()
        share = facts.environment.contention.delayed_share
        # The threads nearly always have work, so where they do not run, they lack a core.
        assert share == pytest.approx(1 - used / (NUM_THREADS * seconds), abs=0.15)
        assert share < 0.97


def reading(*, page_seconds: float, kernel_seconds: float) -> Reading:
    """Return what is seen of a worker that is always busy, and has a core for half of the time."""
    pid = os.getpid()
    worker = WorkerStats(name="mpload-worker-0", pid=pid, timings=Timings(total_ns=int(page_seconds * 1e9)))
    stats = LoaderStats(num_workers=1, elapsed_seconds=page_seconds, timings=worker.timings, workers=(worker,))
    half = kernel_seconds / 2
    return Reading(
        pages={(pid, 0): page_facts(stats) | {"monotonic_seconds": page_seconds}},
        times={pid: CoreTimes(at_seconds=kernel_seconds, running_seconds=half, delayed_seconds=half)},
        pressure=read_pressure(own_seconds=0.0),
        refaulted_bytes=0,
    )


@pytest.mark.parametrize("page_seconds", [1.0, 2.0, 4.0])
def test_share_without_a_core_does_not_depend_on_when_the_page_was_written(page_seconds: float) -> None:
    before = reading(page_seconds=0.0, kernel_seconds=0.0)
    ((_, facts),) = facts_between(before, reading(page_seconds=page_seconds, kernel_seconds=2.0)).values()
    assert facts.environment.contention.delayed_share == pytest.approx(0.5)
