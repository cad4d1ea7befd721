"""Shuffles look random: these statistical tests cannot tell them from truly random orders.

Each test computes p-values for a property of truly random orders, and fails if one is below `UNLIKELY`. Seeds are
fixed, so the tests are never flaky: a failure means that the order has changed, not bad luck.
"""

import math
from itertools import permutations, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from mpload.plan.order import BlockShuffle, OrderChoice, Sequential, Shuffle

UNLIKELY = 1e-4
NUMS_SAMPLES = [1000, 4096, 4097, 50_000, 65_536]
WHOLE = BlockShuffle(block_samples=50_000, window_blocks=2)  # one window: must be as random as Shuffle


def epoch_ids(choice: OrderChoice, num_samples: int, *, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    return choice.order(num_samples=num_samples, seed=seed, epoch=epoch).sample_ids(np.arange(num_samples))


def bucket_p_value(ids: NDArray[np.int64], num_buckets: int) -> float:
    """Return the p-value of the counts in a table of position buckets by sample_id buckets."""
    buckets = np.arange(ids.size) * num_buckets // ids.size
    counts = np.zeros((num_buckets, num_buckets))
    np.add.at(counts, (buckets, ids * num_buckets // ids.size), 1)
    return float(stats.chi2_contingency(counts, correction=False).pvalue)


def displacement_p_value(ids: NDArray[np.int64]) -> float:
    """Return the p-value of the distances between ids and positions: |i - j| of two random places is triangular."""
    away = np.sort(np.abs(ids - np.arange(ids.size))) / ids.size
    return float(stats.kstest(away, stats.triang(c=0).cdf).pvalue)


def gap_p_value(ids: NDArray[np.int64]) -> float:
    """Return the p-value of the steps between neighbours, which are uniform modulo N in a random order."""
    steps = np.diff(ids) % ids.size
    return float(stats.chisquare(np.bincount(steps * 50 // ids.size, minlength=50)).pvalue)


def correlation_p_value(ids: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    return float(stats.pearsonr(ids, others).pvalue)


def num_adjacent(ids: NDArray[np.int64]) -> int:
    """Count neighbours whose sample_ids are also neighbours. In a random order it is nearly Poisson with mean two."""
    return int((np.abs(np.diff(ids)) == 1).sum())


@pytest.mark.parametrize("num_samples", NUMS_SAMPLES)
@pytest.mark.parametrize("choice", [Shuffle(), WHOLE], ids=["shuffle", "one window"])
def test_ids_are_independent_of_their_positions(choice: OrderChoice, num_samples: int) -> None:
    for seed in range(5):
        ids = epoch_ids(choice, num_samples, seed=seed)
        assert bucket_p_value(ids, 10) > UNLIKELY
        assert displacement_p_value(ids) > UNLIKELY
        assert gap_p_value(ids) > UNLIKELY
        assert correlation_p_value(ids[1:], ids[:-1]) > UNLIKELY
        for bit in (1, 2, 256):  # low bits of an id are independent of those of its position
            table = np.histogram2d(np.arange(num_samples) & bit, ids & bit, bins=2)[0]
            assert stats.chi2_contingency(table, correction=False).pvalue > UNLIKELY


@pytest.mark.parametrize("choice", [Sequential(), BlockShuffle(block_samples=50, window_blocks=4)])
def test_these_statistics_detect_orders_that_are_not_random(choice: OrderChoice) -> None:
    ids = epoch_ids(choice, 50_000)
    assert gap_p_value(ids) < UNLIKELY
    assert correlation_p_value(ids[1:], ids[:-1]) < UNLIKELY
    assert bucket_p_value(epoch_ids(Sequential(), 50_000), 10) < UNLIKELY
    assert displacement_p_value(epoch_ids(Sequential(), 50_000)) < UNLIKELY


@pytest.mark.parametrize("num_samples", [100, 1000, 5000])
def test_fixed_points_and_adjacent_ids_are_as_rare_as_in_random_orders(num_samples: int) -> None:
    orders = [epoch_ids(Shuffle(), num_samples, seed=seed) for seed in range(600)]
    fixed = np.array([(ids == np.arange(num_samples)).sum() for ids in orders])
    adjacent = np.array([num_adjacent(ids) for ids in orders])
    for counts, mean, most in ((fixed, 1, 4), (adjacent, 2 - 2 / num_samples, 6)):
        expected = stats.poisson(mean).pmf(np.arange(most))
        expected = np.append(expected, 1 - expected.sum()) * len(orders)
        observed = np.bincount(np.minimum(counts, most), minlength=most + 1)
        assert stats.chisquare(observed, expected).pvalue > UNLIKELY


def test_every_position_gets_every_sample_equally_often() -> None:
    num_samples, num_epochs = 37, 4000
    counts = np.zeros((num_samples, num_samples))
    for epoch in range(num_epochs):
        counts[np.arange(num_samples), epoch_ids(Shuffle(), num_samples, epoch=epoch)] += 1
    # each row and column sums to num_epochs, which reduces the degrees of freedom
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert stats.chi2(df=(num_samples - 1) ** 2).sf(statistic) > UNLIKELY


@pytest.mark.parametrize("num_samples", [2, 3, 4, 5])
def test_all_orders_of_a_few_samples_are_about_equally_likely(num_samples: int) -> None:
    num_orders, num_epochs = math.factorial(num_samples), 6000
    seen = dict.fromkeys(permutations(range(num_samples)), 0)
    for seed in range(num_epochs):
        seen[tuple(epoch_ids(Shuffle(), num_samples, seed=seed, epoch=seed % 3).tolist())] += 1
    assert len(seen) == num_orders
    assert stats.chisquare(list(seen.values())).pvalue > UNLIKELY


@pytest.mark.parametrize("num_samples", [4, 9, 16, 64])
def test_odd_permutations_are_as_likely_as_even_ones(num_samples: int) -> None:
    num_odd = 0
    for seed in range(1000):
        matrix = np.eye(num_samples)[epoch_ids(Shuffle(), num_samples, seed=seed)]
        num_odd += np.linalg.det(matrix) < 0
    assert stats.binomtest(num_odd, 1000).pvalue > UNLIKELY


def test_orders_of_different_seeds_and_epochs_are_unrelated() -> None:
    num_samples = 5000
    keys = [*product(range(5), range(5)), (2**32, 0), (2**62, 0), (0, 2**32), (2**63 - 1, 2**63 - 1)]
    orders = [epoch_ids(Shuffle(), num_samples, seed=seed, epoch=epoch) for seed, epoch in keys]
    p_values, num_same = [], []
    for at, ids in enumerate(orders):
        for others in orders[:at]:
            p_values.append(correlation_p_value(ids, others))
            num_same.append(int((ids == others).sum()))
    assert min(p_values) > UNLIKELY / len(p_values)
    assert stats.kstest(p_values, "uniform").pvalue > UNLIKELY
    assert max(num_same) < 10  # one on average
    assert UNLIKELY < stats.poisson(len(num_same)).cdf(sum(num_same)) < 1 - UNLIKELY


def test_block_order_is_random_too() -> None:
    choice = BlockShuffle(block_samples=10, window_blocks=1)
    for seed in range(5):
        blocks = epoch_ids(choice, 50_000, seed=seed)[::10] // 10
        assert bucket_p_value(blocks, 10) > UNLIKELY
        assert displacement_p_value(blocks) > UNLIKELY
        assert gap_p_value(blocks) > UNLIKELY
        assert num_adjacent(blocks) < 10


def test_samples_are_spread_evenly_over_their_window() -> None:
    choice = BlockShuffle(block_samples=16, window_blocks=8)
    windows = epoch_ids(choice, 128 * 500).reshape(500, 128)
    ranks = np.argsort(np.argsort(windows, axis=1), axis=1)  # the place of each sample in the sorted window
    counts = np.zeros((16, 16))
    np.add.at(counts, (np.broadcast_to(np.arange(128) // 8, ranks.shape), ranks // 8), 1)
    assert stats.chi2_contingency(counts, correction=False).pvalue > UNLIKELY
