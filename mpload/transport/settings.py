"""Settings of libraries that a script changes, and that workers get too if they are no forks of its process.

Workers import modules afresh, so they find the settings that a module has when it is imported. Only those few that
scripts often change, and that change what samples are, are passed on.
"""

import sys
from importlib import import_module
from typing import Any

__all__ = ["Settings", "apply_settings", "changed_settings"]

_VALUES = {
    ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"): False,
    ("PIL.Image", "MAX_IMAGE_PIXELS"): 1024 * 1024 * 1024 // 4 // 3,
}
"""By module and name: the value that a module begins with."""
_DEFAULT_DTYPE = "torch", "default_dtype"
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
    return found


def apply_settings(settings: Settings) -> None:
    """Make the settings in this process."""
    for (module, name), value in settings.items():
        library = import_module(module)
        if (module, name) == _DEFAULT_DTYPE:
            library.set_default_dtype(getattr(library, value))
        else:
            setattr(library, name, value)
