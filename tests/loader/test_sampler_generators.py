"""MPLoader with torch's random samplers: their generators, in states and after epochs that were left early."""

import base64
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from mpload import MPLoader, MploadWarning
from mpload.errors import StateError

NUMBERS: Any = list(range(43))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


RANDOM: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"sampler": RandomSampler(NUMBERS, generator=generator())},
    "full batches": lambda: {"sampler": RandomSampler(range(40), generator=generator())},
    "part": lambda: {"sampler": RandomSampler(NUMBERS, num_samples=30, generator=generator())},
    "several times": lambda: {"sampler": RandomSampler(NUMBERS, num_samples=100, generator=generator())},
    "replaced": lambda: {"sampler": RandomSampler(NUMBERS, replacement=True, num_samples=70, generator=generator())},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(5, 38), generator=generator())},
    "weighted": lambda: {"sampler": WeightedRandomSampler([*range(1, 44)], 43, generator=generator())},
    "batches": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(NUMBERS, generator=generator()), 4, drop_last=False)
    },
}


def random_loader(kind: str, *, num_workers: int = 0) -> MPLoader[Any]:
    options = RANDOM[kind]()
    if "sampler" in options:
        options |= {"batch_size": 4, "drop_last": False}
    return MPLoader(NUMBERS, num_workers=num_workers, collate_fn=list, **options)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_random_sampler_goes_on_as_before_the_checkpoint_in_any_epoch(kind: str, num_workers: int) -> None:
    whole, states = [], []
    with random_loader(kind, num_workers=num_workers) as batches:
        states.append(json.loads(json.dumps(batches.state_dict())))
        for _ in range(3):
            for batch in batches:
                whole.append(batch)
                states.append(json.loads(json.dumps(batches.state_dict())))  # also after the last batch of an epoch
    if num_workers == 0:
        options: dict[str, Any] = RANDOM[kind]() if kind == "batches" else {"batch_size": 4, **RANDOM[kind]()}
        stock = DataLoader(NUMBERS, collate_fn=list, **options)
        assert whole == [batch for _ in range(3) for batch in stock]
    for received in range(0, len(whole), 5 if num_workers else 1):
        with random_loader(kind, num_workers=num_workers) as batches:
            batches.load_state_dict(states[received])
            rest: list[Any] = []
            while len(rest) < len(whole) - received:
                rest += batches
        assert rest == whole[received:]


def orders(kind: str, *, num_workers: int, num_batches: int, asks: bool = False) -> list[Any]:
    """Return the first batches of three epochs, of which each is left after so many."""
    found = []
    with random_loader(kind, num_workers=num_workers) as batches:
        for _ in range(3):
            running = iter(batches)
            found.append(next(running))
            for _ in range(num_batches - 1):
                next(running)
                if asks:
                    batches.state_dict()
    return found


@pytest.mark.processes
@pytest.mark.parametrize("kind", RANDOM)
def test_the_order_of_an_epoch_does_not_depend_on_where_the_one_before_was_left(kind: str) -> None:
    options: dict[str, Any] = RANDOM[kind]() if kind == "batches" else {"batch_size": 4, **RANDOM[kind]()}
    stock = DataLoader(NUMBERS, collate_fn=list, **options)
    expected_orders = [first for first, *_ in (list(stock) for _ in range(3))]
    for num_batches in (1, len(stock) // 2, len(stock) - 1, len(stock)):  # a framework stops at the length
        assert orders(kind, num_workers=0, num_batches=num_batches) == expected_orders
        assert orders(kind, num_workers=0, num_batches=num_batches, asks=True) == expected_orders
    for num_batches in (1, len(stock) - 1, len(stock)):
        assert orders(kind, num_workers=2, num_batches=num_batches) == expected_orders


@pytest.mark.processes
def test_a_run_that_leaves_epochs_goes_on_as_before_with_another_number_of_workers() -> None:
    received, states = [], []
    with random_loader("full batches", num_workers=2) as batches:
        for _ in range(3):
            for batch in islice(batches, 9):  # of 10
                received.append(batch)
                states.append(batches.state_dict())
    for num_received in (5, 12, 22):
        again = random_loader("full batches")
        again.load_state_dict(states[num_received - 1])
        rest: list[Any] = []
        while len(rest) < 27 - num_received:
            rest += islice(again, 9 - (num_received + len(rest)) % 9)
        assert rest == received[num_received:]


@pytest.mark.processes
def test_the_order_of_a_sampler_does_not_depend_on_where_another_one_of_its_generator_was_left() -> None:
    def validated(num_workers: int, num_batches: int) -> list[Any]:
        shared, found = generator(), []
        options: dict[str, Any] = {"batch_size": 4, "collate_fn": list, "num_workers": num_workers}
        with (
            MPLoader(NUMBERS, sampler=RandomSampler(NUMBERS, generator=shared), **options) as train,
            MPLoader(NUMBERS, sampler=RandomSampler(NUMBERS, generator=shared), **options) as val,
        ):
            for _ in range(2):
                list(islice(train, num_batches))
                found.append(list(val))
        return found

    expected_orders = validated(0, 99)
    for num_workers, num_batches in ((0, 1), (0, 11), (2, 1), (2, 8)):
        assert validated(num_workers, num_batches) == expected_orders


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_seed_that_the_user_sets_after_leaving_an_epoch_holds(num_workers: int) -> None:
    drawn = RandomSampler(NUMBERS, generator=generator())
    with MPLoader(NUMBERS, batch_size=4, num_workers=num_workers, collate_fn=list, sampler=drawn) as batches:
        first = list(batches)
        left = iter(batches)
        next(left)
        drawn.generator.manual_seed(3)
        assert list(batches) == first
        left = iter(batches)
        next(left)
        batches.set_epoch(5)
        drawn.generator.manual_seed(3)
        state = batches.state_dict()
    again = MPLoader(
        NUMBERS, batch_size=4, num_workers=0, collate_fn=list, sampler=RandomSampler(NUMBERS, generator=generator())
    )
    again.load_state_dict(state)
    assert list(again) == first


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("replacement", [False, True])
def test_an_endless_random_sampler_begins_at_once(num_workers: int, replacement: bool) -> None:
    endless = RandomSampler(NUMBERS, replacement=replacement, num_samples=10**15, generator=generator())
    stock = list(islice(DataLoader(NUMBERS, sampler=endless), 3))
    endless.generator.manual_seed(3)
    with MPLoader(NUMBERS, sampler=endless, num_workers=num_workers) as batches:
        found = list(islice(batches, 3))
        batches.state_dict()
    assert found == stock


def test_a_state_continues_an_epoch_that_was_left_also_after_others() -> None:
    batches = random_loader("random")
    first = list(batches)
    second = iter(batches)
    received = [next(second)]
    again = random_loader("random")
    again.load_state_dict(batches.state_dict())
    assert first != [*received, *again]
    stock = DataLoader(NUMBERS, batch_size=4, collate_fn=list, **RANDOM["random"]())
    assert list(stock) == first
    again.load_state_dict(batches.state_dict())
    assert [*received, *again] == list(stock)


def test_a_state_without_that_of_the_generator_is_warned_of() -> None:
    batches = random_loader("random")
    list(batches)
    state = batches.state_dict()
    del state["sampler"]
    with pytest.warns(
        MploadWarning, match="does not hold the state of the sampler's generator, so epoch 1 has another"
    ):
        random_loader("random").load_state_dict(state)


@pytest.mark.parametrize("text", ["?", "", base64.b64encode(b"short").decode(), 5, "x" * 5056])
def test_what_is_no_state_of_a_generator_is_refused(text: Any) -> None:
    batches = random_loader("random")
    with pytest.raises(StateError, match="sampler"):
        batches.load_state_dict(batches.state_dict() | {"sampler": text})
    assert list(batches) == list(random_loader("random"))


class OwnSampler(RandomSampler):
    """Based on one of torch's, with nothing of it."""

    def __init__(self) -> None:
        self.levels: list[int] = []
        self.level = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(20):
            self.levels.append(self.level)
            yield number

    def __len__(self) -> int:
        return 20


class OwnBatches:
    """Batches of one of torch's samplers that depend on the training."""

    def __init__(self) -> None:
        self.sampler = RandomSampler(NUMBERS, generator=generator())
        self.levels: list[int] = []
        self.level = 0

    def __iter__(self) -> Iterator[list[int]]:
        for number in self.sampler:
            self.levels.append(self.level)
            yield [number]


def test_samplers_of_the_users_own_classes_are_left_alone_and_not_read_ahead() -> None:
    asked: Any
    for asked, options in (
        (sampler_ := OwnSampler(), {"sampler": sampler_}),
        (own := OwnBatches(), {"batch_sampler": own}),
    ):
        batches = MPLoader(NUMBERS, num_workers=0, **options)
        assert "sampler" not in batches.state_dict()
        for number, _ in enumerate(batches):
            asked.level = number + 1
        assert asked.levels == [*range(len(asked.levels))]


def test_a_random_sampler_is_asked_for_nothing_before_its_time() -> None:
    """Its generator may be that of the dataset too."""
    shared = generator()

    class Drawing:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> float:
            return index + float(torch.rand((), generator=shared))

    def made(kind: Any, **options: Any) -> list[Any]:
        shared.manual_seed(5)
        dataset: Any = Drawing()
        loader = kind(dataset, batch_size=4, num_workers=0, sampler=RandomSampler(dataset, generator=shared), **options)
        return [each.tolist() for _ in range(3) for each in loader]

    assert made(MPLoader) == made(DataLoader)


def test_samplers_that_share_a_generator_are_restored_in_any_order() -> None:
    def make() -> tuple[MPLoader[Any], MPLoader[Any]]:
        shared = generator()
        first, second = (
            MPLoader(
                NUMBERS, batch_size=4, num_workers=0, collate_fn=list, sampler=RandomSampler(NUMBERS, generator=shared)
            )
            for _ in range(2)
        )
        return first, second

    train, val = make()
    list(train), list(val)
    running = iter(train)
    next(running)
    states = train.state_dict(), val.state_dict()
    expected_rest = [list(running), list(val), list(train)]
    for is_reversed in (False, True):
        loaders = make()
        for loader_, state in list(zip(loaders, states, strict=True))[:: -1 if is_reversed else 1]:
            loader_.load_state_dict(state)
        assert [list(loaders[0]), list(loaders[1]), list(loaders[0])] == expected_rest


def test_a_repeated_epoch_has_the_state_of_its_own_beginning() -> None:
    batches = random_loader("random")
    list(batches)
    batches.set_epoch(0)
    again = random_loader("random")
    again.load_state_dict(batches.state_dict())
    assert list(again) == list(batches)


def test_a_generator_may_be_replaced_between_epochs() -> None:
    def make() -> tuple[Any, MPLoader[Any]]:
        drawn = RandomSampler(NUMBERS, generator=generator())
        return drawn, MPLoader(NUMBERS, batch_size=4, num_workers=0, collate_fn=list, sampler=drawn)

    drawn, batches = make()
    list(batches)
    drawn.generator = torch.Generator().manual_seed(100)
    running = iter(batches)
    next(running)
    _, again = make()
    again.load_state_dict(batches.state_dict())
    assert list(again) == list(running)
