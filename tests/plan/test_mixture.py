"""Laws of mixtures: shares, turns, laps, and changes of weights."""

import json
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan import permutations
from mpload.plan import shares as shares_module
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.plan.mixture import MixtureOrders
from mpload.plan.order import BlockShuffle, OrderChoice, Sequential, Shuffle
from mpload.plan.plan import Tail
from mpload.plan.shares import Shares
from mpload.plan.topology import Topology
from mpload.plan.turns import Phase, Turns

_PARTS = st.lists(st.integers(1, 1000), min_size=1, max_size=12) | st.lists(
    st.integers(100_000, 10_000_000), min_size=1, max_size=40
)
_WEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
_CHOICES = st.sampled_from([Shuffle(), Sequential(), BlockShuffle(block_samples=3, window_blocks=2)])


def _longest_turn(shares: Shares) -> int:
    return -(-shares.total // min(part for part in shares.parts if part))


def _orders(
    lengths: tuple[int, ...],
    *phases: tuple[int, tuple[int, ...]],
    epoch: int = 100,
    of_source: OrderChoice | None = None,
) -> MixtureOrders:
    return MixtureOrders(
        lengths=lengths,
        of_source=Shuffle() if of_source is None else of_source,
        epoch_samples=epoch,
        planned=tuple(Phase(start=start, shares=Shares(parts)) for start, parts in phases),
    )


def _ids(orders: MixtureOrders, *, seed: int, first: int, stop: int) -> list[int]:
    """Return the sample_ids at positions that are counted over all epochs."""
    found = []
    for position in range(first, stop):
        epoch, place = divmod(position, orders.epoch_samples)
        order = orders.order(num_samples=orders.epoch_samples, seed=seed, epoch=epoch)
        found.append(int(order.sample_ids(np.array([place]))[0]))
    return found


@given(parts=_PARTS, more=st.integers(0, 40), block=st.integers(0, 5) | st.integers(10**9, 10**9 + 5))
def test_no_prefix_deviates_from_a_share_by_a_whole_sample(parts: list[int], more: int, block: int) -> None:
    shares = Shares(tuple(parts))
    num_positions = min(_longest_turn(shares) + 1, 2000) + more
    if num_positions <= _longest_turn(shares):
        return
    counts: list[int] | None = None
    for first in range(block * num_positions, (block + 3) * num_positions, num_positions):
        made = shares.between(first, first + num_positions)
        counts = list(made.counts) if counts is None else counts
        assert tuple(counts) == made.counts
        for position, source in enumerate(made.sources.tolist(), first + 1):
            counts[source] += 1
            deviations = [
                abs(count * shares.total - part * position) for count, part in zip(counts, parts, strict=True)
            ]
            assert max(deviations) < shares.total


def test_many_turns_that_cross_each_boundary_leave_room_for_all_others() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        parts = rng.integers(1, 10 ** rng.integers(1, 4), size=rng.integers(3, 30)).tolist()
        shares = Shares(tuple(parts))
        num_positions = _longest_turn(shares) + int(rng.integers(1, 5))
        if num_positions > 1000:
            continue
        for first in range(3 * num_positions, 6 * num_positions, num_positions):
            made = shares.between(first, first + num_positions)
            counts = np.array(made.counts) + np.cumsum(made.sources[:, None] == np.arange(len(parts)), axis=0)
            wanted = np.arange(first + 1, first + num_positions + 1)[:, None] * np.array(parts)
            assert (abs(counts * shares.total - wanted) < shares.total).all()


@pytest.mark.slow
@given(parts=_PARTS, block=st.integers(0, 10**9))
@pytest.mark.skipif(shares_module.NATIVE is None, reason="the native module was not built")
def test_blocks_do_not_depend_on_the_native_module(parts: list[int], block: int) -> None:
    shares = Shares(tuple(parts))
    first = block * 2000
    if _longest_turn(shares) >= 2000:
        return
    native = shares.between(first, first + 2000)
    owing = shares.after(Shares((1,) * len(parts)), 7, [7, *[0] * (len(parts) - 1)])
    part_of_native = owing.block(0, num_made=500)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shares_module, "NATIVE", None)
        assert (shares.between(first, first + 2000).sources == native.sources).all()
        assert (owing.block(0, num_made=500).sources == part_of_native.sources).all()
    assert (owing.block(0).sources[:500] == part_of_native.sources).all()


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1, 2, 4), (0.123456789, 0.5, 0.2), (0, 5)])
def test_a_block_is_the_same_with_the_block_before_it(weights: tuple[float, ...]) -> None:
    shares = Shares.of(weights)
    before = shares.block(3)
    alone, after = shares.block(4), shares.block(4, before=before)
    assert (alone.sources == after.sources).all()
    assert (alone.first, alone.counts, alone.counts_after) == (after.first, after.counts, after.counts_after)
    assert before.counts_after == after.counts


def test_short_decimals_are_exact_shares_and_all_others_are_close() -> None:
    assert Shares.of([0.7, 0.3]).parts == (7, 3)
    assert Shares.of([1 / 3, 1 / 3, 1 / 3]).parts == (1, 1, 1)
    assert Shares.of([Fraction(1, 3), 0]).parts == (1, 0)
    odd = [0.1234567890123456, 0.9876543210987654, 3.1415926535897932]
    shares = Shares.of(odd)
    for part, weight in zip(shares.parts, odd, strict=True):
        assert abs(part / shares.total - weight / sum(odd)) < 2e-12


def test_shares_that_are_too_small_are_refused() -> None:
    Shares.of([1, 500_000])
    with pytest.raises(ArgumentError, match="a share of 1 in 1000001"):
        Shares.of([1, 1_000_000])


def test_a_small_share_makes_longer_blocks_and_keeps_the_law() -> None:
    shares = Shares((1, 40_000, 60_001))
    assert shares.block_positions > 2 * shares.total
    made = shares.block(1)
    assert abs(np.flatnonzero(made.sources == 0)[0] + made.first - made.counts[0] * shares.total) < shares.total


@settings(max_examples=25)
@given(
    weights=st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=4),
    gaps=st.lists(st.integers(1, 300), min_size=4, max_size=4),
    seed=st.integers(0, 2**63 - 1),
    data=st.data(),
)
def test_each_source_has_its_turns_one_after_another_through_all_changes(
    weights: list[tuple[int, ...]], gaps: list[int], seed: int, data: st.DataObject
) -> None:
    starts = [0, *np.cumsum(gaps).tolist()]
    phases = tuple(Phase(start=start, shares=Shares(parts)) for start, parts in zip(starts, weights, strict=False))
    num_positions = starts[len(phases) - 1] + 300
    sources, turns = Turns(phases, seed=seed).at(np.arange(num_positions))
    for source in range(3):
        assert turns[sources == source].tolist() == list(range(np.count_nonzero(sources == source)))
    position = data.draw(st.integers(0, num_positions))
    assert Turns(phases, seed=seed).counts_before(position).tolist() == [
        np.count_nonzero(sources[:position] == source) for source in range(3)
    ]
    some = np.array(data.draw(st.lists(st.integers(0, num_positions - 1), max_size=20)), np.int64)
    found = Turns(phases, seed=seed).at(some)
    assert (found[0] == sources[some]).all()
    assert (found[1] == turns[some]).all()


def test_turns_far_from_the_start_go_on_where_those_before_them_ended() -> None:
    turns = Turns((Phase(start=0, shares=Shares.of([0.123456789, 0.5, 0.2])),), seed=3)
    far = 10**15
    sources, numbers = turns.at(np.arange(far, far + 100_000))
    for source, count in enumerate(turns.counts_before(far).tolist()):
        assert numbers[sources == source].tolist() == [count + n for n in range(np.count_nonzero(sources == source))]


def test_only_windows_of_64_positions_are_permuted_and_seeds_permute_them_differently() -> None:
    shares = Shares((5, 3, 1))
    in_order = shares.block(0).sources[: 64 * 500].reshape(500, 64)
    permuted = [
        Turns((Phase(start=0, shares=shares),), seed=seed).at(np.arange(64 * 500))[0].reshape(500, 64)
        for seed in (1, 2)
    ]
    for windows in permuted:
        assert (np.sort(windows, axis=1) == np.sort(in_order, axis=1)).all()
        assert (windows != in_order).any(axis=1).all()
        assert len(np.unique(windows, axis=0)) > 200
    assert (permuted[0] != permuted[1]).any(axis=1).all()


@given(
    lengths=st.lists(st.integers(1, 30), min_size=3, max_size=3),
    weights=st.tuples(*[st.integers(1, 9)] * 3),
    choice=_CHOICES,
    seed=st.integers(0, 2**63 - 1),
)
def test_each_lap_of_a_source_has_each_of_its_samples_once(
    lengths: list[int], weights: tuple[int, ...], choice: OrderChoice, seed: int
) -> None:
    orders = _orders(tuple(lengths), (0, weights), epoch=500, of_source=choice)
    found = orders.order(num_samples=500, seed=seed, epoch=0).sample_ids(np.arange(500))
    num_ids = sum(lengths)
    starts = np.cumsum([0, *lengths])
    for source, (first, stop) in enumerate(pairwise(starts.tolist())):
        own = found[(found % num_ids >= first) & (found % num_ids < stop)]
        assert len(own) >= 500 * weights[source] // sum(weights) - 65
        laps = own // num_ids
        assert (laps == np.arange(len(own)) // lengths[source]).all()
        for lap in range(int(laps[-1])):
            assert sorted((own[laps == lap] % num_ids).tolist()) == list(range(first, stop))


@given(lengths=st.lists(st.integers(1, 10**6), min_size=2, max_size=5), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_shuffled_sources_do_not_depend_on_the_native_module(
    lengths: list[int], seed: int, data: st.DataObject
) -> None:
    orders = _orders(tuple(lengths), (0, (1,) * len(lengths)), epoch=10**9)
    epoch = data.draw(st.integers(0, 10**6))
    positions = np.array(data.draw(st.lists(st.integers(0, 10**9 - 1), max_size=30)), np.int64)
    native = orders.order(num_samples=10**9, seed=seed, epoch=epoch).sample_ids(positions)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(permutations, "NATIVE", None)
        plain = _orders(tuple(lengths), (0, (1,) * len(lengths)), epoch=10**9)
        assert (plain.order(num_samples=10**9, seed=seed, epoch=epoch).sample_ids(positions) == native).all()


@settings(max_examples=25)
@given(weights=_WEIGHTS, at=st.integers(0, 400), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_a_change_of_weights_moves_nothing_that_came_before_it(
    weights: list[int], at: int, seed: int, data: st.DataObject
) -> None:
    lengths = tuple(range(10, 10 + len(weights)))
    before = _orders(lengths, (0, tuple(weights)), (200, tuple(reversed(weights))))
    other = Shares(tuple(data.draw(st.permutations([*weights]))))
    after = before.changed(at, other, seed=seed)
    assert after.spec == before.spec
    assert _ids(after, seed=seed, first=0, stop=at) == _ids(before, seed=seed, first=0, stop=at)
    again = after.changed(at, Shares(tuple(weights)), seed=seed)
    assert len(again.changes) == 1


def _deviations(phases: tuple[Phase, ...], *, num_positions: int, seed: int) -> NDArray[np.float64]:
    """Return by how many samples each source misses its share of each prefix, float64 [num_positions, num_sources]."""
    num_sources = len(phases[0].shares.parts)
    sources, _ = Turns(phases, seed=seed).at(np.arange(num_positions))
    stops = [*(phase.start for phase in phases[1:]), num_positions]
    shares = [np.array(phase.shares.parts) / phase.shares.total for phase in phases]
    held = [stop - phase.start for phase, stop in zip(phases, stops, strict=True)]
    wanted = np.cumsum(np.repeat(shares, held, axis=0), axis=0)
    deviations: NDArray[np.float64] = np.cumsum(sources[:, None] == np.arange(num_sources), axis=0) - wanted
    return deviations


@settings(max_examples=50)
@given(
    weights=st.lists(st.tuples(*[st.integers(0, 99)] * 4).filter(any), min_size=1, max_size=60),
    gap=st.sampled_from([1, 7, 64, 100, 300]),
    seed=st.integers(0, 2**63 - 1),
)
def test_however_often_weights_change_no_source_falls_behind(
    weights: list[tuple[int, ...]], gap: int, seed: int
) -> None:
    phases = tuple(Phase(start=gap * number, shares=Shares(parts)) for number, parts in enumerate(weights))
    deviations = _deviations(phases, num_positions=gap * len(phases) + 300, seed=seed)
    assert abs(deviations).max() < 16  # a window of 64 positions without a change: up to 8


@pytest.mark.slow
@pytest.mark.parametrize("gap", [1, 10, 64, 100, 1000])
def test_the_same_weights_again_and_again_are_like_no_change(gap: int) -> None:
    phases = tuple(Phase(start=start, shares=Shares((1, 20, 79))) for start in range(0, 6400, gap))
    deviations = _deviations(phases, num_positions=6400, seed=0)
    assert abs(deviations[-1]).max() < 4
    assert abs(deviations).max() < 12


@pytest.mark.slow
@settings(max_examples=25)
@given(
    weights=st.lists(st.tuples(*[st.integers(10**5, 10**9)] * 3), min_size=30, max_size=40),
    gap=st.integers(1, 200),
    seed=st.integers(0, 2**63 - 1),
    data=st.data(),
)
def test_a_checkpoint_keeps_few_changes_and_all_that_they_lead_to(
    weights: list[tuple[int, ...]], gap: int, seed: int, data: st.DataObject
) -> None:
    before = _orders((10, 20, 30), (0, (1, 1, 1)))
    phases = [Phase(start=gap * number, shares=Shares.of(parts)) for number, parts in enumerate(weights)]
    whole = before.with_changes(tuple(phases))
    few = before
    for phase in phases:
        few = few.changed(phase.start, phase.shares, seed=seed)
    stored = json.loads(json.dumps([change.in_state() for change in few.changes]))
    assert len(json.dumps(stored)) <= 500
    restored = before.with_changes(tuple(Phase.of_state(*change) for change in stored))
    first = phases[-1].start
    position = data.draw(st.integers(first, first + 500))
    assert _ids(restored, seed=seed, first=position, stop=position + 20) == _ids(
        whole, seed=seed, first=position, stop=position + 20
    )
    epoch, place = divmod(position, before.epoch_samples)
    assert restored.counts_before(seed=seed, epoch=epoch, position=place) == whole.counts_before(
        seed=seed, epoch=epoch, position=place
    )
    if few.changes[0].start:
        with pytest.raises(ArgumentError, match="weights have changed often since"):
            _ids(restored, seed=seed, first=0, stop=1)


def test_weights_that_change_again_at_the_same_position_lose_no_history() -> None:
    weights = [tuple(range(number, number + 90)) for number in (1, 5, 2)]  # too many to keep two changes
    before = _orders((10,) * 90, (0, (1,) * 90)).changed(1000, Shares(weights[0]), seed=3)
    twice = before.changed(1500, Shares(weights[1]), seed=3).changed(1500, Shares(weights[2]), seed=3)
    once = before.changed(1500, Shares(weights[2]), seed=3)
    assert once.changes[0].counts
    assert twice.changes[0].counts == once.changes[0].counts
    assert _ids(twice, seed=3, first=1500, stop=1700) == _ids(once, seed=3, first=1500, stop=1700)
    with pytest.raises(ArgumentError, match="weights have changed often since"):
        once.changed(1499, Shares(weights[0]), seed=3)


@pytest.mark.parametrize(
    ("counts", "owed"),
    [
        ((4, 5), ()),
        ((4, 5, 2), ()),
        ((5, 6, -1), ()),
        ((4, 5, 1), (1, 1, 1)),
        ((4, 5, 1), (1, -1)),
        ((4, 5, 1), (1 << 62, -(1 << 62), 0)),
        ((4, 5, 1), (0, 1, -1)),
    ],
)
def test_damaged_counts_and_debts_are_refused(counts: tuple[int, ...], owed: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="must"):
        _orders((10, 20, 30), (0, (1, 1, 1))).with_changes((Phase.of_state(10, (1, 1, 0), counts, owed),))


@settings(max_examples=30)
@given(
    start=st.integers(0, 100),
    ranks=st.sampled_from([(1, 12), (2, 6), (3, 4), (12, 1)]),
    epoch=st.integers(0, 50),
    tail=st.sampled_from(list(Tail)),
)
def test_global_batches_do_not_depend_on_the_number_of_ranks(
    start: int, ranks: tuple[int, int], epoch: int, tail: Tail
) -> None:
    orders = _orders((7, 40, 1000), (0, (3, 2, 5)), (77, (1, 1, 1))).changed(130, Shares((0, 1, 1)), seed=5)

    def global_batches(world_size: int, batch_size: int) -> list[list[int]]:
        batching = Batching(num_samples=100, batch_size=batch_size, order=orders, tail=tail)
        plans = [
            batching.plan_of(topology=Topology(rank=rank, world_size=world_size), start=start)
            for rank in range(world_size)
        ]
        return [
            [
                sample_id
                for plan in plans
                for sample_id in batching.sample_ids(
                    BatchNumber(seed=5, epoch=epoch, start=start, batch=batch, topology=plan.topology)
                ).tolist()
            ]
            for batch in range(plans[0].num_batches)
        ]

    assert global_batches(*ranks) == global_batches(1, 12)


def test_wrong_phases_are_refused() -> None:
    with pytest.raises(ArgumentError, match="there must be 2 weights, got 3"):
        _orders((1, 2), (0, (1, 2, 3)))
    with pytest.raises(ArgumentError, match="source 1 has a weight, but no samples"):
        _orders((1, 0), (0, (1, 2)))
    with pytest.raises(ArgumentError, match="must ascend, got 5 and 5"):
        _orders((1, 1), (0, (1, 2)), (5, (1, 1)), (5, (1, 2)))
    with pytest.raises(ArgumentError, match="epoch must be in"):
        _orders((1, 1), (0, (1, 2))).order(num_samples=100, seed=0, epoch=2**62)


def test_the_order_of_a_mixture_is_the_one_of_every_version() -> None:
    orders = _orders((5, 300, 70), (0, (3, 2, 5)), (90, (1, 1, 1)))
    assert _ids(orders, seed=1, first=80, stop=100) == [
        1502, 199, 1503, 305, 114, 359, 364, 1879, 123, 77,
        1875, 1877, 91, 33, 354, 327, 321, 1876, 293, 141,
    ]  # fmt: skip
