"""The needs of a job: worked examples from practice, and laws of the arithmetic."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError
from mpload.tools.demand import Demand, Machine, remedies, stages
from mpload.units import KIB

rates = st.floats(1, 1e9)
demands = st.builds(
    Demand,
    batch_size=st.integers(1, 1 << 16),
    step_seconds=st.floats(1e-3, 100),
    num_gpus=st.integers(1, 1000),
    num_jobs=st.integers(1, 10),
    sample_bytes=st.floats(1, 1e8),
)
machines = st.builds(
    Machine,
    reads_per_second=rates,
    bytes_per_second=rates,
    num_cores=st.integers(1, 1000),
    core_seconds=st.floats(1e-6, 10),
)


def test_a_v100_that_trains_resnet50_needs_1471_images_a_second() -> None:
    assert Demand(batch_size=128, step_seconds=0.087).samples_per_second == pytest.approx(1471, abs=0.5)


def test_four_v100s_need_5885_reads_and_367_mb_a_second() -> None:
    four = Demand(batch_size=128, step_seconds=0.087, num_gpus=4, sample_bytes=64_000)
    assert four.samples_per_second == pytest.approx(5885, abs=0.5)
    assert four.bytes_per_second is not None
    assert 367e6 < four.bytes_per_second < 377e6


@pytest.mark.parametrize(("num_jobs", "num_reads"), [(5, 640), (10, 1280)])
def test_experiments_with_slow_steps_and_large_files_need_few_reads(num_jobs: int, num_reads: int) -> None:
    demand = Demand(batch_size=64, step_seconds=2, num_gpus=4, num_jobs=num_jobs, sample_bytes=500_000)
    assert demand.samples_per_second == num_reads
    assert demand.bytes_per_second == num_reads * 500_000


@pytest.mark.parametrize(("num_jobs", "num_reads", "gigabytes"), [(5, 25_600, 1.6), (10, 51_200, 3.2)])
def test_experiments_with_fast_steps_need_many_reads(num_jobs: int, num_reads: int, gigabytes: float) -> None:
    demand = Demand(batch_size=256, step_seconds=0.2, num_gpus=4, num_jobs=num_jobs, sample_bytes=64_000)
    assert demand.samples_per_second == num_reads
    assert demand.bytes_per_second == pytest.approx(gigabytes * 1e9, rel=0.03)


@given(demands, machines)
def test_remedies_exist_if_a_stage_falls_short_and_gain_no_more_than_the_need(demand: Demand, machine: Machine) -> None:
    shares = [share for stage in stages(demand, machine) if (share := stage.share) is not None]
    found = remedies(demand, machine)
    assert bool(found) == (min(shares) < 1)
    for remedy in found:
        assert 1 <= remedy.gain <= 1 / min(shares) * (1 + 1e-9)


def test_a_cached_share_reduces_the_reads_to_the_rate_of_the_storage() -> None:
    demand = Demand(batch_size=100, step_seconds=0.1)
    found = remedies(demand, Machine(reads_per_second=250))
    assert "at least 4 samples at once" in found[0].text
    assert "Cache 75% of the samples" in found[1].text
    assert [remedy.gain for remedy in found] == [4, 4]


@given(demands, machines)
def test_a_cache_gains_what_it_takes_off_reads_and_bandwidth_alike(demand: Demand, machine: Machine) -> None:
    for remedy in remedies(demand, machine):
        if (found := re.search(r"fraction=([0-9.]+)", remedy.text)) is not None:
            left = max(1e-290, 1 - float(found[1]))
            assert machine.reads_per_second is not None
            assert machine.bytes_per_second is not None
            after = replace(
                machine,
                reads_per_second=machine.reads_per_second / left,
                bytes_per_second=machine.bytes_per_second / left,
            )
            before_share, after_share = (
                min(stage.share for stage in stages(demand, each) if stage.share is not None)
                for each in (machine, after)
            )
            assert remedy.gain == pytest.approx(after_share / before_share)


def test_reads_and_bandwidth_that_fall_short_alike_are_relieved_together_by_a_cache() -> None:
    demand = Demand(batch_size=1000, step_seconds=1, sample_bytes=100_000)
    found = remedies(demand, Machine(reads_per_second=190, bytes_per_second=20e6))
    assert [round(remedy.gain, 1) for remedy in found] == [5.3]
    assert "Cache 81% of the samples" in found[0].text


@given(demands, machines)
def test_jobs_share_the_storage_but_not_the_cores(demand: Demand, machine: Machine) -> None:
    alone = {stage.name: stage.need for stage in stages(replace(demand, num_jobs=1), machine)}
    together = {stage.name: stage.need for stage in stages(demand, machine)}
    factors = {"reads": demand.num_jobs, "bandwidth": demand.num_jobs, "cores": 1}
    assert together == pytest.approx({name: need * factors[name] for name, need in alone.items()})


def test_unknown_rates_limit_nothing() -> None:
    demand = Demand(batch_size=100, step_seconds=0.1, sample_bytes=64 * KIB)
    assert [stage.have for stage in stages(demand, Machine())] == [None] * 3
    assert remedies(demand, Machine()) == []


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_number_that_is_not_positive_is_refused_by_name(value: float) -> None:
    with pytest.raises(ArgumentError, match="step_seconds must be positive, got"):
        Demand(batch_size=1, step_seconds=value)
    with pytest.raises(ArgumentError, match="reads_per_second must be positive, got"):
        Machine(reads_per_second=value)
    with pytest.raises(ArgumentError, match="Give both or neither"):
        Machine(num_cores=4)


@pytest.mark.processes
def test_the_command_shows_the_need_next_to_the_available_rate() -> None:
    command = [sys.executable, "-m", "mpload", "plan", "--batch-size", "128", "--step-time", "0.087", "--gpus", "4"]
    options = ["--sample-size", "64KB", "--iops", "2000", "--cores", "16", "--core-us", "1500"]
    shown = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "5,885 reads/s" in shown
    assert "2,000 reads/s" in shown
    assert "1. Read at least 3 samples at once" in shown
    told = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(told.stdout)["stages"][0]["share"] == pytest.approx(2000 / 5885, rel=1e-3)
