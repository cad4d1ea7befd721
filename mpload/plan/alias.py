"""Alias tables: draw from any discrete distribution with two look-ups.

The method is from Walker, "An Efficient Method for Generating Discrete Random Variables with General Distributions",
ACM TOMS 3 (1977). Tables are made by sweeping over light and heavy items, as in Vose, "A Linear Algorithm for
Generating Random Numbers with a Given Distribution", IEEE TSE 17 (1991). Running sums replace its loop, as in
Huebschle-Schneider and Sanders, "Parallel Weighted Random Sampling", ESA 2019, so that NumPy does the work.

Weights are rounded once to integers. All that follows is exact, and the same on every machine.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_ITEMS", "alias_table", "drawn", "uniform"]

MAX_ITEMS: Final = 1 << 20
"""The most items of one table."""

_ALIAS_BITS: Final = 20
_UNIT_BITS: Final = 42
_UNIT: Final = 1 << _UNIT_BITS
"""The mean weight of an item as an integer. The sum of `MAX_ITEMS` of them fits into int64."""
_GAMMA: Final = 0x9E3779B97F4A7C15


def alias_table(weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return the table of a distribution over n items, uint64 [n]: the threshold and the alias of each item.

    A uniformly chosen item is replaced by its alias if a uniform number is at or above its threshold.

    Args:
        weights: float64 [n], finite and not negative, n in [1, MAX_ITEMS]. If all are 0, all items are equally likely.
    """
    units = _units(weights)
    light, heavy = np.flatnonzero(units < _UNIT), np.flatnonzero(units >= _UNIT)
    thresholds, aliases = np.full(len(units), _UNIT), np.arange(len(units))
    if len(light):
        # Light items, in order, take what they lack from the heavy ones, in order. What a heavy item lacks in the end,
        # it takes from the next. So running sums of what lacks and of what is spare determine who takes from whom.
        lacking = np.concatenate([[0], np.cumsum(_UNIT - units[light])])
        spare = np.cumsum(units[heavy] - _UNIT)
        thresholds[light] = units[light]
        aliases[light] = heavy[np.searchsorted(spare, lacking[:-1], side="right")]
        debts = lacking[np.searchsorted(lacking, spare)] - spare
        thresholds[heavy] -= debts
        in_debt = np.flatnonzero(debts)
        aliases[heavy[in_debt]] = heavy[np.minimum(in_debt + 1, len(heavy) - 1)]
    return (thresholds << _ALIAS_BITS | aliases).view(np.uint64)


def _units(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the weights as integers whose mean is exactly `_UNIT`. Those that are not 0 are at least 1."""
    total = float(np.cumsum(weights)[-1])  # unlike a sum, it adds in the same order on every machine
    if total <= 0:
        return np.full(len(weights), _UNIT)
    units = np.rint(weights / total * (len(weights) * _UNIT)).astype(np.int64)
    units = np.maximum(units, weights > 0)
    units[np.argmax(units)] += len(weights) * _UNIT - int(units.sum())
    return units


def uniform(positions: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Return a random number for each position, uint64 [n]: the values of SplitMix64, which begins at `key`.

    Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    values = positions * np.uint64(_GAMMA)
    values += np.uint64(key)
    scratch = values >> np.uint64(30)
    values ^= scratch
    values *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(values, 27, out=scratch)
    values ^= scratch
    values *= np.uint64(0x94D049BB133111EB)
    np.right_shift(values, 31, out=scratch)
    values ^= scratch
    return values


def drawn(slots: NDArray[np.uint64], coins: NDArray[np.uint64], entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the items drawn, uint64 [n].

    Args:
        slots: uint64 [n]: items chosen uniformly.
        coins: uint64 [n]: uniform numbers of 64 bits.
        entries: uint64 [n]: the entries of the slots in the table.
    """
    keeps = coins >> np.uint64(64 - _UNIT_BITS) < entries >> np.uint64(_ALIAS_BITS)
    return np.where(keeps, slots, entries & np.uint64(MAX_ITEMS - 1))
