"""The order of a batch, the random numbers of its samples, and a checkpoint."""

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mpload import BlockShuffle, Sequential, Shuffle
from mpload.plan.checkpoint import State
from mpload.plan.order import OrderChoice
from mpload.plan.sample_rng import SampleRng

pytestmark = pytest.mark.benchmark(group="plan")

NUM_SAMPLES = 1_281_167  # ImageNet


@pytest.mark.parametrize(
    "choice",
    [Sequential(), Shuffle(), BlockShuffle(block_samples=256, window_blocks=16)],
    ids=["sequential", "shuffle", "block_shuffle"],
)
def test_order_of_a_batch(benchmark: BenchmarkFixture, choice: OrderChoice) -> None:
    order = choice.order(num_samples=NUM_SAMPLES, seed=0, epoch=0)
    positions = np.arange(1_000_000, 1_000_256)
    ids = benchmark(order.sample_ids, positions)
    assert len(set(ids.tolist())) == 256


def test_order_of_an_epoch(benchmark: BenchmarkFixture) -> None:
    order = benchmark(lambda: Shuffle().order(num_samples=NUM_SAMPLES, seed=0, epoch=1))
    assert order.num_samples == NUM_SAMPLES


def test_random_numbers_of_a_sample(benchmark: BenchmarkFixture) -> None:
    rng = SampleRng(seed=0, epoch=0)
    assert benchmark(lambda: rng.for_sample(7).random(22)).shape == (22,)


def test_checkpoint_to_a_dict_and_back(benchmark: BenchmarkFixture) -> None:
    state = State(fingerprint="0" * 32, order="shuffle", seed=0, epoch=3, position=1_000_000)
    assert benchmark(lambda: State.from_dict(state.to_dict())) == state
