"""Notices changes to a dataset's attributes, so that workers get a new copy of it."""

from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["Attributes", "Watch"]

_MAX_VALUES = 1000
_MAX_ITEMS = 100
"""Of a longer container only the length is compared."""
_VALUES = (int, float, complex, str, bytes, type(None))
_LEAVES = (ModuleType, FunctionType, MethodType, type)


class Attributes:
    """The attributes of a dataset, of the objects in them, and so on, at one moment.

    It takes up to a thousand values: numbers, strings and identities. What changes inside an array, a tensor or a long
    list is not noticed, unless its length changes.
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
    """Yield each value, and after a container its length."""
    left, seen = [dataset], set[int]()
    for _ in range(_MAX_VALUES):
        if not left:
            return
        value = left.pop()
        yield value
        if isinstance(value, (*_VALUES, *_LEAVES)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple | dict | set | frozenset):
            yield len(value)
            if len(value) <= _MAX_ITEMS:
                left += [*value, *value.values()] if isinstance(value, dict) else value
        left += [*getattr(value, "__dict__", {}).items()]


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):  # also a name and its value; the items follow
        return isinstance(b, tuple) and len(a) == len(b)
    return a is b or (isinstance(a, _VALUES) and type(a) is type(b) and (a == b or a != a))  # noqa: PLR0124  NaN
