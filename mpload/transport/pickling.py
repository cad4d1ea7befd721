"""Pickles the work for processes that are no forks, with all that a script defines."""

import functools
import io
import marshal
import os
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, TypeVar

import cloudpickle  # type: ignore[import-untyped]

from mpload.errors import ArgumentError
from mpload.transport.shared_tensors import reduced_storage

__all__ = ["SCRIPT_NAMES", "ScriptPickler", "is_importable", "pickle_work", "pickled_for_workers"]

SCRIPT_NAMES = ("__main__", "__mp_main__")
"""Names of the script's module. `multiprocessing` gives it the second one in the processes that it spawns."""

_LINEAGE = os.urandom(16)
"""The same in a process and its forks, and in no other process."""
_registering = threading.RLock()
_MAX_STEPS = 20
_LEAVES = (ModuleType, BuiltinFunctionType, type, str, bytes, int, float, type(None))


class ScriptPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles by value all that the script defines, also in a process that `multiprocessing` has spawned.

    There the script's module is `__mp_main__`, which cloudpickle takes for a module that any process can import. So it
    does with a module (but not with a package) that the script has loaded from a file by its path.
    """

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle a value; `NotImplemented` leaves it to pickle."""
        if isinstance(value, ModuleType):
            name = value.__name__
        elif isinstance(value, type | FunctionType | TypeVar):
            name = value.__module__
        else:
            return super().reducer_override(value)
        if name != SCRIPT_NAMES[1] and _is_findable(name):
            return super().reducer_override(value)
        with _by_value(name):
            if isinstance(value, ModuleType | TypeVar):
                return self.dispatch_table[type(value)](value)
            return super().reducer_override(value)


@functools.cache
def _is_findable(module_name: str | None) -> bool:
    """Return whether other processes find a module by its name. What is no module now is left to cloudpickle."""
    name = str(module_name).partition(".")[0]
    module = sys.modules.get(name)
    if getattr(getattr(module, "__spec__", None), "origin", None) is None or hasattr(module, "__path__"):
        return True
    try:
        return any(finder.find_spec(name, None) is not None for finder in sys.meta_path)
    except Exception:  # noqa: BLE001  other packages install finders, which may raise anything
        return True


@contextmanager
def _by_value(name: str) -> Iterator[None]:
    """Have cloudpickle pickle by value what a module defines. Afterwards all is as before."""
    module = sys.modules.get(name)
    with _registering:
        # In a process that was not spawned, multiprocessing uses `__mp_main__` for `__main__`.
        is_other = module is None or module.__name__ != name
        if is_other or name in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def pickled_for_workers(value: object) -> bytes:
    """Return a value as bytes for workers that run already: forks of this process, or of a zygote that is none.

    A fork finds what the script defines by its name: a copy of a class would be another class to `is` and `isinstance`.
    """
    return _dumped(_PicklerForWorkers, value)


def _dumped(kind: type[ScriptPickler], value: object) -> bytes:
    pickled = io.BytesIO()
    kind(pickled, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return pickled.getvalue()


class _PicklerForWorkers(ScriptPickler):
    """Pickles by name and by value what the script defines, and what a module does that it has loaded by its path."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, type | FunctionType) or (
            value.__module__ not in SCRIPT_NAMES and _is_findable(value.__module__)
        ):
            return super().reducer_override(value)
        by_value = _dumped(ScriptPickler, value)
        return _of_script, (_LINEAGE, value.__module__, value.__qualname__, by_value)


def _of_script(lineage: bytes, module: str, name: str, by_value: bytes) -> Any:
    """Return what the script defines: this process's own if it is a fork of the one that has pickled it."""
    found = _found(module, name) if lineage == _LINEAGE else None
    return pickle.loads(by_value) if found is None else found  # noqa: S301  from our own process


class _Pickler(ScriptPickler):
    """Pickles what cloudpickle does not: see `reducer_override`.

    The file names of functions, which tracebacks of workers need, are kept: cloudpickle drops them from 3.1.3 on.
    """

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: lambda code: (marshal.loads, (marshal.dumps(code),))}, cloudpickle.CloudPickler.dispatch_table
    )

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.fds: list[int] = []
        """Descriptors of shared memory that the pickle refers to."""

    def reducer_override(self, value: Any) -> Any:
        """Pickle tensors in shared memory, functions of the script with a cache, and cached properties."""
        reduced = reduced_storage(value, self.fds)
        if reduced is not None:
            return reduced
        if isinstance(value, functools._lru_cache_wrapper) and (  # noqa: SLF001
            value.__module__ in SCRIPT_NAMES or not _is_findable(value.__module__) or not is_importable(value)
        ):
            return _cached, (value.__wrapped__, value.cache_parameters())
        if type(value) is functools.cached_property:  # which has a lock, before Python 3.12
            return _cached_property, (value.func, value.attrname)
        return super().reducer_override(value)


def pickle_work(work: object) -> tuple[bytes, tuple[int, ...]]:
    """Return `work` as bytes that the zygote can unpickle, and the descriptors that it must have for that.

    The descriptors are those of tensors in shared memory, and stay open while `work` refers to the tensors.

    Raises:
        ArgumentError: it cannot be pickled.
    """
    pickled = io.BytesIO()
    pickler = _Pickler(pickled)
    try:
        pickler.dump(work)
    except Exception as error:
        raise ArgumentError(
            f"workers cannot get a copy of {_culprit(work)}: {type(error).__name__}: {error}. Open files and make "
            "locks, clients and generators in the worker, on first use. Or put the code into a module, which workers "
            "import. multiprocessing_context='fork' gives workers all that a map-style dataset has, at the risks of a "
            "fork beside threads"
        ) from error
    return pickled.getvalue(), tuple(pickler.fds)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    made: Any = functools.cached_property(function)
    if name is not None:
        made.__set_name__(None, name)
    return made


def is_importable(value: Any) -> bool:
    """Return whether a class or function can be found by its name, in this process."""
    return _found(value.__module__ or "", value.__qualname__) is value


def _found(module: str, qualified_name: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    return found


def _culprit(work: object) -> str:
    """Return the name of what cannot be pickled, as far as it can be found from the attributes: `transform: LOCK`."""
    names = [type(work).__name__]
    value: Any = work
    for _ in range(_MAX_STEPS):
        part = next(((name, each) for name, each in _parts_of(value) if not _can_be_pickled(each)), None)
        if part is None:
            break
        if type(value).__module__.partition(".")[0] == "mpload":  # the names that the user knows begin behind it
            names.clear()
        name, value = part
        names.append(name)
    return ": ".join(names)


def _can_be_pickled(value: object) -> bool:
    try:
        _Pickler(io.BytesIO()).dump(value)
    except Exception:  # noqa: BLE001  whatever the user's objects raise
        return False
    return True


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of what an object or a function refers to."""
    if isinstance(value, _LEAVES):
        return
    if isinstance(value, MethodType):
        yield from (("self", value.__self__), (value.__func__.__name__, value.__func__))
    elif isinstance(value, FunctionType):
        used = [name for name in value.__code__.co_names if name in value.__globals__]
        yield from ((name, value.__globals__[name]) for name in used)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield name, cell.cell_contents
    elif isinstance(value, dict):
        yield from ((repr(key), each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", each) for number, each in enumerate(value))
    else:
        if isinstance(value, functools.partial):
            yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
        yield from getattr(value, "__dict__", {}).items()
        for name in getattr(type(value), "__slots__", ()):
            if hasattr(value, name):
                yield name, getattr(value, name)
