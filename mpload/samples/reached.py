"""Finds the objects that a user's objects and functions refer to. No code of the user is called.

It follows attributes, slots, items of containers, variables and default arguments of functions, the globals and modules
that functions use, and what `functools.lru_cache` keeps. It leaves alone proxies, which stand for other objects, and
loaders and other objects of mpload, but for those that make samples.
"""

import dis
import gc
import heapq
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from itertools import islice
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

__all__ = ["names_loaded_by", "reached", "readers_of"]

_MAX_OBJECTS = 5000
_MAX_NAME = 200
_DATA = (int, float, complex, str, bytes, bytearray, type(None), np.ndarray, np.generic)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_IMAGE_LIBRARIES = {"PIL", "albucore", "albumentations", "cv2", "kornia", "monai", "skimage", "timm", "torchvision"}
_OTHER_LIBRARIES = {"accelerate", "datasets", "lightning", "numpy", "pandas", "pyarrow", "ray", "scipy", "torch"}
_LIBRARIES = _IMAGE_LIBRARIES | _OTHER_LIBRARIES | {"transformers"}
"""Packages whose code is not searched, if they are installed. The attributes of their objects are."""
_SAMPLE_MAKERS = ("mpload.samples.", "mpload.images.")
_DATASETS = "mpload.loader.dataset."
"""Modules of mpload whose objects hold code of the user."""
_SHIFTS = {
    dis.opmap[name]: shift
    for name, shift in [("LOAD_GLOBAL", 1), ("LOAD_NAME", 0), ("LOAD_FROM_DICT_OR_GLOBALS", 0), ("IMPORT_NAME", 0)]
    if name in dis.opmap
}
"""The instructions that load a global or a module by its name, and by how many bits their argument is shifted. That of
`LOAD_GLOBAL` ends with a flag."""
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]


def reached(code: Sequence[object], *, but: Iterable[object]) -> Iterator[tuple[str, Any]]:
    """Yield the objects that `code` refers to, with names: at most 5,000, of 15,000 that are looked at.

    Those come first that are found where there is little to look at: the cost of an object is the product of the
    numbers of objects beside it and beside those that lead to it, and of its own length. So a list of many annotations
    hides no transform.

    Args:
        code: Objects and functions of the user.
        but: Objects that are left out.
    """
    left = [(0.0, number, _name_of(value), value) for number, value in enumerate(code)]
    num_found = len(left)
    seen = {id(each): each for each in but}  # kept alive, so that no other gets its identity
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
    """Yield the attributes of an object, and its class."""
    kind: Any = type(value)
    for key, read in () if _is_closed(kind) else readers_of(kind):
        with suppress(AttributeError):  # an empty slot
            found = read(value)
            if key == "__dict__":
                yield from ((f"{name}.{attribute}", each) for attribute, each in found.items())
            else:
                yield f"{name}.{key}", found
    yield name, type(value)


@lru_cache(maxsize=128)
def _is_closed(kind: Any) -> bool:
    """Return whether objects of a class are left alone: those that stand for others, and those of mpload.

    A dataset that the user has derived from mpload's has attributes of his own.
    """
    bases = kind.__mro__[:-1]
    modules = {f"{base.__module__}." for base in bases} - ({_DATASETS} if f"{kind.__module__}." != _DATASETS else set())
    return any("__class__" in vars(base) for base in bases) or any(
        module.startswith("mpload.") and not module.startswith(_SAMPLE_MAKERS) for module in modules
    )


@lru_cache(maxsize=128)
def readers_of(kind: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return what reads the dict and the slots of an object of a class: names and functions. Empty slots raise errors.

    No code of the user is called.

    Raises:
        AttributeError: by these functions, if a slot has no value.
    """
    if issubclass(kind, threading.local):
        return [("__dict__", vars)]
    members = [(key, each) for base in kind.__mro__[:-1] for key, each in vars(base).items()]
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
    for variable in sorted(set(names_loaded_by(function.__code__))):
        if variable in function.__globals__:
            yield variable, function.__globals__[variable]
        elif variable in sys.modules:
            yield variable, sys.modules[variable]


def names_loaded_by(code: CodeType) -> Iterator[str]:
    """Yield the names by which code loads globals and modules, also inside of functions that it defines.

    `co_names` also holds the names of attributes, which may be those of unrelated globals.
    """
    argument = 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = argument << 8 | low
        if operation == _EXTENDED_ARG:
            continue
        if operation in _SHIFTS:
            yield code.co_names[argument >> _SHIFTS[operation]]
        argument = 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_loaded_by(constant)


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
