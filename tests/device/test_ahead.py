"""A prefetcher fetches batches ahead. Users and frameworks hear only of those that it has handed over."""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mpload import DevicePrefetcher, MPLoader
from mpload.device.streams import InlineStream
from mpload.errors import ArgumentError
from tests.support.streams import on_stream


class Numbers(Dataset[int]):
    """0 to 74, but numbers that are bad raise an error."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 75

    def __getitem__(self, number: int) -> int:
        if number in self.bad:
            raise ValueError(f"{number} is bad")
        return number


class Eager(InlineStream):
    """A stream beside which batches are fetched ahead, as on an accelerator. Its work is done at once."""

    is_async = True


EAGER = Eager()


def loader_of(dataset: Any) -> MPLoader[torch.Tensor]:
    return MPLoader(dataset, batch_size=8, num_workers=0)


def firsts(batches: Iterable[torch.Tensor]) -> tuple[list[int], list[str]]:
    """Return the numbers of the batches, and the errors of those that failed."""
    found: list[int] = []
    errors: list[str] = []
    iterator = iter(batches)
    while True:
        try:
            found.append(int(next(iterator)[0]) // 8)
        except StopIteration:
            return found, errors
        except Exception as error:  # noqa: BLE001  any
            errors.append(str(error).splitlines()[0])


@pytest.fixture
def gradients() -> Iterator[Any]:
    """What Accelerate is told. It counts as used during the test."""
    state = pytest.importorskip("accelerate.state")
    yield state.GradientState()
    state.GradientState._reset_state()


@pytest.mark.parametrize("depth", [1, 3])
def test_accelerate_recognises_the_last_batch_that_is_handed_over(gradients: Any, depth: int) -> None:
    loader = loader_of(Numbers())
    for batches in (loader, on_stream(EAGER, loader, depth=depth), DevicePrefetcher(loader, device="cpu")):
        told = [(gradients.end_of_dataloader, gradients.remainder) for _ in batches]
        assert told == [(False, 3)] * 9 + [(True, 3)]
        assert not gradients.in_dataloader


@pytest.mark.parametrize("stream", [None, EAGER])
def test_the_state_of_a_loader_counts_what_was_handed_over(stream: Eager | None) -> None:
    loader = loader_of(Numbers())
    batches = on_stream(stream, loader, depth=3)
    for number, _ in enumerate(batches, 1):
        assert loader.state_dict() == batches.state_dict()
        assert loader.state_dict()["position"] == 8 * number
        if number == 4:
            break
    state = loader.state_dict()
    loader.set_epoch(7)
    assert loader.state_dict()["epoch"] == 7
    loader.load_state_dict(state)
    assert firsts(batches)[0] == firsts(loader_of(Numbers()))[0][4:]
    for _ in loader:
        assert loader.state_dict()["position"] == 8
        break


def test_accelerate_takes_a_prefetcher_as_it_takes_its_loader() -> None:
    loader = loader_of(Numbers())
    batches = DevicePrefetcher(loader, device="cpu")
    assert batches._is_accelerate_prepared
    assert batches.use_stateful_dataloader
    assert batches.dataset is loader.dataset
    plain = DevicePrefetcher([torch.zeros(1)], device="cpu")
    assert not plain._is_accelerate_prepared
    assert not hasattr(plain, "dataset")


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("stream", [None, EAGER])
def test_a_transform_that_fails_costs_its_batch_and_no_other(stream: Eager | None, depth: int) -> None:
    def transform(batch: torch.Tensor) -> torch.Tensor:
        if int(batch[0]) // 8 in {0, 2, 9}:
            raise ValueError("cannot transform")
        return batch

    batches = on_stream(stream, loader_of(Numbers()), depth=depth, device_transform=transform)
    found: list[int] = []
    positions: list[int] = []
    iterator = iter(batches)
    while len(positions) < 10:
        try:
            found.append(int(next(iterator)[0]) // 8)
        except ValueError:
            found.append(-1)
        positions.append(batches.state_dict()["position"] // 8)
    with pytest.raises(StopIteration):
        next(iterator)
    assert found == [-1, 1, -1, 3, 4, 5, 6, 7, 8, -1]
    assert positions[:4] == [0, 2, 2, 4], "an error is counted with the next batch"


@pytest.mark.parametrize("depth", [1, 3])
def test_errors_of_any_loader_keep_their_places(depth: int) -> None:
    stock = DataLoader(Numbers(20, 21, 60), batch_size=8)
    expected = firsts(stock)
    assert expected == ([0, 1, 3, 4, 5, 6, 8, 9], ["20 is bad", "60 is bad"])
    assert firsts(on_stream(None, stock, depth=depth)) == expected
    assert firsts(on_stream(EAGER, stock, depth=depth)) == expected


@pytest.mark.parametrize("wrap", [lambda loader: loader, lambda loader: DevicePrefetcher(loader, device="cpu")])
def test_a_second_thread_gets_an_error_and_the_first_one_all_batches(wrap: Any) -> None:
    class Blocks(Numbers):
        def __getitem__(self, number: int) -> int:
            if number == 20:
                is_inside.set()
                assert goes_on.wait(60)
            return number

    is_inside, goes_on = threading.Event(), threading.Event()
    found: list[Any] = []
    batches = wrap(loader_of(Blocks()))
    thread = threading.Thread(target=lambda: found.extend(firsts(batches)))
    thread.start()
    try:
        assert is_inside.wait(60)
        with pytest.raises(ArgumentError, match="another thread is waiting for a batch of this loader"):
            next(iter(batches))
    finally:
        goes_on.set()
        thread.join()
    assert found == [[*range(10)], []]
    assert firsts(batches)[0] == [*range(10)]
