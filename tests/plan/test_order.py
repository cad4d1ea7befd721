"""Orders are bijections, frozen, and cost no memory per sample.

After a wanted (breaking) change of an order: raise `_VERSION` in `mpload/plan/order.py`, run
`MPLOAD_REGENERATE=1 python -m pytest tests/plan/test_order.py`, and tell users in CHANGELOG.md that old checkpoints
do not fit.
"""

import json
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.order import BlockShuffle, Order, OrderChoice, Sequential, Shuffle, _Permutation, _round_keys

GOLDEN = Path(__file__).parents[1] / "golden" / "order.json"
AROUND_POWERS_OF_TWO = sorted({(1 << bits) + around for bits in range(10, 15) for around in (-1, 0, 1)})
CHOICES: list[OrderChoice] = [
    Sequential(),
    Shuffle(),
    BlockShuffle(block_samples=1, window_blocks=1),
    BlockShuffle(block_samples=1, window_blocks=7),
    BlockShuffle(block_samples=5, window_blocks=1),
    BlockShuffle(block_samples=7, window_blocks=3),
    BlockShuffle(block_samples=16, window_blocks=4),
    BlockShuffle(block_samples=1000, window_blocks=2),
]
BLOCK_SHUFFLES = [choice for choice in CHOICES if isinstance(choice, BlockShuffle)]

seeds = st.integers(0, 2**63 - 1)
block_shuffles = st.builds(BlockShuffle, block_samples=st.integers(1, 400), window_blocks=st.integers(1, 40))
choices = st.one_of(st.just(Shuffle()), block_shuffles)


def order_of(choice: OrderChoice, num_samples: int, *, seed: int = 0, epoch: int = 0) -> Order:
    return choice.order(num_samples=num_samples, seed=seed, epoch=epoch)


def all_ids(order: Order) -> NDArray[np.int64]:
    return order.sample_ids(np.arange(order.num_samples))


def assert_bijection(order: Order) -> None:
    ids = all_ids(order)
    assert ids.dtype == np.int64
    assert np.array_equal(np.sort(ids), np.arange(order.num_samples))


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.spec)
def test_every_epoch_is_a_bijection_for_every_small_number_of_samples(choice: OrderChoice) -> None:
    for num_samples in range(1100):
        assert_bijection(order_of(choice, num_samples, seed=num_samples, epoch=3))


@pytest.mark.parametrize("num_samples", AROUND_POWERS_OF_TWO)
def test_every_epoch_is_a_bijection_around_powers_of_two(num_samples: int) -> None:
    for choice in CHOICES:
        for epoch in range(3):
            assert_bijection(order_of(choice, num_samples, seed=7, epoch=epoch))


@given(choice=choices, num_samples=st.integers(0, 5000), seed=seeds, epoch=seeds)
@settings(max_examples=300)
def test_every_epoch_is_a_bijection(choice: OrderChoice, num_samples: int, seed: int, epoch: int) -> None:
    assert_bijection(order_of(choice, num_samples, seed=seed, epoch=epoch))


@given(num_values=st.integers(1, 2**62), seed=seeds, data=st.data())
@settings(max_examples=200)
def test_inverse_of_a_permutation_finds_every_place_however_many_there_are(
    num_values: int, seed: int, data: st.DataObject
) -> None:
    permutation = _Permutation(num_values, _round_keys("shuffle", seed, 0))
    places = np.array(data.draw(st.lists(st.integers(0, num_values - 1), max_size=20)), np.uint64)
    values = permutation(places)
    assert (values < num_values).all()
    assert np.array_equal(permutation.inverse(values), places)


@given(choice=choices, num_samples=st.integers(1, 2**62), seed=seeds, data=st.data())
@settings(max_examples=200)
def test_huge_epochs_give_distinct_ids_in_range(
    choice: OrderChoice, num_samples: int, seed: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, max(0, num_samples - 3000)))
    positions = np.arange(first, min(num_samples, first + 3000))
    ids = order_of(choice, num_samples, seed=seed).sample_ids(positions)
    assert ids.min() >= 0
    assert ids.max() < num_samples
    assert np.unique(ids).size == positions.size


@given(choice=choices, num_samples=st.integers(1, 3000), seed=seeds, data=st.data())
@settings(max_examples=200)
def test_any_positions_in_any_sequence_give_what_the_whole_epoch_gives_there(
    choice: OrderChoice, num_samples: int, seed: int, data: st.DataObject
) -> None:
    order = order_of(choice, num_samples, seed=seed)
    positions = np.array(data.draw(st.lists(st.integers(0, num_samples - 1), max_size=50)), np.int64)
    first, stop = sorted(data.draw(st.tuples(st.integers(0, num_samples), st.integers(0, num_samples))))
    whole = all_ids(order)
    assert np.array_equal(order.sample_ids(positions), whole[positions])
    assert np.array_equal(order.sample_ids(np.arange(first, stop)), whole[first:stop])


def test_sequential_gives_the_positions() -> None:
    assert np.array_equal(all_ids(order_of(Sequential(), 10, seed=3, epoch=4)), np.arange(10))


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.spec)
def test_positions_are_neither_modified_nor_given_back(choice: OrderChoice) -> None:
    positions = np.arange(2000)[::-2]  # a strided view
    positions.flags.writeable = False
    ids = order_of(choice, 2000).sample_ids(positions)
    assert np.array_equal(positions, np.arange(2000)[::-2])
    assert not np.shares_memory(ids, positions)
    assert ids.flags.writeable


@pytest.mark.parametrize("choice", CHOICES[:4], ids=lambda choice: choice.spec)
def test_order_and_choice_survive_a_pickle(choice: OrderChoice) -> None:
    order = order_of(choice, 1000, seed=5)
    assert np.array_equal(all_ids(pickle.loads(pickle.dumps(order))), all_ids(order))
    assert pickle.loads(pickle.dumps(choice)) == choice


def test_specs_are_stable() -> None:
    assert Sequential().spec == "sequential"
    assert Shuffle().spec == "shuffle"
    spec = BlockShuffle(block_samples=256, window_blocks=16).spec
    assert spec == "block_shuffle(block_samples=256,window_blocks=16)"


# --- locality ---------------------------------------------------------------------------------------------------------


def windows_of(choice: BlockShuffle, ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut an epoch into its windows, where a window is as long as the blocks in it."""
    num_blocks = -(-ids.size // choice.block_samples)
    windows: list[NDArray[np.int64]] = []
    first = 0
    while first < ids.size:
        rest = ids[first : first + choice.block_samples * choice.window_blocks] // choice.block_samples
        blocks = np.unique(rest)
        if blocks.size > choice.window_blocks:  # a short block is in it: the window ends earlier
            short = choice.block_samples * num_blocks - ids.size
            rest = rest[: rest.size - short]
        windows.append(np.unique(rest))
        first += rest.size
    return windows


@given(choice=block_shuffles, num_samples=st.integers(1, 5000), seed=seeds)
@settings(max_examples=200)
def test_a_window_of_positions_touches_at_most_window_blocks_blocks_and_no_other_window_does(
    choice: BlockShuffle, num_samples: int, seed: int
) -> None:
    windows = windows_of(choice, all_ids(order_of(choice, num_samples, seed=seed)))
    assert max(blocks.size for blocks in windows) <= choice.window_blocks
    touched = np.concatenate(windows)
    assert touched.size == np.unique(touched).size == -(-num_samples // choice.block_samples)


@given(choice=block_shuffles, num_samples=st.integers(1, 5000), seed=seeds)
@settings(max_examples=200)
def test_a_run_as_long_as_a_window_touches_at_most_three_windows(
    choice: BlockShuffle, num_samples: int, seed: int
) -> None:
    blocks = all_ids(order_of(choice, num_samples, seed=seed)) // choice.block_samples
    length = choice.block_samples * choice.window_blocks
    for first in range(0, num_samples, max(1, num_samples // 20)):
        assert np.unique(blocks[first : first + length]).size <= 3 * choice.window_blocks


def test_short_block_lands_anywhere_in_the_block_order() -> None:
    choice, num_samples = BlockShuffle(block_samples=10, window_blocks=1), 73
    places = [int(np.argmax(all_ids(order_of(choice, num_samples, seed=seed)) >= 70)) // 10 for seed in range(200)]
    assert set(places) == set(range(8))


def test_samples_of_a_window_are_shuffled_over_all_its_blocks() -> None:
    choice = BlockShuffle(block_samples=100, window_blocks=10)
    blocks = all_ids(order_of(choice, 10_000)) // 100
    for window in blocks.reshape(10, 1000):
        assert np.unique(window).size == 10
        assert np.unique(window[:100]).size >= 9
        assert np.bincount(np.diff(window) == 0)[0] > 800  # neighbours are seldom of the same block


def test_windows_are_shuffled_each_in_its_own_way() -> None:
    choice = BlockShuffle(block_samples=100, window_blocks=1)
    offsets = all_ids(order_of(choice, 10_000)) % 100
    assert np.unique(offsets.reshape(100, 100), axis=0).shape[0] == 100


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [Sequential(), Shuffle(), BlockShuffle(block_samples=256, window_blocks=16)])
def test_memory_is_the_same_for_a_trillion_samples(choice: OrderChoice) -> None:
    peaks = []
    for num_samples in (10_000, 10**12):
        positions = np.arange(num_samples - 4096, num_samples)
        tracemalloc.start()
        choice.order(num_samples=num_samples, seed=1, epoch=0).sample_ids(positions)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 20 * positions.nbytes
    assert peaks[1] < 1.5 * peaks[0] + 10_000


# --- bad arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.spec)
@pytest.mark.parametrize(("position", "shown"), [(-1, "-1"), (1000, "1000"), (2**62, "4611686018427387904")])
def test_position_out_of_range_is_refused(choice: OrderChoice, position: int, shown: str) -> None:
    with pytest.raises(ArgumentError, match=rf"positions must be in \[0, 1000\), got {shown}$"):
        order_of(choice, 1000).sample_ids(np.array([5, position, 7]))


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.spec)
def test_an_empty_epoch_gives_nothing_and_takes_no_position(choice: OrderChoice) -> None:
    order = order_of(choice, 0)
    assert order.num_samples == 0
    assert order.sample_ids(np.array([], np.int64)).size == 0
    with pytest.raises(ArgumentError, match="got 0"):
        order.sample_ids(np.array([0]))


@pytest.mark.parametrize("positions", [np.zeros((2, 2), np.int64), np.array([1.5]), np.array([1], np.uint64)])
def test_positions_of_another_kind_are_refused(positions: NDArray[np.int64]) -> None:
    with pytest.raises(ArgumentError, match="positions must be a one-dimensional int64 array, got"):
        order_of(Shuffle(), 10).sample_ids(positions)


@pytest.mark.parametrize("choice", CHOICES[:3], ids=lambda choice: choice.spec)
@pytest.mark.parametrize(
    ("num_samples", "seed", "epoch", "message"),
    [
        (-1, 0, 0, r"num_samples must be an integer in \[0, 4611686018427387905\), got -1"),
        (2**62 + 1, 0, 0, "num_samples must be"),
        (1, -1, 0, "seed must be"),
        (1, 2**63, 0, "seed must be"),
        (1, 0, -1, "epoch must be"),
        (1, 0, 2**63, "epoch must be"),
        (1, 0.5, 0, r"seed must be an integer in .*, got 0\.5"),
    ],
)
def test_epoch_out_of_range_is_refused(
    choice: OrderChoice, num_samples: int, seed: int, epoch: int, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        choice.order(num_samples=num_samples, seed=seed, epoch=epoch)


@pytest.mark.parametrize(("block_samples", "window_blocks"), [(0, 1), (1, 0), (2**31, 1), (1, 2**31), (-3, 1)])
def test_blocks_out_of_range_are_refused(block_samples: int, window_blocks: int) -> None:
    with pytest.raises(ArgumentError, match=r"must be an integer in \[1, 2147483648\), got"):
        BlockShuffle(block_samples=block_samples, window_blocks=window_blocks)


def test_largest_legal_arguments_are_taken() -> None:
    choice = BlockShuffle(block_samples=2**31 - 1, window_blocks=2**31 - 1)
    order = choice.order(num_samples=2**62, seed=2**63 - 1, epoch=2**63 - 1)
    ids = order.sample_ids(np.array([0, 2**61, 2**62 - 1]))
    assert np.unique(ids).size == 3
    assert 0 <= ids.min() <= ids.max() < 2**62


# --- the golden file --------------------------------------------------------------------------------------------------

GOLDEN_CHOICES: list[OrderChoice] = [
    Sequential(),
    Shuffle(),
    BlockShuffle(block_samples=4, window_blocks=3),
    BlockShuffle(block_samples=256, window_blocks=16),
]


def golden_orders() -> dict[str, list[int]]:
    """Return the first ids, and for long epochs the last, of a table of orders."""
    orders = {}
    for choice in GOLDEN_CHOICES:
        for num_samples in (1, 2, 5, 17, 1000, 1_281_167, 10**10, 2**62):
            for seed, epoch in ((0, 0), (0, 1), (1, 0), (2**63 - 1, 2**63 - 1)):
                order = choice.order(num_samples=num_samples, seed=seed, epoch=epoch)
                positions = np.unique([*range(min(8, num_samples)), *range(max(0, num_samples - 4), num_samples)])
                key = f"{choice.spec} num_samples={num_samples} seed={seed} epoch={epoch}"
                orders[key] = order.sample_ids(positions).tolist()
    return orders


def test_orders_are_those_of_the_golden_file() -> None:
    if os.environ.get("MPLOAD_REGENERATE") == "1":
        lines = (f"{json.dumps(key)}: {json.dumps(ids)}" for key, ids in golden_orders().items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert golden_orders() == json.loads(GOLDEN.read_text())
