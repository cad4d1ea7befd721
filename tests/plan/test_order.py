"""Orders are bijections, never change between versions, and use no memory per sample.

If you change an order on purpose, which is a breaking change: raise `_VERSION` in `mpload/plan/order.py`, run
`MPLOAD_REGENERATE=1 python -m pytest tests/plan/test_order.py`, and say in CHANGELOG.md that checkpoints of earlier
versions cannot be restored.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan import permutation as permutation_module
from mpload.plan.order import BlockShuffle, OrderChoice, Sequential, Shuffle, round_keys
from mpload.plan.permutation import Permutation
from tests.support.order_contract import OrderContract, all_ids, assert_bijection, order_of

GOLDEN = Path(__file__).parents[1] / "golden" / "order.json"
BLOCK_SHUFFLES = [
    BlockShuffle(block_samples=1, window_blocks=1),
    BlockShuffle(block_samples=1, window_blocks=7),
    BlockShuffle(block_samples=5, window_blocks=1),
    BlockShuffle(block_samples=7, window_blocks=3),
    BlockShuffle(block_samples=16, window_blocks=4),
    BlockShuffle(block_samples=1000, window_blocks=2),
]

seeds = st.integers(0, 2**63 - 1)
block_shuffles = st.builds(BlockShuffle, block_samples=st.integers(1, 400), window_blocks=st.integers(1, 40))
choices = st.one_of(st.just(Shuffle()), block_shuffles)


class TestSequential(OrderContract):
    @pytest.fixture
    def choice(self) -> OrderChoice:
        return Sequential()


class TestShuffle(OrderContract):
    @pytest.fixture
    def choice(self) -> OrderChoice:
        return Shuffle()


class TestBlockShuffle(OrderContract):
    @pytest.fixture(params=BLOCK_SHUFFLES, ids=lambda choice: choice.spec)
    def choice(self, request: pytest.FixtureRequest) -> OrderChoice:
        made: BlockShuffle = request.param
        return made


@pytest.mark.skipif(permutation_module.NATIVE is None, reason="the native module is not built")
@given(
    choice=choices, num_samples=st.integers(1, 5000) | st.integers(1, 1 << 62), seed=seeds, epoch=seeds, data=st.data()
)
@settings(max_examples=200)
def test_orders_are_the_same_without_the_native_module(
    choice: OrderChoice, num_samples: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, num_samples - 1), max_size=50)), np.int64)
    order = choice.order(num_samples=num_samples, seed=seed, epoch=epoch)
    native = order.sample_ids(positions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation_module, "NATIVE", None)
        np.testing.assert_array_equal(native, order.sample_ids(positions))


@pytest.mark.skipif(permutation_module.NATIVE is None, reason="the native module is not built")
def test_the_native_module_refuses_arrays_that_do_not_fit_together() -> None:
    assert permutation_module.NATIVE is not None
    one, two = np.zeros(1, np.uint64), np.zeros(2, np.uint64)
    for values, side, tweaks, to in ((two, 2, None, one), (one, 0, None, one), (one, 2, two, one), (one, 2, None, two)):
        with pytest.raises(ValueError, match="must be uint64 and of equal length"):
            permutation_module.NATIVE.permute(values, side, one, tweaks, to.copy())


@given(choice=choices, num_samples=st.integers(0, 5000), seed=seeds, epoch=seeds)
@settings(max_examples=300)
def test_every_epoch_is_a_bijection(choice: OrderChoice, num_samples: int, seed: int, epoch: int) -> None:
    assert_bijection(order_of(choice, num_samples, seed=seed, epoch=epoch))


@given(num_values=st.integers(1, 2**62), seed=seeds, data=st.data())
@settings(max_examples=200)
def test_the_inverse_of_a_permutation_of_any_size_undoes_it(num_values: int, seed: int, data: st.DataObject) -> None:
    permutation = Permutation(num_values, round_keys("shuffle", seed, 0))
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
def test_any_positions_in_any_sequence_have_the_same_ids_as_in_the_whole_epoch(
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


def test_specs_are_stable() -> None:
    assert Sequential().spec == "sequential"
    assert Shuffle().spec == "shuffle"
    spec = BlockShuffle(block_samples=256, window_blocks=16).spec
    assert spec == "block_shuffle(block_samples=256,window_blocks=16)"


# --- locality ---------------------------------------------------------------------------------------------------------


def windows_of(choice: BlockShuffle, ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split an epoch into its windows, and return the blocks that each window touches."""
    num_blocks = -(-ids.size // choice.block_samples)
    windows: list[NDArray[np.int64]] = []
    first = 0
    while first < ids.size:
        rest = ids[first : first + choice.block_samples * choice.window_blocks] // choice.block_samples
        blocks = np.unique(rest)
        if blocks.size > choice.window_blocks:  # the window holds the short block, so it ends earlier
            short = choice.block_samples * num_blocks - ids.size
            rest = rest[: rest.size - short]
        windows.append(np.unique(rest))
        first += rest.size
    return windows


@given(choice=block_shuffles, num_samples=st.integers(1, 5000), seed=seeds)
@settings(max_examples=200)
def test_a_window_touches_at_most_window_blocks_blocks_and_shares_none_with_another(
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


def test_the_short_block_can_come_at_any_place_in_the_block_order() -> None:
    choice, num_samples = BlockShuffle(block_samples=10, window_blocks=1), 73
    places = [int(np.argmax(all_ids(order_of(choice, num_samples, seed=seed)) >= 70)) // 10 for seed in range(200)]
    assert set(places) == set(range(8))


def test_samples_of_a_window_are_shuffled_over_all_its_blocks() -> None:
    choice = BlockShuffle(block_samples=100, window_blocks=10)
    blocks = all_ids(order_of(choice, 10_000)) // 100
    for window in blocks.reshape(10, 1000):
        assert np.unique(window).size == 10
        assert np.unique(window[:100]).size >= 9
        assert np.bincount(np.diff(window) == 0)[0] > 800  # neighbours rarely come from the same block


def test_every_window_is_shuffled_differently() -> None:
    choice = BlockShuffle(block_samples=100, window_blocks=1)
    offsets = all_ids(order_of(choice, 10_000)) % 100
    assert np.unique(offsets.reshape(100, 100), axis=0).shape[0] == 100


# --- bad arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("block_samples", "window_blocks"), [(0, 1), (1, 0), (2**31, 1), (1, 2**31), (-3, 1)])
def test_blocks_out_of_range_are_refused(block_samples: int, window_blocks: int) -> None:
    with pytest.raises(ArgumentError, match=r"must be an integer in \[1, 2147483648\), got"):
        BlockShuffle(block_samples=block_samples, window_blocks=window_blocks)


def test_the_largest_allowed_arguments_are_accepted() -> None:
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
    """Return the first and the last ids of many orders."""
    orders = {}
    for choice in GOLDEN_CHOICES:
        for num_samples in (1, 2, 5, 17, 1000, 1_281_167, 10**10, 2**62):
            for seed, epoch in ((0, 0), (0, 1), (1, 0), (2**63 - 1, 2**63 - 1)):
                order = choice.order(num_samples=num_samples, seed=seed, epoch=epoch)
                positions = np.unique([*range(min(8, num_samples)), *range(max(0, num_samples - 4), num_samples)])
                key = f"{choice.spec} num_samples={num_samples} seed={seed} epoch={epoch}"
                orders[key] = order.sample_ids(positions).tolist()
    return orders


def test_orders_match_the_golden_file() -> None:
    if os.environ.get("MPLOAD_REGENERATE") == "1":
        lines = (f"{json.dumps(key)}: {json.dumps(ids)}" for key, ids in golden_orders().items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert golden_orders() == json.loads(GOLDEN.read_text())
