"""Ways to kill the processes of a pool, and a check that its batches stay right."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpload.transport.batches import PoolOptions
from mpload.transport.pool import WorkerPool
from tests.support.threads import in_background
from tests.support.transport_works import assert_right, tasks

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

    def run(end: threading.Event) -> None:
        num_batches = -1
        while not end.wait(every_seconds + random.uniform(0, jitter_seconds)):
            if pool.stats.num_batches > num_batches:
                num_batches = pool.stats.num_batches
                disturb(dict(pool.pids))

    with in_background(run):
        yield


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
