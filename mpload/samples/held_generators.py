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

import functools
import pickle
import random
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from mpload.errors import MploadWarning
from mpload.samples.seeded_albumentations import SeededAlbumentations, is_of, name_of

__all__ = ["HeldGenerators", "warn_of_copies"]

_ALBUMENTATIONS, _MONAI = frozenset({"albumentations"}), frozenset({"monai"})
_ATTRIBUTES = ("random_generator", "py_random", "R")
"""Where the transforms of these libraries hold their generators."""
_MAX_OBJECTS = 10_000
_MAX_ITEMS = 100
"""The items of a longer container are data."""
_DATA = (int, float, complex, str, bytes, bytearray, type(None), np.ndarray, np.generic)
_IMAGE_LIBRARIES = {"PIL", "albucore", "albumentations", "cv2", "kornia", "monai", "skimage", "timm", "torchvision"}
_OTHER_LIBRARIES = {
    "accelerate",
    "datasets",
    "lightning",
    "mpload",
    "numpy",
    "pandas",
    "pyarrow",
    "ray",
    "scipy",
    "torch",
}
_LIBRARIES = _IMAGE_LIBRARIES | _OTHER_LIBRARIES | sys.stdlib_module_names
"""Packages whose code is not searched. The attributes of their objects are."""
_warns = False


def warn_of_copies() -> None:
    """Let this process warn of generators that are neither global nor seeded. One worker of a loader does."""
    global _warns  # noqa: PLW0603  it is true for the process
    _warns = True


class HeldGenerators:
    """The generators that can be reached from a user's objects and functions.

    Those of transforms of albumentations and MONAI are seeded for each sample. Others are not: a dataset may rely on
    the copies being equal, for example to choose its samples. There is a warning once samples draw from them.

    Objects are searched for again before calls 1, 2, 4, 8 and so on, since the user's code may add some.

    Args:
        code: Datasets, decoders, transforms and other callables.

    Process:
        Cannot be pickled. Not thread-safe.
    """

    __slots__ = ("_code", "_num_calls", "_own", "_seeded", "_watched")

    def __init__(self, *code: object) -> None:
        self._code = code
        self._num_calls = 0
        self._seeded: list[SeededAlbumentations | _SeededMonai] = []
        self._own: dict[int, tuple[Any, dict[str, Any]]] = {}
        """By identity: each transform, also those inside others, and its own generators."""
        self._watched: list[tuple[str, Any, bytes]] = []
        """Name, generator and state."""

    def are_seeded(self) -> bool:
        """Return whether there are generators to seed before a call of the user's code."""
        self._num_calls += 1
        if not self._num_calls & (self._num_calls - 1):
            self._warn_if_drawn()
            self._search()
        return bool(self._seeded)

    def seed(self, rng: np.random.Generator) -> None:
        """Let transforms draw from `rng`, until the next call."""
        for each in self._seeded:
            each.seed(rng)

    def restore(self) -> None:
        """Give transforms the generators back that they had before the first call."""
        for owner, generators in self._own.values():
            for key in _ATTRIBUTES:
                vars(owner).pop(key, None)
            vars(owner).update(generators)

    def _search(self) -> None:
        self._seeded, self._watched = [], []
        for name, value, is_inside in _reached(self._code):
            if issubclass(type(value), type):
                continue
            if is_of(value, _ALBUMENTATIONS) and hasattr(value, "set_random_state"):
                self._remember(value)
                if not is_inside:  # it passes its generators on to what is inside
                    self._seeded.append(SeededAlbumentations(value))
            elif is_of(value, _MONAI) and isinstance(getattr(value, "R", None), np.random.RandomState):
                self._remember(value)
                self._seeded.append(_SeededMonai(value))
            elif _warns and not is_inside and _kind_of(value):
                with suppress(NotImplementedError):  # the generator of the system has no state
                    self._watched.append((name, value, _state_of(value)))

    def _remember(self, owner: Any) -> None:
        if id(owner) not in self._own:
            self._own[id(owner)] = owner, {key: vars(owner)[key] for key in _ATTRIBUTES if key in vars(owner)}

    def _warn_if_drawn(self) -> None:
        for name, generator, state in self._watched:
            if _state_of(generator) != state:
                kind = _kind_of(generator)
                warnings.warn(
                    f"samples draw random numbers from {name}, a generator of {kind}. Each worker has a copy of it, so "
                    "workers draw the same numbers, and those of a sample depend on which worker makes it. Draw from "
                    f"the global generator of {kind} instead: it is seeded for each sample",
                    MploadWarning,
                    stacklevel=2,
                )


class _SeededMonai:
    """A transform of MONAI that draws from the sample's generator."""

    __slots__ = ("_transform",)

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def seed(self, rng: np.random.Generator) -> None:
        """Let it draw from `rng`. What is inside it is seeded on its own."""
        self._transform.R = np.random.RandomState(rng.bit_generator)


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


def _reached(code: tuple[object, ...]) -> Iterator[tuple[str, Any, bool]]:
    """Yield each object that `code` refers to, its name, and whether a transform of a library holds it."""
    left = deque((name_of(value), value, False) for value in code)
    seen = set(map(id, _global_generators()))
    while left and len(seen) < _MAX_OBJECTS:
        name, value, is_inside = left.popleft()
        if issubclass(type(value), _DATA) or id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value, is_inside
        is_inside = is_inside or is_of(value, _ALBUMENTATIONS) or is_of(value, _MONAI)
        with suppress(Exception):  # what cannot be looked into is left out
            left.extend((inner_name, inner, is_inside) for inner_name, inner in _inside(name, value))


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object refers to, with names."""
    if isinstance(value, dict):
        if len(value) <= _MAX_ITEMS:
            yield from ((f"{name}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        if len(value) <= _MAX_ITEMS:
            yield from ((f"{name}[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, MethodType):
        yield name, value.__self__
        yield name, value.__func__
    elif isinstance(value, functools.partial):
        yield from ((name, each) for each in (value.func, value.args, value.keywords))
    elif isinstance(value, FunctionType):
        yield from _inside_function(name, value)
    elif isinstance(value, type):
        if not _is_of_library(value.__module__):
            yield from ((f"{name}.{key}", _plain(each)) for key, each in vars(value).items())
            yield from ((name, base) for base in value.__bases__)
    elif not isinstance(value, ModuleType):
        attributes = getattr(value, "__dict__", {})
        yield from ((f"{name}.{key}", each) for key, each in attributes.items())
        slots = [key for base in type(value).__mro__ for key in _slots_of(base) if hasattr(value, key)]
        yield from ((f"{name}.{key}", getattr(value, key)) for key in slots)
        yield name, type(value)


def _inside_function(name: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables and default arguments that a function uses, also those of modules."""
    if _is_of_library(function.__module__ or ""):
        return
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            yield variable, cell.cell_contents
    yield name, function.__defaults__ or ()
    yield name, function.__kwdefaults__ or {}
    yield name, function.__dict__  # what a decorator wraps
    names = set(_names_in(function.__code__))
    for variable in names & function.__globals__.keys():
        value = function.__globals__[variable]
        yield variable, value
        if isinstance(value, ModuleType) and not _is_of_library(value.__name__):
            yield from ((f"{variable}.{key}", vars(value)[key]) for key in names & vars(value).keys())


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code uses for globals and attributes, also inside of functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _plain(attribute: Any) -> Any:
    """Return the function behind an attribute of a class."""
    attribute = getattr(attribute, "fget", attribute)  # of a property
    return getattr(attribute, "__func__", attribute)  # of a class method or a static one


def _slots_of(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
