"""A map-style dataset that is changed between epochs: workers get the changes."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from mpload import MPLoader
from mpload.loader.changes import Attributes
from tests.support.map_styles import Added, Plus
from tests.support.whole_batches import as_list

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.mark.processes
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "multiprocessing_context": "fork"}])
@pytest.mark.parametrize("options", [{}, {"collate_fn": as_list}, {"sampler": range(20)}])
def test_changes_reach_the_workers(workers: dict[str, Any], options: dict[str, Any]) -> None:
    dataset = Added()
    options = {"batch_size": 10, **workers, **options}
    with MPLoader(Subset(dataset, range(20)), **options) as loader:  # type: ignore[arg-type]
        for number in (0, 100, 100, 300):
            dataset.transforms[0].number = number
            numbers = [int(value) for batch in loader for value in batch]
            assert numbers == list(range(number, number + 20))


@pytest.mark.processes
def test_workers_persist_while_nothing_changes_or_if_that_is_asked_for() -> None:
    dataset = Added()
    for persistent, changes in [(False, False), (True, True)]:
        with MPLoader(dataset, batch_size=10, num_workers=1, persistent_workers=persistent) as loader:
            first, pids = list(loader), loader.pids
            dataset.transforms[0].number += changes
            second = list(loader)
            assert all(map(torch.equal, first, second))
            assert loader.pids == pids


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_may_grow_between_epochs(num_workers: int) -> None:
    dataset = [*range(4)]
    with MPLoader(dataset, batch_size=1, num_workers=num_workers) as loader:
        dataset.append(4)
        assert len(loader) == 5
        assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3, 4]
        dataset.append(5)
        assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3, 4, 5]
        assert len(loader) == 6


class Holder:
    """An object with attributes of all kinds."""

    def __init__(self) -> None:
        self.number, self.nothing, self.ratio = 1, None, float("nan")
        self.names = ["a", "b"]
        self.inner: Any = Plus(1)
        self.table: dict[str, Any] = {"x": Plus(2), "y": (1, 2)}
        self.long = list(range(1000))
        self.array = np.zeros(5)
        self.itself = self


CHANGES: dict[str, Any] = {
    "number": lambda h: setattr(h, "number", 2),
    "type": lambda h: setattr(h, "number", True),
    "new attribute": lambda h: setattr(h, "more", None),
    "item": lambda h: h.names.__setitem__(0, "c"),
    "inner": lambda h: setattr(h.inner, "number", 5),
    "in a dict": lambda h: setattr(h.table["x"], "number", 5),
    "in a tuple": lambda h: h.table.__setitem__("y", (1, 3)),
    "longer list": lambda h: h.long.append(0),
    "other array": lambda h: setattr(h, "array", np.zeros(5)),
    "swapped": lambda h: h.__dict__.update(number=None, nothing=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_noticed(change: str) -> None:
    holder = Holder()
    attributes = Attributes(holder)
    assert not attributes.has_changed(holder)
    CHANGES[change](holder)
    assert attributes.has_changed(holder)


def test_a_huge_dataset_is_looked_at_briefly() -> None:
    holder = Holder()
    holder.table = {str(i): Plus(i) for i in range(90)}
    holder.inner = [[Plus(i) for i in range(90)] for _ in range(90)]
    assert len(Attributes(holder)._values) < 2500
