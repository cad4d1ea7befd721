"""Statistics of a loader."""

import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import MPDataset, MPLoader, PoolOptions, RandomResizedCrop, Topology, WorkerError, build_index
from mpload.samples import counts
from mpload.telemetry.counting import Telemetry
from mpload.telemetry.latencies import Latencies
from mpload.telemetry.stats import LoaderStats, Stage, Timings, timings_of
from mpload.transport.messages import Tally, sum_of
from mpload.units import MIB
from tests.support.decoders import add_noise
from tests.support.map_styles import Killing, Sleeping, Tuples

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@given(st.lists(st.floats(1e-6, 1000), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_a_quantile_is_at_most_8_percent_off(seconds: list[float], share: float) -> None:
    latencies = Latencies()
    for each in seconds:
        latencies.add(each)
    exact = sorted(seconds)[max(0, -(-len(seconds) * round(share * 100) // 100) - 1)]
    assert exact / 1.08 <= latencies.quantile_seconds(share) <= exact * 1.08


def test_the_limiting_stage_is_the_one_that_takes_most_of_the_workers_time() -> None:
    def limit(wait_seconds: float = 5.0, num_workers: int = 2, **milliseconds: int) -> Stage:
        timings = Timings(**{f"{stage}_ns": each * 10**6 for stage, each in milliseconds.items()})
        stats = LoaderStats(
            num_batches=10,
            num_samples=80,
            num_workers=num_workers,
            wait_seconds=wait_seconds,
            elapsed_seconds=10,
            timings=timings,
        )
        return stats.limit

    assert limit(wait_seconds=0.4, read=19_000, total=19_500) is Stage.CONSUMER
    assert limit(read=15_000, decode=2_000, total=19_000) is Stage.READ
    assert limit(read=2_000, decode=15_000, total=19_000) is Stage.DECODE
    assert limit(read=2_000, transform=15_000, total=19_000) is Stage.TRANSFORM
    assert limit(read=2_000, decode=5_000, total=19_000) is Stage.TRANSPORT
    assert limit(read=4_000, total=5_000) is Stage.TRANSPORT  # workers were idle
    assert limit(read=4_000, total=5_000, num_workers=0) is Stage.READ


def test_the_counters_of_a_work_have_the_same_names_in_the_statistics() -> None:
    for name in counts.__all__:
        tally = Tally(num_samples=1)
        tally.counts[getattr(counts, name)] = 7
        timings = timings_of(sum_of([tally, tally]))
        counted = {field: value for field, value in asdict(timings).items() if value}
        field = name.lower() if name.endswith(("_NS", "_BYTES")) else f"num_{name.lower()}"
        assert counted == {"num_samples": 2, field: 14}


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("stats.txt"))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.new_interpreters
@needs_linux
@pytest.mark.parametrize("num_workers", [0, 2])
def test_stats_add_up(photos: Path, num_workers: int) -> None:
    dataset = MPDataset(
        photos, decode=RandomResizedCrop(64), transform=add_noise, batch_size=4, topology=Topology()
    )  # fmt: skip
    with MPLoader(dataset, num_workers=num_workers) as loader:
        batches = list(loader)
        stats = loader.stats()
        assert (stats.num_batches, stats.num_samples, stats.num_workers) == (6, 24, num_workers)
        assert sum(stats.latencies.counts) == 6
        assert 0 < stats.wait_seconds <= stats.elapsed_seconds
        timings = stats.timings
        assert min(timings.read_ns, timings.decode_ns, timings.transform_ns) > 0
        assert timings.read_ns + timings.decode_ns + timings.transform_ns < timings.total_ns
        assert timings.num_samples == 24
        memory = stats.memory
        assert memory.total_bytes == memory.slots_bytes + memory.zygote_bytes + memory.workers_bytes
        if num_workers:
            batch_bytes = 4 * 3 * 64 * 64 * 4
            assert batch_bytes < memory.slots_bytes < 7 * batch_bytes
            assert 1 * MIB < memory.zygote_bytes < 100 * MIB
            assert 1 * MIB < memory.workers_bytes < 60 * MIB
        assert "24 samples in 6 batches" in str(stats)
        assert f"by {num_workers} workers" in str(stats)
        del batches
    assert loader.stats().num_samples == 24


class _Slow:
    """A writer that takes its time."""

    def write(self, span: Any, total: Any) -> None:
        time.sleep(0.03)


@pytest.mark.slow
@pytest.mark.processes
@needs_linux
@pytest.mark.parametrize("num_workers", [0, 2])
def test_waiting_is_what_a_clock_around_the_loader_says(num_workers: int) -> None:
    waits = []
    with MPLoader(Sleeping(120), batch_size=2, num_workers=num_workers, topology=Topology()) as loader:
        for _ in range(3):
            loader.stats_to(_Slow(), every_seconds=0.1)
        start = time.perf_counter()
        batches, is_over = iter(loader), False
        while not is_over:
            asked = time.perf_counter()
            is_over = next(batches, None) is None
            waits.append(time.perf_counter() - asked)
            time.sleep(0.01)
        elapsed = time.perf_counter() - start
        stats = loader.stats()
    assert stats.wait_fraction == pytest.approx(sum(waits) / elapsed, abs=0.02)
    in_order = sorted(waits[:-1])
    for share in (0.5, 0.99):
        exact = in_order[math.ceil(share * len(in_order)) - 1]
        assert stats.latencies.quantile_seconds(share) == pytest.approx(exact, rel=0.15)


@pytest.mark.processes
@needs_linux
def test_a_snapshot_of_the_statistics_does_not_change() -> None:
    with MPLoader(Tuples(), batch_size=5, num_workers=1, topology=Topology()) as loader:
        first = next(iter(loader))
        stats = loader.stats()
        before = str(stats)
        list(loader)
        assert str(stats) == before
        assert loader.stats().num_batches == stats.num_batches + 5
        del first


@pytest.mark.processes
@needs_linux
def test_the_counts_are_still_there_after_a_death_has_ended_a_run(tmp_path: Path) -> None:
    options = PoolOptions(max_restarts=0)
    dataset = Killing(tmp_path / "killed")
    with MPLoader(dataset, batch_size=4, num_workers=1, topology=Topology(), options=options) as loader:
        with pytest.raises(WorkerError, match="max_restarts=0"):
            list(loader)
        assert loader.stats().num_samples > 0
        assert loader.stats().memory.slots_bytes == 0


def test_listeners_that_are_due_together_share_one_snapshot() -> None:
    telemetry, seen = Telemetry(made_here=Tally(), with_page=False), list[LoaderStats]()
    for _ in range(3):
        telemetry.listen(seen.append, every_seconds=1e-6)
    time.sleep(0.001)
    telemetry.notify(None, num_workers=0)
    assert len(seen) == 3
    assert seen[0] is seen[1] is seen[2]
