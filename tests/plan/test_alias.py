"""Alias tables hold exactly the distribution that they were made for, and draws are uniform."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.plan.alias import MAX_ITEMS, alias_table, drawn, uniform

_UNIT = 1 << 42
weights_of_items = st.lists(
    st.floats(0, 1) | st.sampled_from([0.0, 1.0, 5e-324, 1e-12, 1e290, 0.5]), min_size=1, max_size=60
).map(np.array)


def probabilities(table: NDArray[np.uint64]) -> list[int]:
    """Return the probability of each item times n * 2**42, computed with Python's integers."""
    thresholds = [entry >> 20 for entry in table.tolist()]
    found = list(thresholds)
    for entry, threshold in zip(table.tolist(), thresholds, strict=True):
        found[entry & (MAX_ITEMS - 1)] += _UNIT - threshold
    return found


@given(weights=weights_of_items)
def test_a_table_holds_the_distribution_to_within_its_resolution(weights: NDArray[np.float64]) -> None:
    found = probabilities(alias_table(weights))
    total = sum(map(int, weights * 2.0**40)) if weights.max() > 1e200 else None
    assert sum(found) == len(weights) * _UNIT
    if not weights.any():
        assert found == [_UNIT] * len(weights)
        return
    expected = weights / (weights.max() if total else 1) / (weights / (weights.max() if total else 1)).sum()
    assert np.abs(np.array(found) / _UNIT / len(weights) - expected).max() < 1e-9
    assert [number == 0 for number in found] == [weight == 0 for weight in weights]


@given(size=st.integers(1, 3000), power=st.integers(0, 40), seed=st.integers(0, 1000))
def test_tables_of_very_uneven_weights_are_exact_too(size: int, power: int, seed: int) -> None:
    weights = np.random.default_rng(seed).random(size) ** power
    found = np.array(probabilities(alias_table(weights)), np.float64) / (_UNIT * size)
    assert np.allclose(found, weights / weights.sum(), rtol=1e-9, atol=2.0**-41)


def test_random_numbers_are_those_of_splitmix64() -> None:
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert uniform(np.arange(1, 6, dtype=np.uint64), 1234567).tolist() == known


def test_an_item_is_replaced_by_its_alias_from_its_threshold_on() -> None:
    table = alias_table(np.array([1.0, 3.0]))
    threshold = np.uint64(_UNIT // 2) << np.uint64(22)
    coins = np.array([0, threshold - np.uint64(1), threshold, np.iinfo(np.uint64).max], np.uint64)
    slots = np.zeros(4, np.uint64)
    assert drawn(slots, coins, table[slots]).tolist() == [0, 0, 1, 1]
    assert drawn(slots + np.uint64(1), coins, table[slots + np.uint64(1)]).tolist() == [1] * 4
