"""A map-style dataset that is changed between epochs: workers get the changes."""

import logging
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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


@dataclass(slots=True)
class Config:
    """Has no dict."""

    number: int = 0


class Slotted:
    """A dataset without a dict."""

    __slots__ = ("config",)

    def __init__(self) -> None:
        self.config = Config()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + self.config.number


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_changes_inside_objects_without_a_dict_reach_the_workers(num_workers: int) -> None:
    dataset = Slotted()
    with MPLoader(dataset, batch_size=4, num_workers=num_workers, multiprocessing_context="fork") as loader:
        for number in (0, 10):
            dataset.config.number = number
            assert torch.cat(list(loader)).tolist() == [number + i for i in range(4)]
        dataset.config = Config(20)
        assert torch.cat(list(loader)).tolist() == [20, 21, 22, 23]


def counted() -> Callable[..., int]:
    """Return a function with state of all kinds."""
    number = 0
    later: int

    def count(new: int | None = None, *, first: Any = None, of: Any = [0]) -> int:  # noqa: B006  it is changed
        nonlocal number, later
        if new is not None:
            number = later = new
        return number + len(of)

    count.__dict__["scale"] = 1
    return count


class Adding(Plus):
    """A transform with a method."""

    def add(self, value: int) -> int:
        """Add the number."""
        return value + self.number


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
        self.config, self.unset = Config(), Unset()
        self.recent = deque([1])
        self.sorted = OrderedDict(a=1, b=2)
        self.partial = partial(max, [1], key=abs, default=0)
        self.count = counted()
        self.method: Any = Adding(3).add
        self.wrapped: Any = partial(Config(5).__eq__, self)
        self.path, self.logger = Path("a") / "b", logging.getLogger("mpload.tests")
        self.gauss, self.steps = random.gauss, (number for number in range(3))
        self.strange = Strange()


class Unset:
    """Its slots may be empty."""

    __slots__ = ("a", "b")


class Strange:
    """All of its code that could be called while it is looked at raises errors."""

    def __init__(self) -> None:
        self.number = 1
        self.items: Any = Items([1, 2])
        self.text = Text("a")

    @property
    def __class__(self) -> Any:
        raise RuntimeError("a property was called")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...

    @property
    def value(self) -> Any:
        raise RuntimeError("a property was called")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it was compared")

    __hash__ = None  # type: ignore[assignment]


class Items(list[Any]):
    """A list whose methods raise errors."""

    def __iter__(self) -> Any:
        raise RuntimeError("it was iterated over")

    def __len__(self) -> int:
        raise RuntimeError("its length was taken")


class Text(str):
    """A string whose methods raise errors."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it was compared")


def vars_of(strange: Strange) -> dict[str, Any]:
    """Return the attributes of an object whose code raises errors."""
    found: dict[str, Any] = object.__getattribute__(strange, "__dict__")
    return found


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
    "slot": lambda h: setattr(h.config, "number", 5),
    "empty slot": lambda h: setattr(h.unset, "a", 1),
    "deque": lambda h: h.recent.append(2),
    "order": lambda h: h.sorted.move_to_end("a"),
    "argument of a partial": lambda h: h.partial.args[0].append(2),
    "keyword of a partial": lambda h: h.partial.keywords.update(default=1),
    "attribute of a function": lambda h: setattr(h.count, "scale", 2),
    "variable of a function": lambda h: h.count(7),
    "default of a function": lambda h: h.count.__kwdefaults__["of"].append(2),
    "other defaults": lambda h: setattr(h.count, "__defaults__", (3,)),
    "object of a method": lambda h: setattr(h.method.__self__, "number", 5),
    "other method": lambda h: setattr(h, "method", Adding(3).add),
    "in what runs no code": lambda h: vars_of(h.strange).update(number=2),
    "item of a list of the user": lambda h: list.__setitem__(vars_of(h.strange)["items"], 0, 5),
    "text of the user": lambda h: vars_of(h.strange).update(text=Text("b")),
    "swapped": lambda h: h.__dict__.update(number=None, nothing=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_noticed(change: str) -> None:
    holder = Holder()
    attributes = Attributes(holder)
    assert not attributes.has_changed(holder)
    CHANGES[change](holder)
    assert attributes.has_changed(holder)


def test_what_is_used_but_not_changed_is_no_change() -> None:
    holder = Holder()
    attributes = Attributes(holder)
    assert str(holder.path) == "a/b"  # a path keeps its text
    assert not holder.logger.isEnabledFor(logging.DEBUG)  # a logger keeps the answer
    assert isinstance(random.gauss(0, 1), float)  # the generator keeps another number
    assert next(holder.steps) == 0
    holder.method = holder.method.__self__.add  # another object for the same method
    vars_of(holder.strange)["text"] = Text("a")
    assert not attributes.has_changed(holder)
    assert not attributes.has_changed(holder)


def test_a_loader_that_is_in_reach_is_no_change() -> None:
    dataset = Added()
    with MPLoader(dataset, batch_size=10, num_workers=0) as loader:
        dataset.transforms.append(lambda value: value + 0 * loader.num_workers)  # type: ignore[arg-type]
        attributes = Attributes(dataset)
        list(loader)
        assert not attributes.has_changed(dataset)


def test_attributes_of_the_dataset_come_before_what_is_in_them() -> None:
    holder = Holder()
    holder.inner = [[Plus(i) for i in range(90)] for _ in range(90)]
    holder.epoch = 0  # type: ignore[attr-defined]
    holder.table = {str(i): [Plus(i)] * 50 for i in range(90)}
    attributes = Attributes(holder)
    for name in ("number", "epoch"):
        setattr(holder, name, 7)
        assert attributes.has_changed(holder)
        attributes = Attributes(holder)


def test_a_huge_dataset_is_looked_at_briefly() -> None:
    holder = Holder()
    holder.table = {str(i): Plus(i) for i in range(90)}
    holder.inner = [[Plus(i) for i in range(90)] for _ in range(90)]
    assert len(Attributes(holder)._values) < 2500


class Annotated:
    """A dataset with much plain data and a transform."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples
        self.transform = Plus(0)


@pytest.mark.parametrize("samples", [[{f"key {n}": n for n in range(5)} for _ in range(100)], [(1, 2, 3, 4)] * 100])
def test_plain_data_does_not_hide_what_attributes_hold(samples: list[Any]) -> None:
    dataset = Annotated(samples)
    attributes = Attributes(dataset)
    assert not attributes.has_changed(dataset)
    dataset.transform.number = 7
    assert attributes.has_changed(dataset)


class Unhashable(type):
    """A metaclass whose classes are no keys of a dict."""

    __hash__ = None  # type: ignore[assignment]


def test_a_class_that_cannot_be_looked_into_is_no_error() -> None:
    dataset = Annotated([Unhashable("Odd", (), {})()])
    assert not Attributes(dataset).has_changed(dataset)
