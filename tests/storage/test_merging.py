"""Runs of bytes that lie near each other are merged into one read, within limits."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.storage.merging import merge_nearby

runs = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=40)


def as_arrays(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


@given(runs, st.integers(0, 40), st.integers(1, 100))
def test_every_run_is_found_in_its_read(pairs: list[tuple[int, int]], gap: int, most: int) -> None:
    file = np.random.default_rng(0).bytes(400)
    offsets, lengths = as_arrays(pairs)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    data = [file[o : o + n] for o, n in zip(plan.offsets.tolist(), plan.lengths.tolist(), strict=True)]
    for (offset, length), read, start in zip(pairs, plan.read_of, plan.start_in_read, strict=True):
        assert data[read][start : start + length] == file[offset : offset + length]


@given(runs, st.integers(0, 40), st.integers(1, 100))
def test_no_read_is_longer_than_allowed_or_than_its_only_run(pairs: list[tuple[int, int]], gap: int, most: int) -> None:
    offsets, lengths = as_arrays(pairs)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    assert np.bincount(plan.read_of, minlength=1).min() >= min(1, len(pairs))  # every read holds a run
    for read, length in enumerate(plan.lengths):
        held = np.flatnonzero(plan.read_of == read)
        if length > most:
            assert len(held) == 1
            assert lengths[held[0]] == length


@given(runs, st.integers(0, 40), st.integers(1, 100))
def test_a_read_has_no_gap_wider_than_allowed_and_ends_with_its_last_run(
    pairs: list[tuple[int, int]], gap: int, most: int
) -> None:
    offsets, lengths = as_arrays(pairs)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    assert (np.diff(plan.offsets) >= 0).all()
    for read in range(len(plan.offsets)):
        held = np.flatnonzero(plan.read_of == read)
        held = held[np.argsort(offsets[held], kind="stable")]
        reach = np.maximum.accumulate(offsets[held] + lengths[held])
        assert plan.offsets[read] == offsets[held[0]]
        assert plan.offsets[read] + plan.lengths[read] == reach[-1]
        assert (offsets[held[1:]] - reach[:-1] <= gap).all()


@given(runs, st.integers(0, 40), st.integers(1, 100))
@example([(0, 60), (5, 1), (50, 5)], 10, 100)  # the third run is inside the first, far from the second
def test_a_new_read_begins_only_if_the_previous_one_cannot_be_extended(
    pairs: list[tuple[int, int]], gap: int, most: int
) -> None:
    offsets, lengths = as_arrays(sorted(pair for pair in pairs if pair[1] <= most))
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    for run in np.flatnonzero(np.diff(plan.read_of)) + 1:
        read_before = plan.offsets[plan.read_of[run - 1]]
        reach = (offsets[:run] + lengths[:run]).max()
        assert offsets[run] - reach > gap or offsets[run] + lengths[run] - read_before > most


def test_scattered_lines_of_a_text_are_read_together() -> None:
    offsets = np.array([1000, 40, 0, 5000, 60], np.int64)
    lengths = np.array([30, 20, 30, 10, 20], np.int64)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=64, max_read_bytes=4096)
    assert plan.offsets.tolist() == [0, 1000, 5000]
    assert plan.lengths.tolist() == [80, 30, 10]
    assert plan.read_of.tolist() == [1, 0, 0, 2, 0]
    assert plan.start_in_read.tolist() == [0, 40, 0, 0, 60]


@pytest.mark.parametrize(
    ("offsets", "lengths", "gap", "most", "message"),
    [
        ([0], [1], -1, 10, "max_gap_bytes must not be negative, got -1"),
        ([0], [1], 0, 0, "max_read_bytes must be positive, got 0"),
        ([0, 1], [1], 0, 10, "one-dimensional and of equal length"),
        ([5, -1], [1, 1], 0, 10, "run 1 is out of range: offset -1, length 1"),
        ([5, 1], [1, -2], 0, 10, "run 1 is out of range: offset 1, length -2"),
        ([2**62], [2**62], 0, 10, "run 0 is out of range"),
    ],
)
def test_invalid_runs_are_refused(offsets: list[int], lengths: list[int], gap: int, most: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        merge_nearby(np.array(offsets), np.array(lengths), max_gap_bytes=gap, max_read_bytes=most)
