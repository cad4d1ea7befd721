"""MPLoader with map-style datasets on several ranks: samplers that have epochs, and `drop_last`."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from mpload import MPLoader, Topology

NUMBERS: Any = list(range(43))


def sampler(*, rank: int = 0) -> "DistributedSampler[int]":
    return DistributedSampler(NUMBERS, num_replicas=2, rank=rank, shuffle=True, seed=3)


def loader(**options: Any) -> MPLoader[Any]:
    return MPLoader(NUMBERS, **{"batch_size": 4, "num_workers": 0, "collate_fn": list, **options})


def expected(epoch: int) -> list[list[int]]:
    """Return the batches of a DataLoader whose sampler was told the epoch."""
    told = sampler()
    told.set_epoch(epoch)
    return list(DataLoader(NUMBERS, batch_size=4, sampler=told, collate_fn=list))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_is_told_each_epoch(num_workers: int) -> None:
    with loader(sampler=sampler(), num_workers=num_workers) as batches:
        assert [list(batches) for _ in range(3)] == [expected(epoch) for epoch in range(3)]
        batches.set_epoch(7)
        assert list(batches) == expected(7)
        assert list(batches) == expected(8)


def test_set_epoch_of_the_user_decides() -> None:
    told = sampler()
    batches = loader(sampler=told)
    for epoch in (5, 2, 9):
        told.set_epoch(epoch)
        assert list(batches) == expected(epoch)
    assert list(batches) == expected(10)


def test_a_restored_epoch_counts_from_its_number_even_if_the_sampler_was_ahead() -> None:
    told = sampler()
    told.set_epoch(3)
    batches = loader(sampler=told)
    list(batches)
    batches.load_state_dict(batches.state_dict() | {"epoch": 3})
    assert list(batches) == expected(3)
    batches.set_epoch(1)
    assert list(batches) == expected(1)


class Slotted:
    """A sampler whose epoch can be assigned to, but which has no other room."""

    __slots__ = ("epoch",)

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield self.epoch


class Guarding(Slotted):
    """A sampler that keeps the number and nothing else."""

    __slots__ = ("_number",)

    @property
    def epoch(self) -> int:
        return self._number

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._number = int(number)


class Closed(Slotted):
    """A sampler whose epoch can only be read."""

    __slots__ = ("_number",)
    epoch = property(lambda self: self._number)

    def __init__(self) -> None:
        self._number = 0

    def set_epoch(self, epoch: int) -> None:
        self._number = epoch


@pytest.mark.parametrize("kind", [Slotted, Guarding, Closed])
def test_samplers_of_every_make_are_followed(kind: Any) -> None:
    told = kind()
    batches = loader(sampler=told, batch_size=None, collate_fn=None)
    assert [list(batches) for _ in range(2)] == [[0], [1]]
    told.set_epoch(5)
    assert [list(batches) for _ in range(2)] == [[5], [6]]
    told.set_epoch(6)
    assert list(batches) == [7]  # that it was told the same number cannot be seen
    batches.set_epoch(6)
    assert list(batches) == [6]


@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("is_told", [False, True])
def test_a_run_with_a_sampler_is_resumed_in_the_middle_of_an_epoch(epoch: int, is_told: bool) -> None:
    told = sampler()
    batches = loader(sampler=told)
    for number in range(epoch):
        if is_told:
            told.set_epoch(number)
        assert list(batches) == expected(number)
    if is_told:
        told.set_epoch(epoch)
    running = iter(batches)
    received = [next(running) for _ in range(3)]
    resumed = loader(sampler=sampler())
    resumed.load_state_dict(batches.state_dict())
    assert received + list(resumed) == expected(epoch)
    assert list(resumed) == expected(epoch + 1)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate", [None, list])
def test_without_dropping_the_last_batch_is_short_on_one_rank_and_full_on_several(
    world_size: int, num_workers: int, collate: Any
) -> None:
    ranks = []
    for rank in range(world_size):
        topology = Topology(rank=rank, world_size=world_size)
        with loader(drop_last=False, topology=topology, num_workers=num_workers, collate_fn=collate) as batches:
            ranks.append([[int(number) for number in batch] for batch in batches])
    assert len({len(batches) for batches in ranks}) == 1
    assert {len(batches[-1]) for batches in ranks} == {3 if world_size == 1 else 4}
    found = [number for batches in ranks for batch in batches for number in batch]
    assert set(found) == set(NUMBERS)
    if world_size == 1:
        assert sorted(found) == NUMBERS  # each once
