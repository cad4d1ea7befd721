"""Settings of libraries that a script changes, and that workers get too if they are no forks of its process.

Workers import modules afresh, so they find the settings that a module has when it is imported. Only those few are
passed on that scripts often change, and that change what samples are. So are the script's filters of warnings.
"""

import pickle
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from multiprocessing import util
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]

__all__ = ["Settings", "apply_settings", "apply_settings_for_imports", "changed_settings", "interpreter_flags"]

_VALUES = {
    ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"): False,
    ("PIL.Image", "MAX_IMAGE_PIXELS"): 1024 * 1024 * 1024 // 4 // 3,
}
"""By module and name: the value that a module begins with."""
_DEFAULT_DTYPE = "torch", "default_dtype"
_WARNINGS = "warnings", "filters"
_CALLS: dict[tuple[str, str], tuple[str, Any]] = {
    ("sys", "setrecursionlimit"): ("getrecursionlimit", 1000),
    ("sys", "set_int_max_str_digits"): ("get_int_max_str_digits", 4300),
    ("csv", "field_size_limit"): ("field_size_limit", 1 << 17),
}
"""By module and the function that sets it: the function that returns it, and the value that a module begins with."""
_NUMPY_ERRORS = "numpy", "seterr"
_FIRST_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
Settings = dict[tuple[str, str], Any]


def changed_settings() -> Settings:
    """Return the settings of this process that differ from those that libraries begin with."""
    found: Settings = {}
    for (module, name), first in _VALUES.items():
        value = getattr(sys.modules.get(module), name, first)
        if value != first and (value is None or isinstance(value, bool | int)):
            found[module, name] = value
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_default_dtype() is not torch.float32:
        found[_DEFAULT_DTYPE] = str(torch.get_default_dtype()).removeprefix("torch.")
    for (module, name), (getter, first) in _CALLS.items():
        value = getattr(sys.modules.get(module), getter, lambda first=first: first)()
        if value != first:
            found[module, name] = value
    numpy = sys.modules.get("numpy")
    if numpy is not None and numpy.geterr() != _FIRST_NUMPY_ERRORS:
        found[_NUMPY_ERRORS] = _numpy_errors(numpy)
    found[_WARNINGS] = [named for each in warnings.filters for named in _by_name(each)]
    return found


def apply_settings_for_imports(settings: Settings) -> None:
    """Make those settings in this process that it needs before it imports the user's modules.

    What has raised an error in the script since its imports may have been a warning before, so it raises none here.
    """
    filters = [("ignore" if action == "error" else action, *others) for action, *others in settings.get(_WARNINGS, [])]
    apply_settings({**{key: settings[key] for key in settings if key != _NUMPY_ERRORS}, _WARNINGS: filters})


def apply_settings(settings: Settings) -> None:
    """Make the settings in this process."""
    for (module, name), value in settings.items():
        library = import_module(module)
        if (module, name) == _WARNINGS:
            _filter_warnings(value)
        elif (module, name) in _CALLS:
            getattr(library, name)(value)
        elif (module, name) == _NUMPY_ERRORS:
            modes, pickled_callable = value
            library.seterr(**modes)
            if pickled_callable:  # by the parent
                library.seterrcall(pickle.loads(pickled_callable))  # noqa: S301
        elif (module, name) == _DEFAULT_DTYPE:
            library.set_default_dtype(getattr(library, value))
        else:
            setattr(library, name, value)


def interpreter_flags() -> list[str]:
    """Return the flags of this interpreter for another one, but for those that would hide mpload from it."""
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  as spawn does
    return [*(flag for flag in flags if flag not in {"-I", "-E", "-P", "-S"}), "-P", *["-s"] * ("-I" in flags)]


_Filter = tuple[str, str, tuple[str, str], str, int]
"""An entry of `warnings.filters`: the action, then the message, class, module and line of warnings it applies to."""


def _numpy_errors(numpy: Any) -> tuple[dict[str, str], bytes]:
    """Return NumPy's modes of errors, and the callable that two of them need, pickled."""
    modes: dict[str, str] = numpy.geterr()
    if not {"call", "log"} & {*modes.values()}:
        return modes, b""
    try:
        pickled: bytes = cloudpickle.dumps(numpy.geterrcall())
    except Exception:  # noqa: BLE001  pickling runs the user's code
        return {error: "warn" if mode in {"call", "log"} else mode for error, mode in modes.items()}, b""
    return modes, pickled


def _by_name(entry: tuple[Any, ...]) -> Iterator[_Filter]:
    """Yield an entry of `warnings.filters` for each class that it is about; none if it is an unusual one."""
    with suppress(AttributeError, TypeError, ValueError):
        action, message, category, module, line = entry
        for each in _classes(category):
            name = each._names if isinstance(each, _Named) else (each.__module__, each.__qualname__)  # noqa: SLF001
            yield action, _pattern(message), name, _pattern(module), line


def _classes(category: Any) -> Iterator[type]:
    """Yield the classes of a category. It may be a class, a tuple of classes or a union of them."""
    inner = category if isinstance(category, tuple) else getattr(category, "__args__", None)
    if inner is None:
        yield category
    for each in inner or ():
        yield from _classes(each)


def _pattern(found: Any) -> str:
    return "" if found is None else getattr(found, "pattern", found)


def _filter_warnings(filters: list[_Filter]) -> None:
    warnings.resetwarnings()
    for action, message, name, module, line in filters:
        category: Any = _Named(name[1], (Warning,), {"_names": name})
        warnings.filterwarnings(cast("Any", action), message, category, module, line, append=True)


class _Named(type):
    """A class of warnings that is known by its module and name, so that a worker need not import the library."""

    _names: tuple[str, str]

    def __subclasscheck__(cls, other: type) -> bool:
        module, name = cls._names
        if module == "__main__":  # its classes are pickled by value, which loses the name of the class around them
            return any((each.__module__, each.__name__) == (module, name.rpartition(".")[2]) for each in other.__mro__)
        return any((each.__module__, each.__qualname__) == (module, name) for each in other.__mro__)
