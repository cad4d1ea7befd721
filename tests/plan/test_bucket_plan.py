"""Batches of one bucket: every sample once, the same bucket on all ranks, resumed anywhere with any number of ranks."""

import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import ArgumentError, Tail, Topology
from mpload.plan.bucket_plan import MAX_SEGMENTS, BucketPlan, BucketSizes, Segments
from mpload.plan.bucket_turns import BucketTurns
from mpload.plan.order import round_keys

counts = st.lists(st.integers(0, 40), min_size=1, max_size=5)
tails = st.sampled_from(list(Tail))


@st.composite
def all_sizes(draw: st.DrawFn) -> BucketSizes:
    numbers = tuple(draw(counts))
    if draw(st.booleans()):
        return BucketSizes(counts=numbers, batch_sizes=(draw(st.integers(1, 5)),) * len(numbers))
    each = st.lists(st.integers(1, 6), min_size=len(numbers), max_size=len(numbers))
    return BucketSizes(counts=numbers, batch_sizes=tuple(draw(each)))


def plans_of(
    sizes: BucketSizes, world_size: int, *, tail: Tail, segments: Segments = (), epoch: int = 0, seed: int = 0
) -> list[BucketPlan]:
    ranks = [Topology(rank=rank, world_size=world_size) for rank in range(world_size)]
    return [
        BucketPlan(sizes=sizes, topology=rank, tail=tail, seed=seed, epoch=epoch, segments=segments) for rank in ranks
    ]


def global_batches(plans: list[BucketPlan], stop: int | None = None) -> list[list[int]]:
    """Return the positions of each global batch: those of all ranks, one after another."""
    number = plans[0].num_batches if stop is None else stop
    return [[each for plan in plans for each in plan.positions(batch).tolist()] for batch in range(number)]


def buckets_in(sizes: BucketSizes, positions: list[int]) -> set[int]:
    return set(np.searchsorted(np.cumsum(sizes.counts), positions, side="right").tolist())


@given(all_sizes(), st.integers(1, 4), tails, st.integers(0, 3))
def test_epoch_has_every_sample_once_in_global_batches_of_one_bucket(
    sizes: BucketSizes, world_size: int, tail: Tail, epoch: int
) -> None:
    plans = plans_of(sizes, world_size, tail=tail, epoch=epoch)
    batches = global_batches(plans)
    assert {plan.num_batches for plan in plans} == {len(batches)}
    for number, batch in enumerate(batches):
        [bucket] = buckets_in(sizes, batch)
        for plan in plans:
            assert plan.task(number)[1] == bucket
            assert plan.size(number) == len(plan.positions(number)) <= sizes.batch_sizes[bucket]
            if tail != Tail.RAGGED:
                assert plan.size(number) == sizes.batch_sizes[bucket]
    found = Counter(each for batch in batches for each in batch)
    if tail == Tail.RAGGED:
        assert found == Counter(range(sum(sizes.counts)))
    elif tail == Tail.PAD:
        assert set(found) == set(range(sum(sizes.counts)))
        real = [plan.positions(k)[: plan.num_real_samples(k)].tolist() for k in range(len(batches)) for plan in plans]
        assert Counter(each for batch in real for each in batch) == Counter(range(sum(sizes.counts)))
    else:
        assert set(found.values()) <= {1}
        for start, count, size in zip(sizes.starts, sizes.counts, sizes.batch_sizes, strict=True):
            assert sum(start <= each < start + count for each in found) == count // (size * world_size) * (
                size * world_size
            )


@given(all_sizes(), st.integers(1, 4), st.integers(0, 3))
def test_rank_has_empty_batches_only_at_the_end(sizes: BucketSizes, world_size: int, epoch: int) -> None:
    for plan in plans_of(sizes, world_size, tail=Tail.RAGGED, epoch=epoch):
        empty = [plan.size(batch) == 0 for batch in range(plan.num_batches)]
        assert empty == sorted(empty)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.integers(1, 3), tails, st.integers(0, 5))
def test_global_batches_are_equal_for_equal_products(numbers: list[int], size: int, tail: Tail, seed: int) -> None:
    found = []
    for batch_size, world_size in ((size, 4), (2 * size, 2), (4 * size, 1)):
        sizes = BucketSizes(counts=tuple(numbers), batch_sizes=(batch_size,) * len(numbers))
        found.append(global_batches(plans_of(sizes, world_size, tail=tail, seed=seed)))
    assert found[0] == found[1] == found[2]


@given(all_sizes(), st.integers(1, 4), tails, st.data())
def test_resumed_run_continues_the_uninterrupted_one(
    sizes: BucketSizes, world_size: int, tail: Tail, data: st.DataObject
) -> None:
    whole = plans_of(sizes, world_size, tail=tail)
    expected = global_batches(whole)
    at = data.draw(st.integers(0, len(expected)))
    again = data.draw(st.integers(0, len(expected) - at))
    first = plans_of(sizes, world_size, tail=tail, segments=whole[0].segments_after(at))
    assert global_batches(first) == expected[at:]
    second = plans_of(sizes, world_size, tail=tail, segments=first[0].segments_after(again))
    assert global_batches(second) == expected[at + again :]
    assert second[0].position_after(0) == whole[0].position_after(at + again)


@given(
    all_sizes(),
    st.lists(st.integers(1, 5), min_size=2, max_size=5),
    st.sampled_from([Tail.PAD, Tail.RAGGED]),
    st.data(),
)
def test_runs_with_several_numbers_of_ranks_have_every_sample_once(
    sizes: BucketSizes, world_sizes: list[int], tail: Tail, data: st.DataObject
) -> None:
    segments: Segments = ()
    found: Counter[int] = Counter()
    for world_size in world_sizes:
        plans = plans_of(sizes, world_size, tail=tail, segments=segments)
        stop = data.draw(st.integers(0, plans[0].num_batches))
        for batch in range(stop):
            assert len(buckets_in(sizes, [each for plan in plans for each in plan.positions(batch).tolist()])) == 1
            for plan in plans:
                found.update(plan.positions(batch)[: plan.num_real_samples(batch)].tolist())
        assert plans[0].position_after(stop) == found.total()
        segments = plans[0].segments_after(stop)
    plans = plans_of(sizes, 1, tail=tail, segments=segments)
    for batch in range(plans[0].num_batches):
        found.update(plans[0].positions(batch)[: plans[0].num_real_samples(batch)].tolist())
    assert found == Counter(range(sum(sizes.counts)))


@given(st.lists(st.integers(0, 900), min_size=1, max_size=6), st.integers(0, 9))
def test_any_turn_is_found_directly(nums: list[int], seed: int) -> None:
    keys = round_keys("buckets", seed, 0)
    by_going_through = BucketTurns(tuple(nums), keys)
    before = [0] * len(nums)
    for batch in range(sum(nums)):
        bucket, turn = by_going_through.at(batch)
        assert turn == before[bucket]
        if batch % 97 == 0:
            assert BucketTurns(tuple(nums), keys).at(batch) == (bucket, turn)
            assert BucketTurns(tuple(nums), keys).counts_before(batch) == before
        before[bucket] += 1
    assert before == nums == by_going_through.counts_before(sum(nums))


def test_every_prefix_holds_the_shares_of_the_buckets() -> None:
    nums = (1, 7, 500, 4000, 12_000)
    turns = BucketTurns(nums, round_keys("buckets", 0, 0))
    for batch in range(0, sum(nums), 37):
        expected = np.array(nums) * batch / sum(nums)
        assert np.abs(np.array(turns.counts_before(batch)) - expected).max() <= len(nums)


def test_sequence_of_buckets_differs_between_epochs_and_shows_no_pattern() -> None:
    nums = (2000, 2000)
    found = []
    for epoch in range(2):
        turns = BucketTurns(nums, round_keys("buckets", 0, epoch))
        found.append([turns.at(batch)[0] for batch in range(sum(nums))])
    assert found[0] != found[1]
    repeated = np.mean([first == second for first, second in pairwise(found[0])])
    assert 0.2 < repeated < 0.5  # 0 if the buckets alternated; 0.5 if each batch were drawn alone


def test_long_epochs_of_unequal_buckets_need_no_memory() -> None:
    sizes = BucketSizes(counts=(10**13, 3 * 10**11, 5, 0), batch_sizes=(32, 64, 8, 8))
    tracemalloc.start()
    [plan] = plans_of(sizes, 1, tail=Tail.PAD)
    last = plan.num_batches - 1
    assert plan.num_batches == 10**13 // 32 + 3 * 10**11 // 64 + 1
    found = [plan.positions(batch) for batch in (0, last // 3, last)]
    resumed = plans_of(sizes, 3, tail=Tail.PAD, segments=plan.segments_after(last // 3))[0]
    assert resumed.position_after(0) == plan.position_after(last // 3)
    assert resumed.positions(resumed.num_batches // 2).size
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert (found[2] == [10**13 + 3 * 10**11 + n for n in (0, 1, 2, 3, 4, 0, 1, 2)]).all()


def test_too_many_numbers_of_ranks_are_refused() -> None:
    sizes = BucketSizes(counts=(10_000,), batch_sizes=(1,))
    segments = tuple((1 + n % 2, 1) for n in range(MAX_SEGMENTS))
    assert plans_of(sizes, segments[-1][0], tail=Tail.PAD, segments=segments)[0].num_batches
    with pytest.raises(ArgumentError, match=r"batch_size \* world_size = 2"):
        plans_of(sizes, 7, tail=Tail.PAD, segments=segments)
