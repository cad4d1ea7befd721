"""Notices changes to a dataset's attributes, so that workers get a new copy of it. No code of the user is called."""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from logging import Logger
from pathlib import PurePath
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from mpload.loader.instead import Guarded
from mpload.samples.reached import readers_of

__all__ = ["Attributes", "Watch"]

_MAX_VALUES = 1000
_MAX_ITEMS = 100
"""Of a longer container only the length is compared."""
_VALUES: tuple[Any, ...] = (int, float, complex, str, bytes, type(None))
_LEAVES = (*_VALUES, ModuleType, type, PurePath, Logger, Guarded)
"""What is not looked into. Paths and loggers keep what they have computed, and a loader counts its batches."""
_CONTAINERS: tuple[Any, ...] = (list, tuple, OrderedDict, dict, set, frozenset, deque)
"""Their own methods read the items, not those of a class that the user has derived from them."""


class Attributes:
    """The attributes of a dataset, of the objects in them, and so on, at one moment.

    It takes up to a thousand values, those of attributes before those in containers: numbers, strings and identities.
    Objects are also reached through slots, bound methods and the variables and default arguments of functions, not
    through classes, modules and globals.
    What changes inside an array, a tensor or a long list is not noticed, unless its length changes.
    """

    def __init__(self, dataset: object) -> None:
        self._values = list(_walk(dataset))

    def has_changed(self, dataset: object) -> bool:
        """Return whether an attribute has another value by now."""
        now = list(_walk(dataset))
        return len(now) != len(self._values) or not all(map(_is_same, now, self._values))


class Watch:
    """Watches a dataset for changes between iterations.

    Args:
        dataset: what is watched.
        keeps_workers: whether workers keep the dataset that they have after the first iteration has begun.
    """

    def __init__(self, dataset: object, *, keeps_workers: bool) -> None:
        self._dataset = dataset
        self._keeps_workers = keeps_workers
        self._attributes: Attributes | None = Attributes(dataset)

    def has_changed(self) -> bool:
        """Return whether the dataset has changed since the last call, or since this object was made."""
        if self._attributes is None:
            return False
        has_changed = self._attributes.has_changed(self._dataset)
        if self._keeps_workers:
            self._attributes = None
        elif has_changed:
            self._attributes = Attributes(self._dataset)
        return has_changed


def _walk(dataset: object) -> Iterator[Any]:
    """Yield each value, and after a container its length. The caller keeps all of them, so that identities stay."""
    near: deque[Any] = deque([dataset])  # attributes
    far: deque[Any] = deque()  # what containers hold, which may be plain data
    seen = {id(random.seed.__self__)}  # type: ignore[attr-defined]  # the generator of `random.gauss` and others
    for _ in range(_MAX_VALUES):
        if not near and not far:
            return
        value = (near or far).popleft()
        yield value
        kind: Any = type(value)  # `isinstance` would ask a proxy what it stands for
        if issubclass(kind, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        container = next((each for each in _CONTAINERS if issubclass(kind, each)), None)
        if container is not None:
            yield (length := container.__len__(value))
            if length <= _MAX_ITEMS and len(far) < _MAX_VALUES:  # others would not have their turn
                far += container.__iter__(value)
                far += container.values(value) if issubclass(container, dict) else ()
        if kind not in _CONTAINERS and len(near) < _MAX_VALUES:
            near += _inside(kind, value)


def _inside(kind: Any, value: Any) -> Iterator[Any]:
    """Yield what an object refers to, and the names of its attributes."""
    if kind is FunctionType:
        yield from (*(value.__defaults__ or ()), value.__kwdefaults__, *(value.__closure__ or ()))
        yield from chain.from_iterable([*dict.items(value.__dict__)])
    elif kind is CellType:
        with suppress(ValueError):  # the variable has no value yet
            yield value.cell_contents
    else:
        for key, read in _readers_of(kind):
            with suppress(AttributeError):  # an empty slot
                found = read(value)
                if key == "__dict__":
                    yield from chain.from_iterable([*dict.items(found)])  # a copy, since threads may change it
                else:
                    yield from (key, found)


def _readers_of(kind: Any) -> Sequence[tuple[str, Callable[[Any], Any]]]:
    try:
        return readers_of(kind)
    except Exception:  # noqa: BLE001  whatever the user's metaclass does
        return ()


def _is_same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    kind: Any = type(a)
    if kind is not type(b):
        return False
    if issubclass(kind, tuple):  # also a name and its value; the items follow
        return len(a) == len(b)
    if kind is MethodType:  # made anew wherever the user takes it; its object and its function follow
        return True
    base = next((each for each in _VALUES if issubclass(kind, each)), None)
    return base is not None and (base.__eq__(a, b) is True or base.__ne__(a, a) is True)  # NaN differs from itself
