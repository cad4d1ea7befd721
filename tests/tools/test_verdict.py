"""The doctor's arithmetic, from findings to a verdict and remedies. Nothing is measured here."""

import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import open_index
from mpload.errors import ArgumentError
from mpload.index.index import sidecar_of
from mpload.tools.demand import Demand
from mpload.tools.doctor.examine import Diagnosis
from mpload.tools.doctor.facts import (
    Cost,
    Environment,
    Findings,
    Job,
    Progressive,
    ReadRate,
    Samples,
    StorageSpeed,
    Temperature,
    Trial,
)
from mpload.tools.doctor.lookup import lookup_cost
from mpload.tools.doctor.model import Limit, hit_share, predict
from mpload.tools.doctor.remedies import remedies
from mpload.tools.doctor.report import render_report
from mpload.tools.doctor.verdict import Bottleneck, judge
from mpload.units import GIB, KIB, MIB
from tests.support.index_texts import make_text

small = st.floats(1e-6, 0.1)
costs = st.builds(Cost, cpu_seconds=small, wait_seconds=st.one_of(st.just(0.0), small))
rates = st.builds(
    ReadRate,
    temperature=st.sampled_from(Temperature),
    concurrency=st.sampled_from([1, 4, 16]),
    samples_per_second=st.floats(1, 1e6),
    is_sequential=st.booleans(),
)
trials = st.builds(
    Trial,
    num_workers=st.integers(1, 8),
    batch_size=st.sampled_from([1, 8, 64]),
    samples_per_second=st.floats(1, 1e6),
    is_empty=st.booleans(),
)


@st.composite
def findings(draw: st.DrawFn) -> Findings:
    cores = draw(st.integers(1, 64))
    return Findings(
        job=Job(
            batch_size=draw(st.sampled_from([1, 8, 64, 256])),
            num_workers=draw(st.integers(1, 80)),
            step_seconds=draw(st.one_of(st.none(), st.floats(1e-4, 10))),
            num_gpus=draw(st.integers(1, 8)),
            num_jobs=draw(st.integers(1, 10)),
        ),
        samples=Samples(
            num_samples=draw(st.integers(1, 10**9)),
            num_measured=10,
            mean_bytes=draw(st.floats(1, 1e7)),
            output_bytes=draw(st.floats(1, 1e6)),
            cached_share=draw(st.one_of(st.none(), st.floats(0, 1))),
            num_shards=draw(st.integers(0, 100)),
        ),
        storage=StorageSpeed(
            rates=tuple(draw(st.lists(rates, max_size=8))),
            read=draw(costs),
            reads_per_worker=draw(st.sampled_from([1, 16])),
            packed_samples_per_second=draw(st.one_of(st.none(), st.floats(1, 1e6))),
        ),
        environment=Environment(
            usable_cores=cores,
            host_cores=cores + draw(st.integers(0, 64)),
            memory_limit_bytes=64 * GIB,
            memory_free_bytes=draw(st.integers(64 * MIB, 64 * GIB)),
            max_descriptors=draw(st.sampled_from([16, 64, 1024])),
            used_descriptors=8,
        ),
        decode=draw(costs),
        transform=draw(costs),
        lookup=draw(costs | st.just(Cost())),
        resized_decode=draw(st.one_of(st.none(), costs)),
        resized_bytes=draw(st.floats(1, 1e5)),
        progressive=draw(
            st.one_of(st.none(), st.builds(Progressive, share=st.floats(0.01, 1), slowdown=st.floats(0.5, 10)))
        ),
        trials=tuple(draw(st.lists(trials, max_size=4))),
    )


@given(findings())
def test_any_findings_have_a_verdict_and_a_remedy_gains_no_more_than_the_need(found: Findings) -> None:
    verdict = judge(found)
    for sentence in (verdict.headline, verdict.reason, verdict.advice_without_remedies.removesuffix(".")):
        assert re.fullmatch(r"[A-Z0-9].*[^.]", sentence)
        assert not re.search(r"\b1 \w+s\b(?<!us)(?<!ms)(?!/s)", sentence), sentence
    need = found.job.needed_rate
    advice = remedies(found, verdict)
    assert (verdict.bottleneck is Bottleneck.CONSUMER) == (verdict.samples_per_second >= need)
    if verdict.bottleneck is Bottleneck.CONSUMER:
        assert advice == []
    elif verdict.samples_per_second:
        assert all(1.1 <= remedy.gain <= need / verdict.samples_per_second * (1 + 1e-9) for remedy in advice)
    else:
        assert verdict.bottleneck in {Bottleneck.MEMORY, Bottleneck.DESCRIPTORS}
        assert advice
    for stage in verdict.stages:
        assert stage.share is None or 0 <= stage.share <= 1


@given(findings())
def test_all_bars_of_a_chart_have_the_same_linear_scale(found: Findings) -> None:
    verdict = judge(found)
    page = render_report(Diagnosis(findings=found, verdict=verdict, remedies=()), title="<i>")
    assert page.count("<i>") == 0
    assert all(0 <= float(width) <= 100.01 for width in re.findall(r'style="(?:width|left): ([\d.]+)%"', page))
    chart = page.partition("stage by stage")[2].partition("</ul>")[0]
    widths = [float(width) for width in re.findall(r'class="(?:good|short|first)" style="width: ([\d.]+)%"', chart)]
    haves = [stage.have for stage in verdict.stages if stage.have]
    slowest = min(zip(widths, haves, strict=False), key=lambda each: each[1], default=None)
    for width, have in zip(widths, haves, strict=False):
        assert slowest is not None
        assert width == pytest.approx(slowest[0] * slowest[1] / have, abs=0.02)


@given(findings(), st.integers(1, 16))
def test_more_of_anything_never_makes_a_job_slower(found: Findings, more: int) -> None:
    found = replace(found, trials=())
    before = predict(found).total
    environment = replace(found.environment, usable_cores=found.environment.usable_cores + more)
    assert predict(replace(found, environment=environment)).total >= before * (1 - 1e-9)
    faster = replace(
        found.storage,
        rates=tuple(replace(rate, samples_per_second=rate.samples_per_second * more) for rate in found.storage.rates),
    )
    assert predict(replace(found, storage=faster)).total >= before * (1 - 1e-9)
    assert predict(replace(found, transform=Cost())).total >= before * (1 - 1e-9)
    assert predict(replace(found, kept_share=0.5)).total >= before * (1 - 1e-9)
    roomy = replace(found, environment=replace(found.environment, memory_free_bytes=1 << 60))
    job = replace(found.job, num_workers=found.job.num_workers + more)  # in little memory, they displace the cache
    assert predict(replace(roomy, job=job)).total >= predict(roomy).total * (1 - 1e-9)


@given(st.lists(rates, min_size=1), st.lists(st.floats(0.1, 100), min_size=2))
def test_storage_is_not_slower_with_more_readers(measured: list[ReadRate], concurrencies: list[float]) -> None:
    storage = StorageSpeed(rates=tuple(measured), read=Cost())
    first = measured[0]
    given = [
        storage.rate(first.temperature, number, is_sequential=first.is_sequential) or 0.0
        for number in sorted(concurrencies)
    ]
    assert all(rate <= more * (1 + 1e-9) for rate, more in pairwise(given))
    assert (storage.rate(first.temperature, 16, is_sequential=first.is_sequential) or 0.0) >= first.samples_per_second


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8, 0.95])
def test_the_hit_rate_of_the_page_cache_equals_a_simulated_one(share: float) -> None:
    num, rng = 4000, np.random.default_rng(0)
    last = np.argsort(rng.permutation(num))  # the position of each sample in the previous epoch
    hits = 0.0
    this = rng.permutation(num)
    before = last[this]
    for place in range(0, num, 7):
        later = int(np.count_nonzero(last > before[place]))
        sooner = int(np.count_nonzero(before[:place] < before[place]))  # read in this epoch, not counted before
        hits += later + sooner < share * num
    assert hits / len(range(0, num, 7)) == pytest.approx(hit_share(share), abs=0.05)
    assert (hit_share(0.0), hit_share(1.0), hit_share(2.0)) == (0, 1, 1)


def _plain(*, num_workers: int = 4, step_seconds: float | None = 0.01, **changes: Any) -> Findings:
    """A job on a machine of 8 cores where everything is fast."""
    found = Findings(
        job=Job(batch_size=32, num_workers=num_workers, step_seconds=step_seconds),
        samples=Samples(num_samples=10**6, num_measured=99, mean_bytes=100 * KIB, output_bytes=150e3, cached_share=0.0),
        storage=StorageSpeed(
            rates=tuple(
                ReadRate(temperature=temperature, concurrency=at_once, samples_per_second=rate * at_once)
                for temperature, rate in ((Temperature.COLD, 2000), (Temperature.WARM, 20_000))
                for at_once in (1, 16)
            ),
            read=Cost(cpu_seconds=40e-6),
            reads_per_worker=16,
        ),
        environment=Environment(
            usable_cores=8,
            host_cores=8,
            memory_limit_bytes=256 * GIB,
            memory_free_bytes=250 * GIB,
            max_descriptors=1024,
            used_descriptors=10,
        ),
        decode=Cost(cpu_seconds=1e-3),
    )
    return replace(found, **changes)


def test_a_slow_training_step_is_not_limited_by_data_and_a_fast_one_is_limited_by_decoding() -> None:
    slow = judge(_plain())
    assert slow.bottleneck is Bottleneck.CONSUMER
    assert slow.headline == "Not limited by data: the training step is slower than the loader"
    assert slow.reason == "The loader delivers 3,846 samples/s, and training needs 3,200"
    fast = judge(_plain(num_workers=8, step_seconds=0.001))
    assert fast.bottleneck is Bottleneck.DECODE
    assert fast.reason == "Decoding takes 1.0 ms of a worker's 1.0 ms per sample"
    assert fast.samples_per_second == pytest.approx(8 / 1.04e-3)


def test_too_few_workers_are_reported_with_a_sufficient_number() -> None:
    found = _plain(num_workers=1)
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.WORKERS
    assert verdict.reason == "1 worker can make 962 samples/s, and cannot use all 8 cores"
    first = remedies(found, verdict)[0]
    assert first.num_workers == 4  # 3,200 samples/s at 1.04 ms
    assert first.text == "Use 4 workers instead of 1: num_workers=4"
    assert first.gain == pytest.approx(3200 * 1.04e-3)


def test_several_jobs_share_the_storage_and_several_gpus_the_cores() -> None:
    alone = predict(_plain())
    shared = predict(_plain(job=Job(batch_size=32, num_workers=4, step_seconds=0.01, num_jobs=10)))
    assert shared.storage == pytest.approx(alone.storage / 10)
    assert shared.workers == alone.workers
    four = Job(batch_size=32, num_workers=4, step_seconds=0.01, num_gpus=4)
    assert predict(_plain(job=four)).limit is Limit.CORES
    demand = Demand(batch_size=32, step_seconds=0.01, num_gpus=4)
    assert four.needed_rate == demand.samples_per_second


def test_a_measured_gain_replaces_the_estimate() -> None:
    found = _plain(num_workers=1)
    tried = tuple(
        Trial(num_workers=number, batch_size=32, samples_per_second=rate) for number, rate in ((1, 900.0), (4, 1800.0))
    )
    found = replace(found, trials=tried)
    first = remedies(found, judge(found))[0]
    assert (first.gain, first.is_measured) == (2.0, True)


def test_remedies_for_a_job_that_cannot_start_let_it_start() -> None:
    found = _plain(job=Job(batch_size=1024, num_workers=16))
    tight = replace(found, environment=replace(found.environment, memory_free_bytes=GIB, memory_limit_bytes=2 * GIB))
    verdict = judge(tight)
    assert (verdict.bottleneck, verdict.samples_per_second) == (Bottleneck.MEMORY, 0)
    smaller, more = remedies(tight, verdict)
    assert smaller.batch_size is not None
    corrected = replace(tight, job=replace(tight.job, batch_size=smaller.batch_size))
    assert judge(corrected).bottleneck is not Bottleneck.MEMORY
    wider = replace(corrected, job=replace(corrected.job, batch_size=smaller.batch_size + 1))
    assert judge(wider).bottleneck is Bottleneck.MEMORY
    assert "Raise the memory limit to" in more.text

    few = replace(found, environment=replace(found.environment, max_descriptors=25))
    verdict = judge(few)
    assert verdict.bottleneck is Bottleneck.DESCRIPTORS
    assert "ulimit -n 1024" in remedies(few, verdict)[0].text


def test_reading_shards_in_blocks_is_suggested_if_sequential_reads_are_faster() -> None:
    slow = tuple(
        ReadRate(temperature=temperature, concurrency=1, samples_per_second=rate, is_sequential=is_sequential)
        for temperature, rate, is_sequential in (
            (Temperature.COLD, 100, False),
            (Temperature.COLD, 1500, True),
            (Temperature.WARM, 20_000, False),
        )
    )
    found = _plain()
    samples = replace(found.samples, num_samples=10**9, num_shards=40)  # too large for the page cache
    found = replace(found, samples=samples, storage=replace(found.storage, rates=slow))
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.STORAGE
    first, second = remedies(found, verdict)
    assert "BlockShuffle" in first.text
    assert first.gain == pytest.approx(15)
    assert "PartialCache" in second.text
    assert second.gain == pytest.approx(3200 / 100, rel=0.1)


def test_blocks_are_suggested_if_lookups_in_a_large_index_limit_the_job() -> None:
    found = replace(_plain(num_workers=8), lookup=Cost(cpu_seconds=1e-5, wait_seconds=0.05))
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.INDEX
    assert verdict.reason.endswith("BlockShuffle needs none of this")
    assert next(stage for stage in verdict.stages if stage.name == "lookup").have
    by_blocks = next(remedy for remedy in remedies(found, verdict) if "BlockShuffle" in remedy.text)
    assert by_blocks.gain > 1.1
    assert "look up in the index" in render_report(Diagnosis(findings=found, verdict=verdict, remedies=()), title="")
    assert judge(_plain(num_workers=8)).bottleneck is not Bottleneck.INDEX


def test_lookups_are_measured_only_if_the_index_does_not_fit_into_memory(tmp_path: Path) -> None:
    index = open_index(make_text(tmp_path / "train.txt", 1000))
    index_bytes = index.path.stat().st_size + sidecar_of(index).file_bytes
    assert lookup_cost(index, memory_bytes=index_bytes, seed=0) == Cost()
    assert lookup_cost(index, memory_bytes=index_bytes - 1, seed=0).seconds > 0


def test_the_suggested_pack_command_can_be_pasted_into_a_shell() -> None:
    large = _plain(
        num_workers=8,
        step_seconds=0.001,
        index_path="/data/my photos/it's.txt",
        resized_short=256,
        resized_decode=Cost(cpu_seconds=1e-4),
        resized_bytes=10e3,
    )
    verdict = judge(large)
    assert verdict.bottleneck is Bottleneck.LARGE_IMAGES
    *_, command, rest = remedies(large, verdict)[0].text.split("`")
    out = "/data/my photos/it's-packed"
    assert shlex.split(command) == ["mpload", "pack", large.index_path, "-o", out, "--resize-short", "256"]
    assert rest == ""


def test_progressive_jpegs_are_named_with_the_command_that_rewrites_them() -> None:
    found = _plain(num_workers=8, step_seconds=0.001)
    half = replace(found, progressive=Progressive(share=0.5, slowdown=4))
    verdict = judge(half)
    assert verdict.bottleneck is Bottleneck.PROGRESSIVE
    assert "50% of the images are progressive JPEGs, which take 4.0 times as long to decode" in verdict.reason
    remedy = remedies(half, verdict)[0]
    assert remedy.text.endswith("`mpload pack INDEX -o INDEX-packed --jpeg baseline`")
    assert 2 < remedy.gain < 2.5  # half of the images take 4 times as long: 2.5 less what does not decode
    few = replace(found, progressive=Progressive(share=0.1, slowdown=4))
    assert judge(few).bottleneck is Bottleneck.DECODE
    assert 1.2 < remedies(few, judge(few))[0].gain < 1.3
    useless = replace(found, progressive=Progressive(share=1, slowdown=0.9))
    assert not any("--jpeg" in remedy.text for remedy in remedies(useless, judge(useless)))


def test_raising_the_quota_is_suggested_first_if_the_machine_has_more_cores() -> None:
    found = _plain(num_workers=8, step_seconds=0.001)
    held = replace(found, environment=replace(found.environment, host_cores=32))
    first, second = remedies(held, judge(held))
    assert "quota or affinity from 8 to 32 cores" in first.text
    assert first.gain == pytest.approx(32 / 8)
    assert "a machine with 34 cores" in second.text  # 32,000 samples/s at 1.04 ms


def test_an_impossible_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="cpu_seconds must not be negative"):
        Cost(cpu_seconds=-1)
    with pytest.raises(ArgumentError, match="num_workers must be positive"):
        Job(batch_size=1, num_workers=0)
    with pytest.raises(ArgumentError, match="cached_share must be in"):
        replace(_plain().samples, cached_share=1.5)
    with pytest.raises(ArgumentError, match=r"share must be in \(0, 1\]"):
        Progressive(share=1.5, slowdown=2)
