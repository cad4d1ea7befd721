"""Epochs of any length go through all samples, lap after lap."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import BlockShuffle, Sequential, Shuffle
from mpload.errors import ArgumentError
from mpload.plan.laps import LapOrders

ORDERS = [Shuffle(), Sequential(), BlockShuffle(block_samples=3, window_blocks=2)]


def ids(orders: LapOrders, epoch: int, seed: int = 0) -> np.ndarray:
    return orders.order(num_samples=orders.epoch_samples, seed=seed, epoch=epoch).sample_ids(
        np.arange(orders.epoch_samples)
    )


@given(
    order=st.sampled_from(ORDERS),
    num_rows=st.integers(1, 40),
    epoch_samples=st.integers(1, 100),
    seed=st.integers(0, 9),
)
def test_laps_follow_one_another_and_each_is_an_epoch_of_the_order(
    order: Any, num_rows: int, epoch_samples: int, seed: int
) -> None:
    orders = LapOrders(num_rows=num_rows, of_lap=order, epoch_samples=epoch_samples)
    run = np.concatenate([ids(orders, epoch, seed) for epoch in range(5)])
    for lap in range(len(run) // num_rows + 1):
        expected = order.order(num_samples=num_rows, seed=seed, epoch=lap).sample_ids(np.arange(num_rows))
        found = run[lap * num_rows : (lap + 1) * num_rows]
        assert (found % num_rows).tolist() == expected[: len(found)].tolist()
    for epoch in range(5):  # so no sample has the same random numbers twice in an epoch
        assert len({*ids(orders, epoch, seed).tolist()}) == epoch_samples


@given(positions=st.lists(st.integers(0, 99)), epoch=st.integers(0, 2**40))
def test_any_positions_have_the_same_ids_as_in_the_whole_epoch(positions: list[int], epoch: int) -> None:
    orders = LapOrders(num_rows=7, of_lap=Shuffle(), epoch_samples=100)
    order = pickle.loads(pickle.dumps(orders.order(num_samples=100, seed=1, epoch=epoch)))
    assert order.sample_ids(np.array(positions, np.int64)).tolist() == ids(orders, epoch, 1)[positions].tolist()


def test_numbers_out_of_range_are_refused() -> None:
    orders = LapOrders(num_rows=7, of_lap=Shuffle(), epoch_samples=1 << 40)
    for wrong in ({"seed": -1, "epoch": 0}, {"seed": 0, "epoch": 1 << 22}):
        with pytest.raises(ArgumentError, match="must be"):
            orders.order(num_samples=1 << 40, **wrong)
    with pytest.raises(ArgumentError, match=r"positions must be in \[0, 5\), got 5"):
        LapOrders(num_rows=7, of_lap=Shuffle(), epoch_samples=5).order(num_samples=5, seed=0, epoch=0).sample_ids(
            np.array([5])
        )
