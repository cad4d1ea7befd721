"""How the number of workers of a running loader is measured and set."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from mpload import MPLoader, Topology
from mpload.loader.scaler import Scaler
from mpload.memory.core_times import CoreTimes
from mpload.memory.machine import num_usable_cores
from mpload.telemetry.counting import Waited
from mpload.transport.batches import PoolStats
from mpload.transport.board import WorkerRow
from mpload.transport.chunks import Chunk
from mpload.transport.progress import Progress, progress_of
from tests.support.map_styles import Computing, Sleeping, Tuples

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
MANY = 1 << 20


@dataclass
class StillPool:
    """A pool without processes."""

    num_workers: int = 2
    num_samples: int = 0
    num_opening: int = 0
    refuses_beyond: int = MANY
    pids: Mapping[str, int] = field(default_factory=dict)
    num_resizes: int = 0

    def progress(self) -> Progress:
        return Progress(num_samples=self.num_samples, occupied_seconds=0.0, num_opening=self.num_opening, num_idle=0)

    def resize(self, num_workers: int) -> None:
        self.num_resizes += 1
        self.num_workers = min(num_workers, self.refuses_beyond)
        self.pids = {str(number): number for number in range(self.num_workers + 1)}


@dataclass
class Driver:
    """Polls a scaler every quarter of a second of its own clock, while consumer and workers wait all the time."""

    pool: StillPool
    affordable: int = MANY
    now: float = 100.0
    paused: float = 0.0
    is_known: bool = True
    """Whether the kernel tells how the workers spend their time."""
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool.resize(self.pool.num_workers)
        self.scaler = Scaler(
            self.pool, num_cores=2, max_workers=64, read_times=self.read_times, monotonic=lambda: self.now
        )

    def read_times(self, pids: Iterable[int]) -> dict[int, CoreTimes]:
        still = CoreTimes(at_seconds=self.now, running_seconds=1.0, delayed_seconds=0.0)
        return dict.fromkeys(pids, still) if self.is_known else {}

    def run(self, *, seconds: float, per_worker: float = 10.0) -> list[int]:
        """Let every worker make `per_worker` samples a second; return the numbers of workers so far."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            self.pool.num_samples += round(0.25 * per_worker * self.pool.num_workers)
            waited = Waited(wait_seconds=self.now - self.paused, elapsed_seconds=self.now - self.paused)
            wanted = self.scaler.check(waited, affordable=lambda: self.affordable)
            if wanted != self.pool.num_workers:
                self.pool.resize(wanted)
            self.seen.append(self.pool.num_workers)
        return self.seen


def test_workers_that_wait_are_doubled_until_the_limit() -> None:
    seen = Driver(StillPool()).run(seconds=30)
    assert sorted(set(seen)) == [2, 4, 8, 16, 32, 64]
    assert seen == sorted(seen)


def test_memory_limits_the_number() -> None:
    assert Driver(StillPool(), affordable=13).run(seconds=30)[-1] == 13


def test_more_workers_than_the_system_allows_are_not_asked_for_again() -> None:
    driver = Driver(StillPool(refuses_beyond=6))
    assert driver.run(seconds=30)[-1] == 6
    num_asked = driver.pool.num_resizes
    assert driver.run(seconds=30)[-1] == 6
    assert driver.pool.num_resizes == num_asked


def test_nothing_is_decided_while_workers_start() -> None:
    assert set(Driver(StillPool(num_opening=1)).run(seconds=30)) == {2}


def test_a_pause_between_iterations_is_no_evidence() -> None:
    driver = Driver(StillPool())
    for _ in range(40):
        driver.run(seconds=0.5)
        driver.now += 5
        driver.paused += 5
    assert set(driver.seen) == {2}


def test_nothing_is_decided_by_a_window_in_which_nothing_was_made() -> None:
    assert set(Driver(StillPool()).run(seconds=30, per_worker=0)) == {2}


def test_nothing_is_decided_if_the_kernel_does_not_tell_how_workers_spend_their_time() -> None:
    assert set(Driver(StillPool(), is_known=False).run(seconds=30)) == {2}


def test_progress_counts_the_finished_samples_of_unfinished_chunks() -> None:
    chunk = Chunk(batch=1, slot=0, first=16, last=32, task=())
    rows = {
        0: WorkerRow(serial=7, sample=20),  # four samples of its chunk
        1: WorkerRow(serial=8, sample=None),  # none yet
        2: WorkerRow(serial=99, sample=25),  # its chunk is not known
        3: WorkerRow(serial=-1, sample=None),
        4: WorkerRow(serial=0, sample=31),
        5: WorkerRow(serial=9, sample=16, waits_for_turn=True),
    }
    stats = PoolStats(num_made=100, busy_ns=2 * 10**9)
    assert progress_of(stats, rows, {7: chunk, 8: chunk, 9: chunk}) == Progress(
        num_samples=104, occupied_seconds=2.0, num_opening=1, num_idle=2
    )


class Changing(Dataset[Any]):
    """Samples that are computed at first, and waited for from sample `change` on."""

    def __init__(self, change: int) -> None:
        self._change = change

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index >= self._change:
            time.sleep(0.1)
        else:
            end = time.thread_time() + 0.002
            while time.thread_time() < end:
                pass
        return np.zeros(8), index


def workers_after(loader: MPLoader[Any], *, seconds: float, enough: Callable[[int], bool]) -> int:
    """Take batches until the number of workers is enough, or for so many seconds; return the number."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for batch in loader:
            del batch
            if time.monotonic() > end or enough(loader.num_workers):
                return loader.num_workers
    return loader.num_workers


@pytest.mark.processes
@needs_linux
def test_auto_adds_workers_that_wait() -> None:
    cores = num_usable_cores()
    with MPLoader(Sleeping(100_000), batch_size=8, topology=Topology()) as loader:
        assert loader.num_workers == loader.stats().num_workers == cores
        assert workers_after(loader, seconds=30, enough=lambda number: number >= 2 * cores) >= 2 * cores
        assert loader.stats().num_workers == loader.num_workers


@pytest.mark.slow
@needs_linux
def test_auto_reaches_many_workers_that_wait_even_if_a_batch_takes_long() -> None:
    """With two workers a batch takes 12.8 seconds: workers must be added while the first batch is awaited."""
    with MPLoader(Changing(0), batch_size=256, topology=Topology(), memory_budget="4GiB") as loader:
        first = time.monotonic()
        next(iter(loader))
        assert loader.num_workers >= 8
        assert time.monotonic() - first < 30
        assert workers_after(loader, seconds=40, enough=lambda number: number >= 32) >= 32


@pytest.mark.slow
@needs_linux
def test_auto_uses_one_worker_per_core_if_workers_are_cpu_bound() -> None:
    cores = num_usable_cores()
    with MPLoader(Computing(100_000), batch_size=8, topology=Topology()) as loader:
        assert workers_after(loader, seconds=5, enough=lambda number: number > cores) == cores


@pytest.mark.slow
@needs_linux
def test_auto_adds_workers_when_work_begins_to_wait_in_the_middle_of_an_epoch() -> None:
    cores = num_usable_cores()
    with MPLoader(Changing(1500 * cores), batch_size=16, topology=Topology(), shuffle=False) as loader:
        assert workers_after(loader, seconds=60, enough=lambda number: number >= 4 * cores) >= 4 * cores


@pytest.mark.processes
@needs_linux
def test_auto_has_no_more_workers_than_the_budget_allows() -> None:
    with MPLoader(Tuples(), batch_size=5, memory_budget="17MiB", topology=Topology()) as loader:
        assert loader.num_workers == 1
        assert len(list(loader)) == 5
