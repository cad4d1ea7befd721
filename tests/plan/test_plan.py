"""Plans divide an epoch without losing or repeating a sample, and a checkpoint is a few integers."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.errors import ArgumentError, StateError
from mpload.plan.checkpoint import State
from mpload.plan.plan import Plan, Tail
from mpload.plan.topology import Topology

many_cases = settings(max_examples=500)
nums_samples = st.one_of(
    st.integers(0, 300),
    st.builds(lambda bits, around: (1 << bits) + around, st.integers(1, 9), st.integers(-1, 1)),
)
batch_sizes = st.integers(1, 40)
world_sizes = st.integers(1, 9)
tails = st.sampled_from(Tail)


def plans_of_ranks(num_samples: int, batch_size: int, world_size: int, tail: Tail, start: int = 0) -> list[Plan]:
    return [
        Plan(
            num_samples=num_samples,
            batch_size=batch_size,
            topology=Topology(rank=rank, world_size=world_size),
            tail=tail,
            start=start,
        )
        for rank in range(world_size)
    ]


def global_batches(plans: list[Plan]) -> list[list[int]]:
    """Return the positions that all ranks together consume in each step, rank after rank."""
    assert len({plan.num_batches for plan in plans}) == 1, "ranks must take the same number of steps"
    return [
        [position for plan in plans for position in plan.positions(batch).tolist()]
        for batch in range(plans[0].num_batches)
    ]


def joined(batches: list[list[int]]) -> list[int]:
    return [position for batch in batches for position in batch]


# --- tails ------------------------------------------------------------------------------------------------------------


@given(nums_samples, batch_sizes, world_sizes, st.data())
@many_cases
def test_drop_yields_every_position_once_up_to_the_last_full_global_batch(
    num_samples: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_samples))
    batches = global_batches(plans_of_ranks(num_samples, batch_size, world_size, Tail.DROP, start))
    assert joined(batches) == list(range(start, start + len(batches) * batch_size * world_size))
    assert num_samples - start - len(joined(batches)) in range(batch_size * world_size)


@given(nums_samples, batch_sizes, world_sizes, st.data())
@many_cases
def test_ragged_yields_every_position_once(
    num_samples: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_samples))
    plans = plans_of_ranks(num_samples, batch_size, world_size, Tail.RAGGED, start)
    batches = global_batches(plans)
    assert joined(batches) == list(range(start, num_samples))
    assert all(batches), "in every step some rank has a sample"
    for plan in plans:
        sizes = [plan.positions(batch).size for batch in range(plan.num_batches)]
        assert sizes == [plan.num_real_samples(batch) for batch in range(plan.num_batches)]
        assert all(size == batch_size for size in sizes[:-1])


@given(nums_samples, batch_sizes, world_sizes, st.data())
@many_cases
def test_pad_yields_full_batches_with_every_position_once_besides_the_padding(
    num_samples: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_samples))
    plans = plans_of_ranks(num_samples, batch_size, world_size, Tail.PAD, start)
    real, padding = [], []
    for batch in range(plans[0].num_batches):
        for plan in plans:
            positions = plan.positions(batch).tolist()
            assert len(positions) == batch_size
            real += positions[: plan.num_real_samples(batch)]
            padding += positions[plan.num_real_samples(batch) :]
    assert real == list(range(start, num_samples))
    assert len(padding) < batch_size * world_size
    assert padding == [at % num_samples for at in range(len(padding))], "padding starts at position 0 and wraps around"


@given(nums_samples, batch_sizes, world_sizes, tails, st.data())
@many_cases
def test_the_number_of_samples_of_a_rank_is_the_sum_over_its_batches(
    num_samples: int, batch_size: int, world_size: int, tail: Tail, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_samples))
    for plan in plans_of_ranks(num_samples, batch_size, world_size, tail, start):
        assert plan.num_samples_of_rank == sum(map(plan.num_real_samples, range(plan.num_batches)))


@pytest.mark.parametrize("tail", Tail)
def test_an_empty_or_finished_epoch_has_no_batches(tail: Tail) -> None:
    for num_samples, start in ((0, 0), (10, 10)):
        for plan in plans_of_ranks(num_samples, 4, 3, tail, start):
            assert plan.num_batches == plan.num_samples_of_rank == 0
            assert plan.position_after(0) == num_samples


def test_fewer_samples_than_a_global_batch() -> None:
    def positions(tail: Tail) -> list[list[list[int]]]:
        plans = plans_of_ranks(num_samples=5, batch_size=4, world_size=3, tail=tail)
        return [[plan.positions(batch).tolist() for batch in range(plan.num_batches)] for plan in plans]

    assert positions(Tail.DROP) == [[], [], []]
    assert positions(Tail.RAGGED) == [[[0, 1, 2, 3]], [[4]], [[]]]
    assert positions(Tail.PAD) == [[[0, 1, 2, 3]], [[4, 0, 1, 2]], [[3, 4, 0, 1]]]


# --- same batches everywhere ------------------------------------------------------------------------------------------


@given(nums_samples, world_sizes, world_sizes, batch_sizes, tails, st.data())
@many_cases
def test_global_batches_do_not_depend_on_how_ranks_split_them(
    num_samples: int, one: int, other: int, share: int, tail: Tail, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_samples))
    these = plans_of_ranks(num_samples, share * other, one, tail, start)
    those = plans_of_ranks(num_samples, share * one, other, tail, start)
    assert global_batches(these) == global_batches(those)


@given(nums_samples, batch_sizes, world_sizes, batch_sizes, world_sizes, st.data())
@many_cases
def test_resuming_with_any_other_ranks_and_batches_yields_exactly_the_rest(
    num_samples: int, batch_size: int, world_size: int, new_batch_size: int, new_world_size: int, data: st.DataObject
) -> None:
    plans = plans_of_ranks(num_samples, batch_size, world_size, Tail.RAGGED)
    num_done = data.draw(st.integers(0, plans[0].num_batches))
    position = plans[-1].position_after(num_done)
    resumed = plans_of_ranks(num_samples, new_batch_size, new_world_size, Tail.RAGGED, position)
    done = joined(global_batches(plans)[:num_done])
    assert done + joined(global_batches(resumed)) == list(range(num_samples))


@given(nums_samples, batch_sizes, world_sizes, tails, st.data())
@many_cases
def test_resuming_unchanged_yields_the_same_batches_as_continuing(
    num_samples: int, batch_size: int, world_size: int, tail: Tail, data: st.DataObject
) -> None:
    plans = plans_of_ranks(num_samples, batch_size, world_size, tail)
    num_done = data.draw(st.integers(0, plans[0].num_batches))
    position = plans[0].position_after(num_done)
    assert len({plan.position_after(num_done) for plan in plans}) == 1
    resumed = plans_of_ranks(num_samples, batch_size, world_size, tail, position)
    assert global_batches(resumed) == global_batches(plans)[num_done:]


@given(nums_samples, batch_sizes, st.integers(1, 12), tails)
@many_cases
def test_workers_that_take_turns_divide_the_batches_of_a_rank(
    num_samples: int, batch_size: int, num_workers: int, tail: Tail
) -> None:
    plan = plans_of_ranks(num_samples, batch_size, 2, tail)[1]
    alone = [plan.positions(batch).tolist() for batch in range(plan.num_batches)]
    of_worker = [
        [plan.positions(batch).tolist() for batch in range(worker, plan.num_batches, num_workers)]
        for worker in range(num_workers)
    ]
    in_turn = [of_worker[batch % num_workers][batch // num_workers] for batch in range(plan.num_batches)]
    assert in_turn == alone
    assert sum(map(len, of_worker)) == len(alone)


def test_huge_epochs_do_not_overflow() -> None:
    num_samples = 2**62
    plan = Plan(
        num_samples=num_samples,
        batch_size=256,
        topology=Topology(rank=1000, world_size=1001),
        tail=Tail.PAD,
        start=9_000_000_000,
    )
    last = plan.num_batches - 1
    positions = plan.positions(last)
    assert positions.dtype == np.int64
    assert positions.size == 256
    assert 0 <= positions.min() <= positions.max() < num_samples
    assert plan.position_after(plan.num_batches) == num_samples


def test_more_ranks_and_batches_than_samples_do_not_overflow() -> None:
    ragged = plans_of_ranks(num_samples=5, batch_size=2**61, world_size=9, tail=Tail.RAGGED)
    assert [plan.positions(0).size for plan in ragged] == [5, *[0] * 8]
    last = Topology(rank=2**62 - 2, world_size=2**62 - 1)
    padded = Plan(num_samples=5, batch_size=4, topology=last, tail=Tail.PAD)
    first = 4 * (2**62 - 2)  # beyond int64
    assert padded.positions(0).tolist() == [(first + at) % 5 for at in range(4)]


# --- bad arguments ----------------------------------------------------------------------------------------------------


def test_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^rank must be in \[0, 2\), got 3$"):
        Topology(rank=3, world_size=2)
    with pytest.raises(ArgumentError, match=r"^rank must be in \[0, 1\), got -1$"):
        Topology(rank=-1)
    with pytest.raises(ArgumentError, match="world_size must be"):
        Topology(world_size=0)


def test_the_default_topology_is_rank_0_of_1() -> None:
    assert Topology() == Topology(rank=0, world_size=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_samples": -1}, "num_samples must be"),
        ({"num_samples": 2**62 + 1}, "num_samples must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"start": -1}, r"start must be in \[0, 11\), got -1"),
        ({"start": 11}, r"start must be in \[0, 11\), got 11"),
        ({"tail": "cut"}, r"tail must be one of 'drop', 'pad', 'ragged', got 'cut'"),
    ],
)
def test_plan_out_of_range_is_refused(wrong: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"num_samples": 10, "batch_size": 4, "topology": Topology(), "tail": Tail.PAD}
    Plan(**right)
    with pytest.raises(ArgumentError, match=message):
        Plan(**right | wrong)


def test_batch_out_of_range_is_refused() -> None:
    plan = Plan(num_samples=10, batch_size=4, topology=Topology(), tail=Tail.DROP)
    for batch in (-1, 2):
        with pytest.raises(ArgumentError, match=rf"batch must be in \[0, 2\), got {batch}"):
            plan.positions(batch)
        with pytest.raises(ArgumentError, match="batch must be"):
            plan.num_real_samples(batch)
    for num_batches in (-1, 3):
        with pytest.raises(ArgumentError, match=rf"num_batches must be in \[0, 3\), got {num_batches}"):
            plan.position_after(num_batches)


def test_tails_are_named_as_users_write_them() -> None:
    assert [Tail("drop"), Tail("pad"), Tail("ragged")] == list(Tail)
    with pytest.raises(ValueError, match="tail must be one of"):
        Tail("Drop")


# --- state ------------------------------------------------------------------------------------------------------------

STATE = State(fingerprint="blake2b:00ff", order="shuffle", seed=3, epoch=2, position=9_000_000_000)


@given(
    st.builds(
        State,
        version=st.just(1),
        seed=st.integers(0, 2**63 - 1),
        epoch=st.integers(0, 2**63 - 1),
        position=st.integers(0, 2**62),
    )
)
def test_state_survives_json_and_pickle(state: State) -> None:
    assert State.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert pickle.loads(pickle.dumps(state)) == state


def test_state_is_a_flat_dictionary_of_integers_and_strings() -> None:
    assert STATE.to_dict() == {
        "version": 1,
        "fingerprint": "blake2b:00ff",
        "order": "shuffle",
        "seed": 3,
        "epoch": 2,
        "position": 9_000_000_000,
    }


@pytest.mark.parametrize("name", STATE.to_dict())
def test_state_without_a_key_is_refused(name: str) -> None:
    lacking = {key: value for key, value in STATE.to_dict().items() if key != name}
    with pytest.raises(StateError, match=f"it has no '{name}'. Pass what state_dict"):
        State.from_dict(lacking)


def test_state_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(StateError, match="it has unknown keys 'rank'"):
        State.from_dict({**STATE.to_dict(), "rank": 0})


@pytest.mark.parametrize("version", [0, 2, "1", True, None])
def test_state_of_another_version_is_refused_before_anything_else_is_checked(version: object) -> None:
    with pytest.raises(StateError, match=r"format version .*, but this mpload reads version 1\. Restore"):
        State.from_dict({"version": version, "something": "new"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fingerprint", 5),
        ("fingerprint", None),
        ("order", b"shuffle"),
        ("seed", "3"),
        ("seed", -1),
        ("seed", 2**63),
        ("epoch", 1.0),
        ("epoch", True),
        ("position", -1),
        ("position", 2**62 + 1),
        ("position", None),
    ],
)
def test_state_with_a_wrong_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(StateError, match=f"{name} must be .*, got {value!r}"):
        State.from_dict({**STATE.to_dict(), name: value})


@pytest.mark.slow
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
    | st.dictionaries(st.text(), st.none())
)
def test_anything_but_a_state_raises_a_state_error(thing: Any) -> None:
    with pytest.raises(StateError):
        State.from_dict(thing)


def test_state_fits_only_its_own_index_and_order() -> None:
    STATE.check_fits(fingerprint="blake2b:00ff", order="shuffle", num_samples=9_000_000_000)
    with pytest.raises(StateError, match=r"made with another index: .*'blake2b:00ff', this index has 'other'\. Open"):
        STATE.check_fits(fingerprint="other", order="shuffle", num_samples=10**10)
    with pytest.raises(StateError, match="made with order 'shuffle', but this run uses 'sequential'"):
        STATE.check_fits(fingerprint="blake2b:00ff", order="sequential", num_samples=10**10)
    with pytest.raises(StateError, match=r"position must be in \[0, 1000\], got 9000000000"):
        STATE.check_fits(fingerprint="blake2b:00ff", order="shuffle", num_samples=1000)
