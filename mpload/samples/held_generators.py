"""Finds the random generators that a user's code holds, of which each worker has a copy.

A copy draws what the original draws. So without care, samples made by two workers get the same random numbers:

```python
class Photos:
    def __init__(self):
        self.augment = A.Compose([A.RandomBrightnessContrast()])  # holds generators of its own

    def __getitem__(self, index):
        return self.augment(image=read(index))["image"]
```
"""

import gc
import heapq
import math
import pickle
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from itertools import islice
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from mpload.errors import MploadWarning
from mpload.samples.seeded_albumentations import SeededAlbumentations, is_based_on, is_seeded

__all__ = ["HeldGenerators", "warn_of_copies"]

_ATTRIBUTES = ("random_generator", "py_random", "R")
"""Where the transforms of these libraries hold their generators."""
_MAX_OBJECTS = 5000
_MAX_NAME = 200
_DATA = (int, float, complex, str, bytes, bytearray, type(None), np.ndarray, np.generic)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_IMAGE_LIBRARIES = {"PIL", "albucore", "albumentations", "cv2", "kornia", "monai", "skimage", "timm", "torchvision"}
_OTHER_LIBRARIES = {"accelerate", "datasets", "lightning", "numpy", "pandas", "pyarrow", "ray", "scipy", "torch"}
_LIBRARIES = _IMAGE_LIBRARIES | _OTHER_LIBRARIES | {"transformers"}
"""Packages whose code is not searched, if they are installed. The attributes of their objects are."""
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
        self._watched = []
        found: list[Any] = []
        for name, value in _reached(self._code):
            with suppress(Exception):  # what cannot be looked into is left out
                if _is_transform(value):
                    found.append(value)
                elif _warns and _kind_of(value):
                    self._watched.append((name, value, _state_of(value)))
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
                warnings.warn(
                    f"samples draw random numbers from {name}, a generator of {kind}. Each worker has a copy of it, so "
                    "workers draw the same numbers, and those of a sample depend on which worker makes it, unless you "
                    f"seed it for each sample. Draw from the global generator of {kind} instead: mpload seeds that",
                    MploadWarning,
                    stacklevel=2,
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
    if issubclass(type(value), type):
        return False
    if _library_of(value) == "albumentations":
        return hasattr(value, "set_random_state")
    if _library_of(value) != "monai" or any(isinstance(vars(base).get("R"), property) for base in type(value).__mro__):
        return False
    return isinstance(getattr(value, "R", None), np.random.RandomState)


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


def _reached(code: tuple[object, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the objects that `code` refers to, with names: at most 5,000, of 15,000 that are looked at.

    Those come first that are found where there is little to look at: the cost of an object is the product of the
    numbers of objects beside it and beside those that lead to it, and of its own length. So a list of many annotations
    hides no transform.
    """
    left = [(0.0, number, _name_of(value), value) for number, value in enumerate(code)]
    num_found = len(left)
    seen = {id(each): each for each in _global_generators()}  # kept alive, so that no other gets its identity
    while left and len(seen) < _MAX_OBJECTS:
        cost, _, name, value = heapq.heappop(left)
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield name, value
        inside: list[tuple[str, Any]] = []
        with suppress(Exception):  # what cannot be looked into is left out
            room = min(_MAX_OBJECTS, 3 * _MAX_OBJECTS - num_found)
            inside += islice((each for each in _inside(name, value) if not _is_data(each[1])), room)
        cost += 0 if issubclass(type(value), _CONTAINERS) else math.log(len(inside) + 1)
        for number, (inner_name, inner) in enumerate(inside, num_found):  # no two have the same number
            heapq.heappush(left, (cost + math.log(_length_of(inner) + 1), number, inner_name[-_MAX_NAME:], inner))
        num_found += len(inside)


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object refers to, with names."""
    kind = type(value)
    if issubclass(kind, _CONTAINERS):
        yield from _items_of(name, value)
        if kind not in _CONTAINERS:  # of the user
            yield from _attributes_of(name, value)
    elif kind is MethodType:
        yield name, value.__self__
        yield name, value.__func__
    elif kind is partial:
        yield from ((name, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif kind is FunctionType:
        yield from _used_by(value)
    elif kind is ModuleType:
        if not _is_of_library(value.__name__):
            yield from ((f"{name}.{key}", each) for key, each in vars(value).items() if key != "__builtins__")
    elif issubclass(kind, type):
        if not _is_of_library(value.__module__):
            yield from ((f"{name}.{key}", _behind(each)) for key, each in vars(value).items())
            yield from ((name, base) for base in value.__bases__)
    elif kind.__name__ in {"_lru_cache_wrapper", "_lru_list_elem"}:  # which have no other way to what they keep
        yield from ((name, each) for each in gc.get_referents(value))
    else:
        yield from _attributes_of(name, value)


def _name_of(value: Any) -> str:
    return str(value.__name__) if type(value) in {FunctionType, MethodType} else type(value).__name__


def _is_data(value: object) -> bool:
    torch = sys.modules.get("torch")
    return issubclass(type(value), _DATA) or (torch is not None and issubclass(type(value), torch.Tensor))


def _container_of(value: object) -> Any:
    """Return the built-in class of a container, whose methods are called, not those of the user; None if it is none."""
    return next((kind for kind in _CONTAINERS if issubclass(type(value), kind)), None)


def _length_of(value: Any) -> int:
    container = _container_of(value)
    return 0 if container is None else int(container.__len__(value))


def _items_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container, unless it holds data."""
    container = _container_of(value)
    read = dict.values if container is dict else container.__iter__
    if all(map(_is_data, islice(read(value), 1000))):
        return
    yield from ((f"{name}[...]", each) for each in read(value))


def _attributes_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object and its class. No code of the user is called, and proxies are left alone."""
    kind: Any = type(value)
    for key, read in _readers_of(kind):
        with suppress(AttributeError):  # an empty slot
            found = read(value)
            if key == "__dict__":
                skipped = _ATTRIBUTES if _is_transform(value) else ()
                yield from ((f"{name}.{at}", each) for at, each in found.items() if at not in skipped)
            else:
                yield f"{name}.{key}", found
    yield name, type(value)


@lru_cache(maxsize=128)
def _readers_of(kind: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return what reads the dict and the slots of an object; nothing if it stands for another object."""
    bases = kind.__mro__[:-1]
    if any("__class__" in vars(base) for base in bases):
        return []
    if issubclass(kind, threading.local):
        return [("__dict__", vars)]
    members = [(key, each) for base in bases for key, each in vars(base).items()]
    return [
        (key, each.__get__)
        for key, each in members
        if isinstance(each, MemberDescriptorType) or (key == "__dict__" and isinstance(each, GetSetDescriptorType))
    ]


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables and default arguments that a function uses, and the modules that it imports."""
    if _is_of_library(function.__module__ or ""):
        return
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            yield variable, cell.cell_contents
    for values in (function.__defaults__, function.__kwdefaults__, function.__dict__):  # what a decorator wraps
        if values:
            yield function.__name__, values
    for variable in set(_names_in(function.__code__)):
        if variable in function.__globals__:
            yield variable, function.__globals__[variable]
        elif variable in sys.modules:
            yield variable, sys.modules[variable]


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code uses for globals and attributes, also inside of functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _behind(attribute: Any) -> Any:
    """Return the function behind an attribute of a class."""
    kind = type(attribute)
    if issubclass(kind, property):
        return attribute.fget
    if issubclass(kind, staticmethod | classmethod):
        return attribute.__func__
    return attribute.func if issubclass(kind, cached_property) else attribute


def _is_of_library(module: str) -> bool:
    top = str(module).partition(".")[0]
    if top in sys.stdlib_module_names or top == "mpload":
        return True
    return top in _LIBRARIES and "-packages" in str(getattr(sys.modules.get(top), "__file__", ""))
