"""The judgement of assumed figures, as `mpload plan` uses it: worked examples from practice, and laws."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError
from mpload.judgement.facts import Cost, Environment, Facts, Job, ReadRate, Samples, StorageSpeed, Temperature
from mpload.judgement.remedies import remedies
from mpload.judgement.verdict import judge
from mpload.units import KIB

rates = st.floats(1, 1e9)


def assumed(
    *,
    reads: float | None = None,
    bandwidth: float | None = None,
    cores: int | None = None,
    core_seconds: float = 0.0,
    sample_bytes: float | None = None,
    **job: Any,
) -> Facts:
    """Return what a user tells `mpload plan`."""
    known = () if reads is None else (ReadRate(temperature=Temperature.COLD, concurrency=1, samples_per_second=reads),)
    return Facts(
        job=Job(**{"batch_size": 100, "step_seconds": 0.1, **job}),
        samples=Samples(mean_bytes=sample_bytes),
        storage=StorageSpeed(rates=known, bytes_per_second=bandwidth, reads_per_worker=2),
        environment=Environment(usable_cores=cores),
        decode=Cost(cpu_seconds=core_seconds),
    )


plans = st.builds(
    assumed,
    reads=rates,
    bandwidth=rates,
    cores=st.integers(1, 1000),
    core_seconds=st.floats(1e-6, 10),
    sample_bytes=st.floats(1, 1e8),
    batch_size=st.integers(1, 1 << 16),
    step_seconds=st.floats(1e-3, 100),
    num_gpus=st.integers(1, 1000),
    num_jobs=st.integers(1, 10),
)


def needs(**job: Any) -> dict[str, float | None]:
    return {stage.name: stage.need for stage in judge(assumed(**job)).stages}


def shares(facts: Facts) -> dict[str, float]:
    return {stage.name: stage.share for stage in judge(facts).stages if stage.share is not None}


def test_a_v100_that_trains_resnet50_needs_1471_images_a_second() -> None:
    assert needs(batch_size=128, step_seconds=0.087)["reads"] == pytest.approx(1471, abs=0.5)


def test_four_v100s_need_5885_reads_and_367_mb_a_second() -> None:
    four = needs(batch_size=128, step_seconds=0.087, num_gpus=4, sample_bytes=64_000)
    assert four["reads"] == pytest.approx(5885, abs=0.5)
    assert four["bandwidth"] is not None
    assert 367e6 < four["bandwidth"] < 377e6


@pytest.mark.parametrize(
    ("job", "num_reads"),
    [
        ({"batch_size": 64, "step_seconds": 2, "num_jobs": 5, "sample_bytes": 500_000}, 640),
        ({"batch_size": 64, "step_seconds": 2, "num_jobs": 10, "sample_bytes": 500_000}, 1280),
        ({"batch_size": 256, "step_seconds": 0.2, "num_jobs": 5, "sample_bytes": 64_000}, 25_600),
        ({"batch_size": 256, "step_seconds": 0.2, "num_jobs": 10, "sample_bytes": 64_000}, 51_200),
    ],
)
def test_experiments_need_as_many_reads_as_they_take_samples(job: Any, num_reads: int) -> None:
    found = needs(num_gpus=4, **job)
    assert found["reads"] == pytest.approx(num_reads)
    assert found["bandwidth"] == pytest.approx(num_reads * job["sample_bytes"])


@given(plans)
def test_remedies_gain_no_more_than_the_need_and_name_the_stage_that_falls_short(facts: Facts) -> None:
    met = shares(facts)
    found = remedies(facts, judge(facts))
    assert not found or min(met.values()) < 1
    for remedy in found:
        assert 1.1 <= remedy.gain <= 1 / min(met.values()) * (1 + 1e-9)


def test_a_cached_share_reduces_the_reads_to_the_rate_of_the_storage() -> None:
    facts = assumed(reads=250)
    found = remedies(facts, judge(facts))
    assert "mpload pack" in found[0].text
    assert "Cache 75% of the samples" in found[1].text
    assert [remedy.gain for remedy in found] == [4, 4]


@given(plans)
def test_a_cache_gains_what_it_takes_off_reads_and_bandwidth_alike(facts: Facts) -> None:
    for remedy in remedies(facts, judge(facts)):
        if (found := re.search(r"fraction=([0-9.]+)", remedy.text)) is not None:
            before, after = (min(shares(each).values()) for each in (facts, replace(facts, kept_share=float(found[1]))))
            assert remedy.gain == pytest.approx(after / before, rel=1e-6)


def test_reads_and_bandwidth_that_fall_short_alike_are_relieved_together_by_a_cache() -> None:
    facts = assumed(batch_size=1000, step_seconds=1, sample_bytes=100_000, reads=190, bandwidth=20e6)
    cache = next(each for each in remedies(facts, judge(facts)) if "Cache 81% of the samples" in each.text)
    assert cache.gain == pytest.approx(5.3, abs=0.05)


@given(plans)
def test_jobs_share_the_storage_but_not_the_cores(facts: Facts) -> None:
    alone, together = (
        {stage.name: stage.need for stage in judge(each).stages}
        for each in (replace(facts, job=replace(facts.job, num_jobs=1)), facts)
    )
    factors = {"reads": facts.job.num_jobs, "bandwidth": facts.job.num_jobs, "cores": 1}
    assert together == pytest.approx({name: (alone[name] or 0) * factor for name, factor in factors.items()})


def test_unknown_rates_limit_nothing() -> None:
    facts = assumed(sample_bytes=64 * KIB)
    verdict = judge(facts)
    assert [stage.have for stage in verdict.stages] == [None] * 3
    assert remedies(facts, verdict) == []


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_number_that_is_not_positive_is_refused_by_name(value: float) -> None:
    with pytest.raises(ArgumentError, match="step_seconds must be positive, got"):
        Job(batch_size=1, step_seconds=value)
    with pytest.raises(ArgumentError, match="usable_cores must be positive, got"):
        Environment(usable_cores=value)


@pytest.mark.processes
def test_the_command_shows_the_need_next_to_the_available_rate() -> None:
    command = [sys.executable, "-m", "mpload", "plan", "--batch-size", "128", "--step-time", "0.087", "--gpus", "4"]
    options = ["--sample-size", "64KB", "--iops", "2000", "--cores", "16", "--core-us", "1500"]
    shown = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "5,885 reads/s" in shown
    assert "2,000 reads/s" in shown
    assert "1. Pack the files into shards" in shown
    told = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(told.stdout)["stages"][0]["share"] == pytest.approx(2000 / 5885, rel=1e-3)
