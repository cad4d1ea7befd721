"""A dataset over a list of parts gives the batches of the single index of their lines."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import (
    Balanced,
    BlockShuffle,
    Buckets,
    Curriculum,
    Mixture,
    MPLoader,
    PKBatches,
    Sequential,
    Shuffle,
    Weighted,
    list_parts,
)
from mpload.errors import IndexChangedError, StateError
from tests.support.batches import flat
from tests.support.growing import growing, numbers_in
from tests.support.index_parts import write_part, write_parts, write_whole

CUTS = [0, 5, 5, 6, 31, 40]
ORDERS = (
    *(Sequential(), Shuffle(), BlockShuffle(block_samples=8, window_blocks=3)),
    *(Balanced(), Weighted("id"), PKBatches("label", 2, 2), Curriculum("id", window_samples=8)),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, 40), max_size=5).map(lambda cuts: [0, *sorted(cuts), 40]),
    shuffle=st.sampled_from(ORDERS),
    epoch=st.integers(0, 2),
)
def test_batches_of_parts_are_those_of_the_whole(tmp_path: Path, cuts: list[int], shuffle: Any, epoch: int) -> None:
    found = []
    for path in (write_whole(tmp_path, 40), write_parts(tmp_path, cuts)):
        dataset = growing(path, shuffle=shuffle)
        dataset.set_epoch(epoch)
        found.append(numbers_in(dataset))
    assert found[0] == found[1]


def test_buckets_and_mixtures_of_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    whole, parts = write_whole(tmp_path, 40), write_parts(tmp_path, CUTS)
    other = write_part(tmp_path / "other.txt", 40, 47)
    options: list[Any] = [
        lambda path: growing(path, buckets=Buckets(by="id", edges=[10, 20]), tail="ragged"),
        lambda path: growing(Mixture({path: 0.7, other: 0.3}, epoch_samples=60)),
    ]
    for make in options:
        assert numbers_in(make(whole)) == numbers_in(make(parts))


@pytest.mark.processes
@pytest.mark.parametrize("shuffle", [Shuffle(), BlockShuffle(block_samples=8, window_blocks=2), Balanced()])
def test_workers_make_the_batches_of_the_whole(tmp_path: Path, shuffle: Any) -> None:
    expected = numbers_in(growing(write_whole(tmp_path, 40), shuffle=shuffle))
    path = list_parts([write_parts(tmp_path, CUTS)], tmp_path / "list.txt")
    with MPLoader(growing(path, shuffle=shuffle), num_workers=2) as loader:
        first = numbers_in(loader)
        assert first == expected
        # The parts are replaced by ones with further lines: what was opened goes on with the lines that it had.
        for part, (start, end) in enumerate(itertools.pairwise(CUTS)):
            write_part(tmp_path / f"part-{part}.txt", start, end + 2)
        loader.set_epoch(0)
        assert numbers_in(loader) == expected


@pytest.mark.parametrize("shuffle", [Shuffle(), BlockShuffle(block_samples=8, window_blocks=3), Balanced()])
def test_an_epoch_goes_on_when_parts_are_added_or_the_last_one_grows(tmp_path: Path, shuffle: Any) -> None:
    expected = flat(numbers_in(growing(write_whole(tmp_path, 40), shuffle=shuffle)))
    for cuts in ([0, 10, 40, 60], [0, 10, 55], [0, 10, 45, 60]):
        path = list_parts([write_parts(tmp_path, [0, 10, 40])], tmp_path / "list.txt")
        dataset = growing(path, shuffle=shuffle)
        got = flat(numbers_in(itertools.islice(dataset, 3)))
        state = json.loads(json.dumps(dataset.state_dict()))
        list_parts([write_parts(tmp_path, cuts)], path)
        longer = growing(path, shuffle=shuffle)
        longer.load_state_dict(state)
        assert got + flat(numbers_in(longer)) == expected
        longer.set_epoch(1)
        assert len(flat(numbers_in(longer))) == cuts[-1]


def test_a_state_does_not_fit_other_parts(tmp_path: Path) -> None:
    path = write_parts(tmp_path, [0, 10, 40])
    dataset = growing(path)
    list(itertools.islice(dataset, 2))
    state = dataset.state_dict()
    for cuts in ([0, 12, 40], [0, 10, 39], [0, 10, 11, 40]):
        write_parts(tmp_path, cuts)
        with pytest.raises(StateError):
            growing(path).load_state_dict(state)


@pytest.mark.processes
def test_a_part_that_is_replaced_during_a_job_ends_it_with_its_name(tmp_path: Path) -> None:
    path = list_parts([write_parts(tmp_path, [0, 10, 40])], tmp_path / "list.txt")
    with MPLoader(growing(path, shuffle=False), num_workers=1) as loader:
        write_part(tmp_path / "part-1.txt", 100, 130)
        with pytest.raises(IndexChangedError, match=r"its part .*part-1.txt does not begin with the 30 samples"):
            list(loader)
