"""A state of an MPDataset counts the received batches, and reading resumes exactly after them."""

import copy
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from mpload import (
    MPDataset,
)
from mpload.errors import StateError
from tests.support.batches import flat, ids, numbers


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_made_during_an_epoch_starts_with_the_next_one(
    folder: Path, copied: Callable[[MPDataset], MPDataset]
) -> None:
    dataset, alone = numbers(folder, 50), numbers(folder, 50)
    next(iter(dataset))
    ids(alone)
    other = copied(dataset)
    state = other.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    assert ids(other) == ids(alone)
    assert dataset.state_dict()["position"] == 4


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_taken_while_workers_read_counts_the_received_batches(folder: Path, persistent: bool) -> None:
    dataset = numbers(folder, 90)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    ids(loader)
    received = ids(itertools.islice(loader, 5))
    with pytest.raises(StateError, match=r"Call state_dict\(num_batches=\.\.\.\)"):
        dataset.state_dict()
    state = dataset.state_dict(num_batches=5)
    assert (state["epoch"], state["position"]) == (1, 20)
    resumed = numbers(folder, 90)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)  # as training loops do; the position is kept
    assert len(resumed) == 23  # always counts the whole epoch
    assert resumed._run.plan_of(resumed._run.epochs.next).num_batches == 18
    rest = ids(DataLoader(resumed, batch_size=None, num_workers=3))
    whole = numbers(folder, 90)
    whole.set_epoch(1)
    assert flat(received + rest)[:90] == flat(ids(whole))[:90]
    resumed.set_epoch(5)
    assert resumed._run.epochs.next.position == 0


def test_a_finished_epoch_resumes_at_the_next_one(folder: Path) -> None:
    dataset = numbers(folder, 50)
    num_batches = len(ids(dataset))
    assert dataset.state_dict() == dataset.state_dict(num_batches)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["position"]) == (1, 0)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_stateful_data_loader_resumes_exactly(folder: Path, num_workers: int, batch_size: int | None) -> None:
    def loader() -> "StatefulDataLoader[Any]":
        dataset = numbers(folder, 60, batch_size=batch_size)
        return StatefulDataLoader(dataset, batch_size=None if batch_size else 4, num_workers=num_workers)

    first = loader()
    whole = [[ids([batch])[0] for batch in first] for _ in range(3)]
    for num_epochs, num_batches in [(0, 3), (1, 4), (1, 7)]:
        saving = loader()
        for _ in range(num_epochs):
            ids(saving)
        iterator = iter(saving)
        got = [ids([next(iterator)])[0] for _ in range(num_batches)]
        state = pickle.loads(pickle.dumps(saving.state_dict()))
        del iterator
        resumed = loader()
        resumed.load_state_dict(state)
        assert got + ids(resumed) == whole[num_epochs]
        assert ids(resumed) == whole[num_epochs + 1]


def test_a_state_of_another_index_order_or_format_is_refused(folder: Path) -> None:
    dataset = numbers(folder, 50)
    state = dataset.state_dict()
    for other in (numbers(folder, 51), numbers(folder, 50, shuffle=False)):
        with pytest.raises(StateError, match=r"another index|with order 'shuffle', but this run uses 'sequential'"):
            other.load_state_dict(state)
    with pytest.raises(StateError, match="format version 99"):
        dataset.load_state_dict(state | {"version": 99})
