"""Settings of libraries that a script changes, and that workers get too if they are no forks of its process.

Workers import modules afresh, so they find the settings that a module has when it is imported. Only those few that
scripts often change, and that change what samples are, are passed on; and which warnings the script wants to see.
"""

import sys
import warnings
from importlib import import_module
from multiprocessing import util
from typing import Any, cast

__all__ = ["Settings", "apply_settings", "changed_settings", "interpreter_flags"]

_VALUES = {
    ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"): False,
    ("PIL.Image", "MAX_IMAGE_PIXELS"): 1024 * 1024 * 1024 // 4 // 3,
}
"""By module and name: the value that a module begins with."""
_DEFAULT_DTYPE = "torch", "default_dtype"
_WARNINGS = "warnings", "filters"
_CALLS: dict[tuple[str, str], tuple[str, Any]] = {
    ("sys", "setrecursionlimit"): ("getrecursionlimit", 1000),
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
        found[_NUMPY_ERRORS] = numpy.geterr()
    found[_WARNINGS] = [_by_name(each) for each in warnings.filters]
    return found


def apply_settings(settings: Settings) -> None:
    """Make the settings in this process."""
    for (module, name), value in settings.items():
        library = import_module(module)
        if (module, name) == _WARNINGS:
            _filter_warnings(value)
        elif (module, name) in _CALLS:
            getattr(library, name)(value)
        elif (module, name) == _NUMPY_ERRORS:
            library.seterr(**value)
        elif (module, name) == _DEFAULT_DTYPE:
            library.set_default_dtype(getattr(library, value))
        else:
            setattr(library, name, value)


def interpreter_flags() -> list[str]:
    """Return the flags of this interpreter for another one, but for those that would hide mpload from it."""
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  as spawn does
    return [*(flag for flag in flags if flag not in {"-I", "-E", "-P"}), "-P"]


_Filter = tuple[str, str, tuple[str, str], str, int]
"""An entry of `warnings.filters`: an action, and to which warnings it applies: message, class, module and line."""


def _by_name(entry: tuple[Any, ...]) -> _Filter:
    action, message, category, module, line = entry
    name = getattr(category, "_names", (category.__module__, category.__qualname__))
    return action, _pattern(message), name, _pattern(module), line


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
        return any((each.__module__, each.__qualname__) == cls._names for each in other.__mro__)
