"""The one judgement, from facts to a verdict and remedies. Nothing is measured here."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from mpload import open_index
from mpload.errors import ArgumentError
from mpload.index.index import sidecar_of
from mpload.judgement.facts import (
    Alternative,
    Change,
    Cost,
    Facts,
    Job,
    ReadRate,
    Running,
    StorageSpeed,
    Temperature,
    Trial,
)
from mpload.judgement.model import Part, predict, yielded_cores
from mpload.judgement.remedies import remedies
from mpload.judgement.remedy import Bound
from mpload.judgement.verdict import judge
from mpload.judgement.words import Bottleneck
from mpload.memory.contention import Contention
from mpload.memory.core_times import CoreShares
from mpload.telemetry.stats import LoaderStats, Timings, running_facts
from mpload.tools.doctor.storage import lookup_cost
from mpload.units import GIB
from tests.support.index_texts import make_text
from tests.support.judged import plain


def test_a_slow_training_step_is_not_limited_by_data_and_a_fast_one_is_limited_by_decoding() -> None:
    slow = judge(plain())
    assert slow.bottleneck is Bottleneck.CONSUMER
    assert slow.headline == "Not limited by data: the training step is slower than the loader"
    assert slow.reason == "A step takes 10.0 ms. The loader delivers 3,846 samples/s, and training needs 3,200"
    fast = judge(plain(num_workers=8, step_seconds=0.001))
    assert fast.bottleneck is Bottleneck.DECODE
    assert fast.reason == "Decoding takes 1.0 ms of a worker's 1.0 ms per sample"
    assert fast.samples_per_second == pytest.approx(8 / 1.04e-3)


def test_too_few_workers_are_reported_with_a_sufficient_number() -> None:
    found = plain(num_workers=1)
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.WORKERS
    assert verdict.reason == "1 worker can make 962 samples/s, and cannot use all 8 cores"
    first = remedies(found, verdict)[0]
    assert first.num_workers == 4  # 3,200 samples/s at 1.04 ms
    assert first.text == "Use 4 workers instead of 1: num_workers=4"
    assert first.gain == pytest.approx(3200 * 1.04e-3)


def test_without_the_transform_workers_decode_faster_if_they_then_decode_in_bulk() -> None:
    slow = plain(num_workers=8, step_seconds=1e-5, decode=Cost(cpu_seconds=1e-3), transform=Cost(cpu_seconds=5e-3))
    gains = []
    for alone in (None, Cost(cpu_seconds=5e-4)):
        found = replace(slow, decode_alone=alone)
        gains += [each.gain for each in remedies(found, judge(found)) if "Make the transform cheaper" in each.text]
    assert gains == [pytest.approx(6.04 / 1.04), pytest.approx(6.04 / 0.54)]


def test_several_jobs_share_the_storage_and_several_gpus_the_cores() -> None:
    alone = predict(plain())
    shared = predict(plain(job=Job(batch_size=32, num_workers=4, step_seconds=0.01, num_jobs=10)))
    assert shared.reads == pytest.approx(alone.reads / 10)
    assert shared.workers == alone.workers
    four = Job(batch_size=32, num_workers=4, step_seconds=0.01, num_gpus=4)
    assert predict(plain(job=four)).limit is Part.CORES
    assert four.needed_rate == 32 * 4 / 0.01


def test_a_measured_gain_replaces_the_estimate() -> None:
    found = plain(num_workers=1)
    tried = tuple(
        Trial(num_workers=number, batch_size=32, samples_per_second=rate) for number, rate in ((1, 900.0), (4, 1800.0))
    )
    found = replace(found, trials=tried)
    first = remedies(found, judge(found))[0]
    assert first.gain == 2.0
    assert first.predicted_gain == pytest.approx(3200 / 900)  # four times, but no more than the need


def test_remedies_for_a_job_that_cannot_start_let_it_start() -> None:
    found = plain(job=Job(batch_size=1024, num_workers=16))
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
    found = plain()
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
    found = replace(plain(num_workers=8), lookup=Cost(cpu_seconds=1e-5, wait_seconds=0.05))
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.INDEX
    assert verdict.reason.endswith("BlockShuffle needs none of this")
    assert next(stage for stage in verdict.stages if stage.name == "lookup").have
    by_blocks = next(remedy for remedy in remedies(found, verdict) if "BlockShuffle" in remedy.text)
    assert by_blocks.gain > 1.1
    assert judge(plain(num_workers=8)).bottleneck is not Bottleneck.INDEX


def test_lookups_are_measured_only_if_the_index_does_not_fit_into_memory(tmp_path: Path) -> None:
    index = open_index(make_text(tmp_path / "train.txt", 1000))
    index_bytes = index.path.stat().st_size + sidecar_of(index).file_bytes
    assert lookup_cost(index, memory_bytes=index_bytes, seed=0) == Cost()
    assert lookup_cost(index, memory_bytes=index_bytes - 1, seed=0).seconds > 0


def test_the_suggested_pack_command_can_be_pasted_into_a_shell() -> None:
    large = plain(
        num_workers=8,
        step_seconds=0.001,
        index_path="/data/my photos/it's.txt",
        alternatives=(
            Alternative(change=Change.RESIZED, decode=Cost(cpu_seconds=1e-4), mean_bytes=10e3, detail="256"),
        ),
    )
    verdict = judge(large)
    assert verdict.bottleneck is Bottleneck.LARGE_IMAGES
    *_, command, rest = remedies(large, verdict)[0].text.split("`")
    out = "/data/my photos/it's-packed"
    assert shlex.split(command) == ["mpload", "pack", large.index_path, "-o", out, "--resize-short", "256"]
    assert rest == ""


def test_progressive_jpegs_are_named_with_the_command_that_rewrites_them() -> None:
    found = plain(num_workers=8, step_seconds=0.001)
    formats = (("JPEG", 0.5), ("progressive JPEG", 0.5))

    def rewritten(decode_seconds: float) -> Facts:
        alternative = Alternative(change=Change.BASELINE, decode=Cost(cpu_seconds=decode_seconds))
        return replace(found, samples=replace(found.samples, formats=formats), alternatives=(alternative,))

    half = rewritten(0.4e-3)
    verdict = judge(half)
    assert verdict.bottleneck is Bottleneck.PROGRESSIVE
    assert verdict.reason.endswith("50% of the images are progressive JPEGs")
    remedy = remedies(half, verdict)[0]
    assert remedy.text.endswith("`mpload pack INDEX -o FOLDER --jpeg baseline`")
    assert remedy.gain == pytest.approx(1.04 / 0.44)
    few = rewritten(0.8e-3)
    assert judge(few).bottleneck is Bottleneck.DECODE
    assert 1.2 < remedies(few, judge(few))[0].gain < 1.3
    useless = rewritten(0.98e-3)
    assert not any("--jpeg" in remedy.text for remedy in remedies(useless, judge(useless)))


def decoding(*alternatives: tuple[Change, float], formats: tuple[tuple[str, float], ...] = (("JPEG", 1.0),)) -> Facts:
    """Return a job that is limited by decoding, 1 ms, with alternatives that take so many milliseconds."""
    found = plain(num_workers=8, step_seconds=0.0001)
    return replace(
        found,
        samples=replace(found.samples, formats=formats, mean_short_side=375.0),
        alternatives=tuple(
            Alternative(change=change, decode=Cost(cpu_seconds=milliseconds * 1e-3), detail=change)
            for change, milliseconds in alternatives
        ),
    )


@pytest.mark.parametrize(
    ("found", "bottleneck", "remedy"),
    [
        (decoding((Change.RESIZED, 0.2)), Bottleneck.LARGE_IMAGES, "mpload pack INDEX -o FOLDER --resize-short"),
        (decoding((Change.RESIZED, 0.1), formats=(("PNG", 1.0),)), Bottleneck.FORMAT, "--resize-short"),
        (decoding((Change.NATIVE, 0.3)), Bottleneck.SLOW_DECODER, "mpload's own decoder"),
        (decoding((Change.BASELINE, 0.3), (Change.RESIZED, 0.1)), Bottleneck.PROGRESSIVE, "--resize-short"),
        (decoding((Change.BASELINE, 0.1), (Change.RESIZED, 0.1)), Bottleneck.PROGRESSIVE, "--jpeg baseline"),
        (decoding((Change.CACHED_RESIZED, 0.08), (Change.RESIZED, 0.1)), Bottleneck.LARGE_IMAGES, "mpload pack"),
        (decoding((Change.ROW_INDEX, 0.6)), Bottleneck.DECODE, "mpload index --jpeg"),
        (decoding(), Bottleneck.DECODE, "a machine with"),
    ],
)
def test_the_cause_of_slow_decoding_is_named_and_software_comes_before_hardware(
    found: Facts, bottleneck: Bottleneck, remedy: str
) -> None:
    verdict = judge(found)
    assert verdict.bottleneck is bottleneck
    advice = remedies(found, verdict)
    assert remedy in advice[0].text
    assert advice[-1].text.startswith("Use a machine with") or len(advice) == 1


def test_workers_that_wait_need_more_workers_not_smaller_images_or_more_cores() -> None:
    found = replace(plain(num_workers=8, step_seconds=0.001), decode=Cost(cpu_seconds=1e-4, wait_seconds=0.0099))
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.WORKERS
    assert "they wait, not compute, for 99% of their time" in verdict.reason
    first, *others = remedies(found, verdict)
    assert first.num_workers is not None
    assert first.gain > 6
    assert not others
    hungry = replace(found, job=replace(found.job, step_seconds=1e-5), storage=StorageSpeed(reads_per_worker=16))
    assert not any("cores" in remedy.text for remedy in remedies(hungry, judge(hungry)))


def test_other_processes_and_quotas_are_blamed_for_the_cores_that_they_take() -> None:
    found = plain(num_workers=8, step_seconds=0.0001)

    def with_contention(**taken: float) -> Facts:
        return replace(found, environment=replace(found.environment, contention=Contention(**taken)))

    crowded = with_contention(neighbour_cores=6.0)
    verdict = judge(crowded)
    assert verdict.bottleneck is Bottleneck.NEIGHBOURS
    assert "keep 6.0 of 8 cores busy" in verdict.reason
    assert remedies(crowded, verdict)[0].gain == pytest.approx(4)
    assert judge(with_contention(neighbour_cores=0.5)).bottleneck is Bottleneck.DECODE
    throttled = with_contention(throttled_share=0.9)
    assert judge(throttled).bottleneck is Bottleneck.THROTTLED
    swapping = with_contention(swapped_bytes_per_second=1e8, memory_pressure=0.75)
    verdict = judge(swapping)
    assert verdict.bottleneck is Bottleneck.SWAPPING
    assert remedies(swapping, verdict)[0].gain == pytest.approx(4)
    waiting = replace(crowded, decode=Cost(cpu_seconds=1e-4, wait_seconds=0.02))
    assert judge(waiting).bottleneck is Bottleneck.WORKERS
    relieved = replace(crowded, alternatives=(Alternative(change=Change.RESIZED, decode=Cost(cpu_seconds=1e-5)),))
    assert judge(relieved).bottleneck is Bottleneck.LARGE_IMAGES
    assert judge(relieved).notes == ("Processes outside the job keep 6.0 of 8 cores busy",)
    cheaper = Cost(cpu_seconds=crowded.decode.cpu_seconds / 6)  # gains hardly more than the cores that others take
    relieved = replace(crowded, alternatives=(Alternative(change=Change.RESIZED, decode=cheaper),))
    assert judge(relieved).bottleneck is Bottleneck.NEIGHBOURS


def test_work_that_waits_gets_its_share_of_cores_that_others_keep_busy() -> None:
    """Others take all the cores that workers leave them while they wait."""
    found = plain(num_workers=2, step_seconds=0.01, decode=Cost(cpu_seconds=3e-3, wait_seconds=0.02))
    for cost, bottleneck in ((found.decode, Bottleneck.WORKERS), (Cost(cpu_seconds=0.02), Bottleneck.NEIGHBOURS)):
        contention = Contention(neighbour_cores=7.9)
        busy = replace(found, decode=cost, environment=replace(found.environment, contention=contention))
        contention = replace(contention, yielded_cores=yielded_cores(busy))
        busy = replace(busy, environment=replace(busy.environment, contention=contention))
        assert judge(busy).bottleneck is bottleneck
        assert (remedies(busy, judge(busy))[0].num_workers is not None) == (bottleneck is Bottleneck.WORKERS)


def test_more_broken_samples_than_the_policy_allows_are_the_verdict() -> None:
    found = plain()
    broken = replace(found, samples=replace(found.samples, num_measured=80, num_failed=20, first_failure="a.jpg: bad"))
    verdict = judge(broken)
    assert (verdict.bottleneck, verdict.samples_per_second) == (Bottleneck.BROKEN, 0)
    assert "20 of 100 measured samples cannot be made" in verdict.reason
    inspect, substitute = remedies(broken, verdict)
    assert inspect.text == "List the broken samples, and repair them"
    (inspect, _) = remedies(replace(broken, index_path="a b.txt"), verdict)
    assert "`mpload inspect 'a b.txt' --check`" in inspect.text
    assert "max_error_fraction=0.30" in substitute.text
    lenient = replace(broken, samples=replace(broken.samples, max_failed_share=0.3))
    assert judge(lenient).bottleneck is not Bottleneck.BROKEN


def test_without_the_time_of_a_step_no_culprit_is_named() -> None:
    verdict = judge(plain(step_seconds=None))
    assert (verdict.bottleneck, verdict.slowest) == (Bottleneck.OPEN, Bottleneck.WORKERS)
    assert "The loader delivers 3,846 samples/s" in verdict.reason
    assert all(stage.need is None for stage in verdict.stages)


def test_a_trial_that_contradicts_the_model_is_noted() -> None:
    found = plain(step_seconds=0.001)
    slow = replace(found, trials=(Trial(num_workers=4, batch_size=32, samples_per_second=900.0),))
    (note,) = judge(slow).notes
    assert "would make 3,846 samples/s, but the trial made 900" in note
    alike = replace(found, trials=(Trial(num_workers=4, batch_size=32, samples_per_second=3500.0),))
    assert judge(alike).notes == ()


def test_the_gain_of_cores_does_not_include_that_of_workers() -> None:
    found = plain(num_workers=2, step_seconds=0.0001)  # 8 cores, of which 2 are used
    advice = remedies(found, judge(found))
    workers = next(remedy for remedy in advice if remedy.num_workers)
    cores = next(remedy for remedy in advice if "a machine with" in remedy.text)
    assert workers.gain == pytest.approx(4, rel=0.15)
    assert cores.gain == pytest.approx(32_000 / (8 / 1.04e-3))  # what the storage delivers, over what 8 cores make


def test_storage_that_is_hardly_read_has_no_rate() -> None:
    found = plain()
    cached = replace(found, samples=replace(found.samples, cached_share=0.9999))
    rates = {stage.name: stage.have for stage in judge(cached).stages}
    assert rates["reads"] is None


def test_a_consumer_that_limits_is_told_what_to_profile() -> None:
    found = plain()
    there = replace(found.environment, device="a GPU", device_bytes_per_second=1e9)
    verdict = judge(replace(found, environment=there))
    assert verdict.bottleneck is Bottleneck.CONSUMER
    assert "Copying a batch to the device takes 4.8 ms of it, 48%." in verdict.next_step
    assert "device=..." in verdict.next_step
    assert "torch.profiler" in verdict.next_step


@pytest.mark.parametrize("num_served", [0, 300, 1000])
def test_workers_that_wait_for_servers_do_not_wait_for_storage(num_served: int) -> None:
    timings = Timings(num_samples=1000, num_served=num_served, served_bytes=num_served << 20, read_ns=20 * 10**9)
    span = LoaderStats(
        num_workers=2,
        num_samples=1000,
        num_batches=10,
        elapsed_seconds=10.0,
        wait_seconds=9.0,
        timings=replace(timings, total_ns=timings.read_ns),
    )
    asleep = [CoreShares(seconds=10.0, running=0.05, delayed=0.0)] * 2
    found = running_facts(span, shares=asleep, num_cores=2)
    verdict = judge(found)
    texts = [each.text for each in remedies(found, verdict)]
    if num_served == 1000:
        assert verdict.bottleneck is Bottleneck.SERVERS
        assert "100% of the samples, at 100.0 MiB/s" in verdict.reason
        assert len(texts) == 1
        assert texts[0].startswith("Add servers")
    else:
        assert verdict.bottleneck is Bottleneck.STORAGE
        assert any("cache=" in text for text in texts)
        assert any("Servers made only 30%" in note for note in verdict.notes) == (num_served == 300)


def test_a_trial_shows_what_workers_and_cores_can_do_but_not_what_cold_storage_can() -> None:
    found = plain(num_workers=8, step_seconds=0.001)
    slower = judge(found).samples_per_second
    tried = Trial(num_workers=8, batch_size=32, samples_per_second=2 * slower)
    assert judge(replace(found, trials=(tried,))).samples_per_second == pytest.approx(2 * slower)
    of_two = replace(found, job=replace(found.job, num_gpus=2))
    assert judge(replace(of_two, trials=(tried,))).samples_per_second == judge(of_two).samples_per_second
    rates = tuple(replace(each, samples_per_second=0.01 * each.samples_per_second) for each in found.storage.rates)
    stored = replace(found, storage=replace(found.storage, rates=rates))
    assert judge(replace(stored, trials=(tried,))).samples_per_second == judge(stored).samples_per_second


def test_idle_workers_of_a_running_loader_need_more_batches_in_flight() -> None:
    running = Running(seconds=10.0, samples_per_second=100.0, waiting_share=0.5, busy_share=0.2)
    found = Facts(job=Job(batch_size=8, num_workers=4), decode=Cost(cpu_seconds=0.002), running=running)
    verdict = judge(found)
    assert (verdict.bottleneck, verdict.stage) == (Bottleneck.SLOTS, "transport")
    first = remedies(found, verdict)[0]
    assert "memory_budget" in first.text
    assert first.gain == pytest.approx(5)
    assert first.bound is Bound.AT_MOST


def test_raising_the_quota_is_suggested_first_if_the_machine_has_more_cores() -> None:
    found = plain(num_workers=8, step_seconds=0.001)
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
        replace(plain().samples, cached_share=1.5)
