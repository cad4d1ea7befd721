"""Samplers of the user: batches of another size, other ranks, and ranks that would repeat each other's samples."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

from mpload import MPLoader, MploadWarning
from mpload.errors import StateError

NUMBERS: Any = list(range(48))


def loader(sampler: Any, batch_size: int | None = 4) -> MPLoader[Any]:
    return MPLoader(NUMBERS, sampler=sampler, batch_size=batch_size, collate_fn=list, num_workers=0)


def batch_loader(batch_sampler: Any) -> MPLoader[Any]:
    return MPLoader(NUMBERS, batch_sampler=batch_sampler, collate_fn=list, num_workers=0)


def part(rank: int, world_size: int) -> "DistributedSampler[Any]":
    return DistributedSampler(NUMBERS, num_replicas=world_size, rank=rank, seed=1)


class OwnBatches:
    """Batches whose size has a meaning of its own."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([number] * self.batch_size for number in range(10))

    def __len__(self) -> int:
        return 10


class OwnParts(Sampler[int]):
    """A part of the samples for each rank, divided in a way of its own."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return 48 // self.num_replicas


def received(batches: MPLoader[Any], num_batches: int) -> tuple[list[Any], dict[str, Any]]:
    """Return the samples of so many batches, and the state after them."""
    running = iter(batches)
    samples = [sample for _ in range(num_batches) for sample in next(running)]
    return samples, batches.state_dict()


def rest(batches: MPLoader[Any], state: dict[str, Any]) -> list[Any]:
    batches.load_state_dict(state)
    return [sample for batch in batches for sample in batch]


@pytest.mark.parametrize(("old", "num_batches", "new"), [(4, 2, 8), (8, 3, 4), (8, 3, 1), (1, 6, 3)])
@pytest.mark.parametrize("is_of_batches", [False, True])
def test_a_run_goes_on_at_the_same_sample_with_another_batch_size(
    old: int, num_batches: int, new: int, is_of_batches: bool
) -> None:
    def made(batch_size: int) -> MPLoader[Any]:
        in_order = range(48)
        return (
            batch_loader(BatchSampler(in_order, batch_size, False)) if is_of_batches else loader(in_order, batch_size)
        )

    samples, state = received(made(old), num_batches)
    assert state["batch_size"] == old
    assert samples + rest(made(new), state) == NUMBERS


def test_a_run_goes_on_between_single_samples_and_batches() -> None:
    batches: MPLoader[Any] = MPLoader(NUMBERS, sampler=range(48), batch_size=None, num_workers=0)
    running = iter(batches)
    assert [next(running) for _ in range(8)] == NUMBERS[:8]
    assert rest(loader(range(48)), batches.state_dict()) == NUMBERS[8:]


@pytest.mark.parametrize(
    ("old", "new"), [((2, 4), (1, 8)), ((1, 8), (2, 4)), ((2, 4), (1, 4)), ((2, 4), (3, 4)), ((3, 4), (2, 3))]
)
def test_distributed_samplers_go_on_at_the_same_sample_with_other_ranks(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    samples: list[Any] = []
    states = []
    for rank in range(old[0]):
        found, state = received(loader(part(rank, old[0]), old[1]), 3)
        samples += found
        states.append(state)
    assert all(state == states[0] for state in states)
    for rank in range(new[0]):
        samples += rest(loader(part(rank, new[0]), new[1]), states[0])
    assert sorted(samples) == NUMBERS


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            lambda: loader(range(48), 4),
            lambda: loader(range(48), 8),
            "after 3 batches of 4 samples, but this run has batches of 8 samples: 12 samples are no whole number",
        ),
        (
            lambda: loader(part(0, 2), 4),
            lambda: loader(part(0, 5), 4),
            "of 4 samples on 2 ranks, but this run has batches of 4 samples on 5 ranks: 24 samples are no whole",
        ),
        (
            lambda: batch_loader(OwnBatches(8)),
            lambda: batch_loader(OwnBatches(4)),
            "of 8 samples, but this run has batches of 4 samples: OwnBatches may then make other batches",
        ),
        (
            lambda: loader(OwnParts(2)),
            lambda: loader(OwnParts(1), 8),
            "of 4 samples on 2 ranks, but this run has batches of 8 samples: OwnParts may then divide the samples",
        ),
    ],
)
def test_a_state_that_cannot_be_continued_exactly_is_refused(old: Any, new: Any, message: str) -> None:
    batches = old()
    whole = batches.state_dict()
    _, state = received(batches, 3)
    with pytest.raises(StateError, match=f"{message}.* Use the same batch size and number of ranks"):
        new().load_state_dict(state)
    again = new()
    again.load_state_dict(whole)  # at the beginning of an epoch any batches will do
    list(again)


def test_a_state_of_an_older_version_counts_batches() -> None:
    _, state = received(loader(range(48), 4), 3)
    del state["batch_size"]
    assert rest(loader(range(48), 8), state) == NUMBERS[24:]


@pytest.mark.parametrize("value", [0, -1, "4", 4.0, True])
@pytest.mark.parametrize("name", ["batch_size", "world_size"])
def test_a_damaged_batch_size_is_refused(name: str, value: Any) -> None:
    batches = loader(range(48))
    with pytest.raises(StateError, match=f"{name} must be an integer"):
        batches.load_state_dict(batches.state_dict() | {name: value})


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


REPEATED: Any = [
    lambda: loader(RandomSampler(NUMBERS)),
    lambda: loader(SubsetRandomSampler(range(12))),
    lambda: batch_loader(BatchSampler(RandomSampler(NUMBERS), 4, True)),
    lambda: batch_loader(OwnBatches(4)),
]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("made", REPEATED)
def test_ranks_that_read_the_same_samples_are_warned_once(made: Any) -> None:
    batches = made()
    with pytest.warns(MploadWarning, match=r"2 ranks, and each .* Pass a DistributedSampler, or shuffle=") as warned:
        assert sum(1 for _ in batches) == sum(1 for _ in batches)
    assert [warning.filename for warning in warned] == [__file__]


NOT_REPEATED: Any = [
    lambda: loader(part(0, 2)),
    lambda: batch_loader(BatchSampler(part(0, 2), 4, True)),
    lambda: loader(OwnParts(2)),
    lambda: loader(range(0, 48, 2)),  # a rank's share
    lambda: loader(SubsetRandomSampler(range(25)), 2),  # one that is filled up
    lambda: batch_loader([[1, 2], [3]]),
    lambda: loader(iter([1, 2])),
]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("made", NOT_REPEATED)
def test_samplers_that_divide_the_samples_are_not_warned_of(made: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(made())


@pytest.mark.parametrize("made", REPEATED)
def test_one_rank_is_not_warned(made: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(made())
