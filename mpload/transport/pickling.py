"""Pickles the work for processes that are no forks, with all that a script defines."""

import functools
import io
import marshal
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]

from mpload.errors import ArgumentError
from mpload.transport.shared_tensors import reduced_storage

__all__ = ["is_importable", "pickle_work"]

_MAX_STEPS = 20
_LEAVES = (ModuleType, BuiltinFunctionType, type, str, bytes, int, float, type(None))


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
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
            value.__module__ == "__main__" or not is_importable(value)
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
            "import"
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
    found: Any = sys.modules.get(value.__module__ or "")
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


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
