"""Finds the random generators that a user's code holds, and seeds those of transforms for each sample.

Each worker has a copy of such a generator, and all copies draw the same numbers. So two workers would augment alike:

```python
class Photos:
    def __init__(self):
        self.augment = A.Compose([A.RandomBrightnessContrast()])  # holds generators of its own

    def __getitem__(self, index):
        return self.augment(image=read(index))["image"]
```
"""

import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from mpload.errors import warn
from mpload.samples.reached import reached
from mpload.samples.seeded_albumentations import SeededAlbumentations, is_based_on, is_seeded

__all__ = ["HeldGenerators", "warn_of_copies"]

_ATTRIBUTES = ("random_generator", "py_random", "R")
"""Where the transforms of these libraries hold their generators."""
_warns = False


def warn_of_copies() -> None:
    """Let this process warn once of generators that are neither global nor seeded. One worker of a loader does."""
    global _warns  # noqa: PLW0603  it is true for the process
    _warns = True


class HeldGenerators:
    """The generators that can be reached from a user's objects and functions.

    Those of transforms of albumentations and MONAI are seeded for each sample. Others are not: a dataset may rely on
    the copies being equal, for example to choose its samples. There is a warning once samples draw from them.

    Objects are searched for before calls 1, 2, 16, 128 and so on, since the user's code may make some when it is first
    called.

    Args:
        code: Datasets, decoders, transforms and other callables.

    Process:
        Cannot be pickled. Not thread-safe.
    """

    __slots__ = ("_calls_left", "_code", "_num_calls", "_own", "_seeded", "_watched")

    def __init__(self, *code: object) -> None:
        self._code = code
        self._num_calls = 0
        self._calls_left = 1
        """Until the next search."""
        self._seeded: list[SeededAlbumentations | _SeededMonai] = []
        self._own: dict[int, tuple[Any, dict[str, Any]]] = {}
        """By identity: each transform, also those inside others, and its own generators."""
        self._watched: list[tuple[str, Any, bytes]] = []
        """Name, generator and state."""

    def are_seeded(self) -> bool:
        """Return whether there are generators to seed before a call of the user's code."""
        self._num_calls += 1
        self._calls_left -= 1
        if not self._calls_left:
            self._calls_left = 1 if self._num_calls == 1 else 7 * self._num_calls
            self._warn_if_drawn()
            self._search()
        return bool(self._seeded)

    def search_again(self) -> None:
        """Search before the next call, since the user may have changed the objects."""
        self._calls_left = 1

    def seed(self, rng: np.random.Generator) -> None:
        """Let transforms draw from `rng`, until the next call."""
        for each in self._seeded:
            each.seed(rng)

    def restore(self) -> None:
        """Give transforms the generators back that they had before the first call."""
        for owner, generators in self._own.values():
            vars(owner).update(generators)  # first, since another thread may be drawing
            for key in _ATTRIBUTES:
                if key not in generators:
                    vars(owner).pop(key, None)

    def _search(self) -> None:
        found: list[Any] = []
        watched: list[tuple[str, Any, bytes]] = []
        for name, value in reached(self._code, but=_global_generators()):
            with suppress(Exception):  # what cannot be looked into is left out
                if _is_transform(value):
                    found.append(value)
                elif _warns and _kind_of(value):
                    watched.append((name, value, _state_of(value)))
        own_ids = {id(vars(value).get(key)) for value in found for key in _ATTRIBUTES}
        self._watched = [each for each in watched if id(each[1]) not in own_ids]
        # A `Compose` of albumentations passes its generators on to those inside it.
        inner = {
            id(each) for value in found if _library_of(value) == "albumentations" for each in _transforms_in(value)
        }
        self._seeded = []
        for value in found:
            if not is_seeded(value) and not isinstance(vars(value).get("R"), _SampleState):
                own = {key: vars(value)[key] for key in _ATTRIBUTES if key in vars(value)}
                self._own.setdefault(id(value), (value, own))
            if _library_of(value) == "monai":
                self._seeded.append(_SeededMonai(value))
            elif id(value) not in inner:
                self._seeded.append(SeededAlbumentations(value))

    def _warn_if_drawn(self) -> None:
        global _warns  # noqa: PLW0603  one warning is enough
        for name, generator, state in self._watched if _warns else ():
            if _state_of(generator) != state:
                _warns = False
                kind = _kind_of(generator)
                warn(
                    f"samples draw random numbers from {name}, a generator of {kind}. Each worker has a copy of it, so "
                    "workers draw the same numbers, and those of a sample depend on which worker makes it, unless you "
                    f"seed it for each sample. Draw from the global generator of {kind} instead: mpload seeds that"
                )
                return


class _SampleState(np.random.RandomState):
    """The class of generators that MONAI takes, drawing from a sample's generator."""


class _SeededMonai:
    """A transform of MONAI that draws from the sample's generator."""

    __slots__ = ("_transform",)

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def seed(self, rng: np.random.Generator) -> None:
        """Let it draw from `rng`. What is inside it is seeded on its own."""
        self._transform.R = _SampleState(rng.bit_generator)


def _is_transform(value: Any) -> bool:
    """Return whether an object is a transform of a library whose generators can be replaced."""
    library = "" if issubclass(type(value), type) else _library_of(value)
    if not library or not hasattr(value, "__dict__"):
        return False
    if library == "albumentations":
        return hasattr(value, "set_random_state")
    has_setter = not any(isinstance(vars(base).get("R"), property) for base in type(value).__mro__)
    return has_setter and isinstance(getattr(value, "R", None), np.random.RandomState)


def _library_of(value: object) -> str:
    """Return "albumentations" or "monai" for an object of these libraries, and "" for others."""
    kind: Any = type(value)
    return _library_of_class(kind)


@lru_cache(maxsize=128)
def _library_of_class(kind: Any) -> str:
    return next((library for library in ("albumentations", "monai") if is_based_on(kind, frozenset({library}))), "")


def _transforms_in(compose: Any) -> Iterator[Any]:
    """Yield the transforms to which a `Compose` passes its generators on."""
    left, seen = [compose], set[int]()
    while left:
        inner = vars(left.pop()).get("transforms")
        for each in inner if type(inner) in {list, tuple} else ():
            if id(each) not in seen and _is_transform(each):
                seen.add(id(each))
                left.append(each)
                yield each


def _kind_of(value: object) -> str:
    """Return the library of a generator; "" if it is none."""
    kind = type(value)  # `isinstance` would ask a proxy what it stands for
    if issubclass(kind, np.random.Generator | np.random.RandomState):
        return "NumPy"
    if issubclass(kind, random.Random):
        return "random"
    torch = sys.modules.get("torch")
    return "torch" if torch is not None and issubclass(kind, torch.Generator) else ""


def _state_of(generator: Any) -> bytes:
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    state = generator.get_state()
    return pickle.dumps(state) if isinstance(generator, np.random.RandomState) else bytes(state.numpy())


def _global_generators() -> Iterator[object]:
    """Yield those that are seeded anyway."""
    yield getattr(np.random.mtrand, "_rand", None)  # where scikit-learn finds it too
    yield random.seed.__self__  # type: ignore[attr-defined]
    if (torch := sys.modules.get("torch")) is not None:
        yield torch.default_generator
