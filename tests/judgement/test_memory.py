"""Jobs that lack memory or room, and shards that are too small, as the judgement sees them."""

from dataclasses import replace

import pytest

from mpload.judgement.facts import Alternative, Change, Cost, Facts, Job, ReadRate, Temperature, Trial
from mpload.judgement.model import needed_bytes
from mpload.judgement.remedies import remedies
from mpload.judgement.verdict import judge
from mpload.judgement.words import Bottleneck
from mpload.memory.contention import Contention
from mpload.tools.doctor.examine import as_in_workers
from mpload.units import KIB, MIB, parse_bytes
from tests.support.judged import plain


def tried(facts: Facts, rate: float, **more: float) -> Facts:
    """Return the facts with a trial of the job."""
    job = facts.job
    trial = Trial(num_workers=job.num_workers or 1, batch_size=int(job.batch_size), samples_per_second=rate, **more)  # type: ignore[arg-type]
    return replace(facts, trials=(*facts.trials, trial))


def test_workers_that_grow_with_each_sample_are_the_verdict_if_an_epoch_does_not_fit() -> None:
    found = plain(num_workers=8, step_seconds=0.001)
    free_bytes, num_samples = found.environment.memory_free_bytes, found.samples.num_samples
    assert free_bytes is not None
    assert num_samples is not None
    leaking = tried(found, 5000.0, grown_bytes_per_sample=1.1 * free_bytes / num_samples)
    verdict = judge(leaking)
    assert (verdict.bottleneck, verdict.samples_per_second) == (Bottleneck.LEAK, 0)
    assert "are used up after 909,091" in verdict.reason
    (first,) = remedies(leaking, verdict)
    assert first.text.startswith("Let the decoder or the dataset keep nothing")
    assert remedies(replace(leaking, transform=Cost(cpu_seconds=1e-4)), verdict)[0].text.startswith("Let the transform")
    enough = tried(found, 5000.0, grown_bytes_per_sample=0.9 * free_bytes / num_samples)
    assert judge(enough).bottleneck is Bottleneck.DECODE


def shards(*, per_shard: float, open_seconds: float) -> Facts:
    """Return a job that reads shards. Opening one and reading a sample take 10 ms."""
    found = plain(num_workers=8, step_seconds=0.001)
    rates = tuple(
        ReadRate(temperature=Temperature.COLD, concurrency=number, samples_per_second=100.0 * number)
        for number in (1, 4)
    )
    return replace(
        found,
        samples=replace(found.samples, num_samples=10**9, num_shards=99, samples_per_shard=per_shard),
        storage=replace(found.storage, rates=rates, open_seconds=open_seconds),
    )


def test_shards_that_take_longer_to_open_than_to_read_are_named_and_larger_ones_gain_what_opening_takes() -> None:
    small = shards(per_shard=4, open_seconds=0.009)
    verdict = judge(small)
    assert verdict.bottleneck is Bottleneck.SMALL_SHARDS
    assert verdict.reason.endswith("Shards hold 4 samples each, and opening a shard takes 9.0 ms")
    first = remedies(small, verdict)[0]
    assert first.text.startswith("Write larger shards with `mpload pack")
    assert first.gain == pytest.approx(10, rel=0.05)
    for other in (shards(per_shard=400, open_seconds=0.009), shards(per_shard=4, open_seconds=0.001)):
        assert judge(other).bottleneck is Bottleneck.STORAGE


def test_the_budget_that_is_suggested_has_room_for_two_samples_of_each_worker() -> None:
    job = Job(batch_size=1, num_workers=8, step_seconds=1e-4, memory_budget_bytes=140 * MIB)
    found = plain(job=job)
    found = replace(found, samples=replace(found.samples, output_bytes=3 * MIB))
    found = tried(found, 100.0, busy_share=0.25)
    empty = Trial(num_workers=8, batch_size=1, samples_per_second=9000.0, cpu_seconds=1e-6, is_empty=True)
    found = replace(found, trials=(*found.trials, empty))
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.SLOTS
    first = remedies(found, verdict)[0]
    assert first.gain == pytest.approx(8 / 1.04e-3 / 100, rel=0.02)  # what eight workers would make, over the trial
    budget = parse_bytes(first.text.split('"')[1])
    assert budget >= needed_bytes(found) + 2 * 8 * 3 * MIB
    roomy = judge(replace(found, job=replace(job, memory_budget_bytes=budget)))
    assert roomy.bottleneck is not Bottleneck.SLOTS  # idle workers have another cause: the trial was disturbed


def test_an_end_of_swapping_gains_at_least_the_time_in_which_processes_wait_for_memory() -> None:
    found = plain(num_workers=8, step_seconds=0.0001)
    swapping = Contention(swapped_bytes_per_second=1e8, memory_pressure=0.5, neighbour_cores=1.0)
    found = tried(replace(found, environment=replace(found.environment, contention=swapping)), 770.0)
    verdict = judge(found)
    assert verdict.bottleneck is Bottleneck.SWAPPING
    first = remedies(found, verdict)[0]
    assert first.text.startswith("Make everything fit into memory")
    assert first.gain_text == "2.0x as fast, at least"


def test_a_measured_gain_of_another_way_to_decode_stands_beside_the_predicted_one() -> None:
    native = Alternative(change=Change.NATIVE, decode=Cost(cpu_seconds=0.2e-3), detail="mpload.ImageDecoder()")
    found = tried(plain(num_workers=8, step_seconds=0.0001, alternatives=(native,)), 6000.0)
    assert remedies(found, judge(found))[0].gain_text == "4.2x as fast, predicted"
    after = Trial(num_workers=8, batch_size=32, samples_per_second=36_000.0, change=Change.NATIVE)
    found = replace(found, trials=(*found.trials, after))
    assert remedies(found, judge(found))[0].gain_text == "6.0x as fast, measured; predicted 4.2x"


def test_a_slow_decoder_that_workers_slow_down_does_not_make_another_one_slow() -> None:
    native = Alternative(change=Change.NATIVE, decode=Cost(cpu_seconds=0.2e-3))
    smaller = Alternative(change=Change.RESIZED, decode=Cost(cpu_seconds=0.4e-3))
    found = tried(plain(num_workers=2, alternatives=(native, smaller)), 1000.0, decode_seconds=1.8e-3)
    found = replace(found, decode_alone=Cost(cpu_seconds=0.9e-3))
    after = as_in_workers(found)  # decoding takes 1 ms in one process
    assert after.decode.seconds == pytest.approx(1.8e-3)
    assert [each.decode.seconds for each in after.alternatives] == pytest.approx([0.2e-3, 0.72e-3])
    assert after.decode_alone == Cost(cpu_seconds=0.9e-3)  # an upper bound of what removing the transform gains


def test_a_leak_needs_a_known_number_of_samples() -> None:
    found = tried(plain(), 100.0, grown_bytes_per_sample=10.0 * KIB)
    unknown = replace(found, samples=replace(found.samples, num_samples=None))
    assert judge(unknown).bottleneck is not Bottleneck.LEAK
