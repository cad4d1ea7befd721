"""The tests that every order must pass: a class with one subclass per order choice."""

import pickle
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.plan.order import Order, OrderChoice

__all__ = ["OrderContract", "all_ids", "assert_bijection", "order_of"]

AROUND_POWERS_OF_TWO = sorted({(1 << bits) + around for bits in range(10, 15) for around in (-1, 0, 1)})


def order_of(choice: OrderChoice, num_samples: int, *, seed: int = 0, epoch: int = 0) -> Order:
    return choice.order(num_samples=num_samples, seed=seed, epoch=epoch)


def all_ids(order: Order) -> NDArray[np.int64]:
    return order.sample_ids(np.arange(order.num_samples))


def assert_bijection(order: Order) -> None:
    ids = all_ids(order)
    assert ids.dtype == np.int64
    assert np.array_equal(np.sort(ids), np.arange(order.num_samples))


class OrderContract:
    """Each subclass defines a fixture `choice`, an order choice."""

    def test_every_epoch_is_a_bijection_for_every_small_number_of_samples(self, choice: OrderChoice) -> None:
        for num_samples in range(1100):
            assert_bijection(order_of(choice, num_samples, seed=num_samples, epoch=3))

    @pytest.mark.parametrize("num_samples", AROUND_POWERS_OF_TWO)
    def test_every_epoch_is_a_bijection_around_powers_of_two(self, choice: OrderChoice, num_samples: int) -> None:
        for epoch in range(3):
            assert_bijection(order_of(choice, num_samples, seed=7, epoch=epoch))

    def test_positions_are_not_modified_and_the_result_is_a_new_array(self, choice: OrderChoice) -> None:
        positions = np.arange(2000)[::-2]  # a strided view
        positions.flags.writeable = False
        ids = order_of(choice, 2000).sample_ids(positions)
        assert np.array_equal(positions, np.arange(2000)[::-2])
        assert not np.shares_memory(ids, positions)
        assert ids.flags.writeable

    def test_order_and_choice_can_be_pickled(self, choice: OrderChoice) -> None:
        order = order_of(choice, 1000, seed=5)
        assert np.array_equal(all_ids(pickle.loads(pickle.dumps(order))), all_ids(order))
        assert pickle.loads(pickle.dumps(choice)) == choice

    def test_memory_is_the_same_for_a_trillion_samples(self, choice: OrderChoice) -> None:
        peaks = []
        for num_samples in (10_000, 10**12):
            positions = np.arange(num_samples - 4096, num_samples)
            tracemalloc.start()
            choice.order(num_samples=num_samples, seed=1, epoch=0).sample_ids(positions)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[1] < 20 * positions.nbytes
        assert peaks[1] < 1.5 * peaks[0] + 10_000

    @pytest.mark.parametrize(("position", "text"), [(-1, "-1"), (1000, "1000"), (2**62, "4611686018427387904")])
    def test_position_out_of_range_is_refused(self, choice: OrderChoice, position: int, text: str) -> None:
        with pytest.raises(ArgumentError, match=rf"positions must be in \[0, 1000\), got {text}$"):
            order_of(choice, 1000).sample_ids(np.array([5, position, 7]))

    def test_an_empty_epoch_has_no_ids_and_accepts_no_position(self, choice: OrderChoice) -> None:
        order = order_of(choice, 0)
        assert order.num_samples == 0
        assert order.sample_ids(np.array([], np.int64)).size == 0
        with pytest.raises(ArgumentError, match="got 0"):
            order.sample_ids(np.array([0]))

    @pytest.mark.parametrize("positions", [np.zeros((2, 2), np.int64), np.array([1.5]), np.array([1], np.uint64)])
    def test_positions_that_are_not_one_dimensional_int64_are_refused(
        self, choice: OrderChoice, positions: NDArray[np.int64]
    ) -> None:
        with pytest.raises(ArgumentError, match="positions must be a one-dimensional int64 array, got"):
            order_of(choice, 10).sample_ids(positions)

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
        self, choice: OrderChoice, num_samples: int, seed: int, epoch: int, message: str
    ) -> None:
        with pytest.raises(ArgumentError, match=message):
            choice.order(num_samples=num_samples, seed=seed, epoch=epoch)
