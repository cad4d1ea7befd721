"""Shares and folds: exact numbers, in every stratum too, and no sample lost or counted twice."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload import ArgumentError, Fold, Share
from mpload.plan.parts import Part

strata_of_samples = st.lists(st.integers(0, 6), min_size=1, max_size=200).map(lambda each: np.array(each, np.int64))
seeds = st.integers(0, 2**63 - 1)


def held(part: Part, strata: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a part holds each of some samples, given the stratum of each."""
    numbers = range(strata.max() + 1)
    sizes = np.array([np.count_nonzero(strata == number) for number in numbers])
    ranks = np.array([np.count_nonzero(strata[:place] == number) for place, number in enumerate(strata)])
    return part.holds(sizes, strata, ranks)


@given(strata=strata_of_samples, fraction=st.floats(0.001, 1), seed=seeds)
def test_a_share_is_exact_and_that_of_each_stratum_is_within_one_sample(
    strata: NDArray[np.int64], fraction: float, seed: int
) -> None:
    chosen = held(Share(fraction, seed=seed), strata)
    wanted = round(fraction * len(strata))
    assert np.count_nonzero(chosen) == wanted
    for number in range(strata.max() + 1):
        size = np.count_nonzero(strata == number)
        assert abs(np.count_nonzero(chosen[strata == number]) - wanted * size / len(strata)) < 1


@given(num_samples=st.integers(1, 500), fractions=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), seed=seeds)
def test_a_smaller_share_is_part_of_a_larger_one(num_samples: int, fractions: tuple[float, float], seed: int) -> None:
    one = np.zeros(num_samples, np.int64)
    small, large = (held(Share(fraction, seed=seed), one) for fraction in sorted(fractions))
    assert not (small & ~large).any()


@given(strata=strata_of_samples, of=st.integers(2, 9), seed=seeds)
def test_folds_are_disjoint_even_and_cover_all_samples_of_every_stratum(
    strata: NDArray[np.int64], of: int, seed: int
) -> None:
    folds = [held(Fold(number, of=of, seed=seed), strata) for number in range(of)]
    assert (np.sum(folds, axis=0) == 1).all()
    for wanted in [np.ones(len(strata), np.bool_), *(strata == number for number in range(strata.max() + 1))]:
        sizes = [np.count_nonzero(fold & wanted) for fold in folds]
        assert max(sizes) - min(sizes) <= 1
    for number, fold in enumerate(folds):
        assert np.array_equal(held(Fold(number, of=of, seed=seed, rest=True), strata), ~fold)


def test_every_sample_is_equally_likely_and_strata_are_shuffled_independently() -> None:
    strata = np.repeat(np.arange(2), 20)
    chosen = np.array([held(Share(0.25, seed=seed), strata) for seed in range(2000)])
    assert np.abs(chosen.mean(axis=0) - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)
    assert (chosen[:, :20] != chosen[:, 20:]).any(axis=1).mean() > 0.99


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, float("nan"), "x", None])
def test_a_share_outside_its_range_is_refused(fraction: Any) -> None:
    with pytest.raises(ArgumentError, match=r"a share must be in \(0, 1\], got .*Share\(0\.1\)"):
        Share(fraction)


@pytest.mark.parametrize(("number", "of"), [(5, 5), (-1, 5), (0, 1), (0, 0)])
def test_a_fold_outside_its_range_is_refused(number: int, of: int) -> None:
    with pytest.raises(ArgumentError, match=r"(number|of) must be in \["):
        Fold(number, of=of)


def test_parts_are_those_of_earlier_versions() -> None:
    strata = np.arange(24) % 3
    assert np.flatnonzero(held(Share(0.25, seed=1), np.zeros(24, np.int64))).tolist() == [6, 8, 12, 15, 16, 20]
    assert np.flatnonzero(held(Share(0.25, seed=1), strata)).tolist() == [10, 11, 12, 15, 17, 19]
    assert np.flatnonzero(held(Fold(1, of=4, seed=2), strata)).tolist() == [15, 16, 17, 21, 22, 23]
