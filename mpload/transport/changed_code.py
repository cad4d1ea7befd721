"""Notices modules of the user that have changed on disk: workers that are no forks import them as they are now."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from mpload.errors import warn
from mpload.transport.pickling import SCRIPT_NAMES
from mpload.units import printable

__all__ = ["changed_files", "users_modules", "warn_of_changed_code"]

_INSTALLED = tuple(
    {f"{os.path.realpath(folder)}/" for folder in (*sysconfig.get_paths().values(), str(Path(__file__).parents[1]))}
)
"""Folders whose files nobody edits while a job runs."""
_seen: dict[str, tuple[tuple[int, int], object]] = {}
"""Time of modification and size of each file when this process first looked at it, and the spec of its module."""


def users_modules() -> Iterator[tuple[str, str]]:
    """Yield the name and path of imported modules that are the user's.

    Modules of Python and of installed packages are passed over, and so is the script, which workers do not import.
    """
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name not in SCRIPT_NAMES and isinstance(path, str) and not path.startswith(_INSTALLED):
            yield name, path


def changed_files() -> list[str]:
    """Return the files of the user's imported modules that have changed since the first call that saw them."""
    changed = []
    for name, path in users_modules():
        try:
            facts = os.stat(path)  # noqa: PTH116  for hundreds of modules
        except OSError:
            continue
        now, spec = (facts.st_mtime_ns, facts.st_size), getattr(sys.modules.get(name), "__spec__", None)
        before, loaded = _seen.get(path, (now, spec))
        _seen[path] = now, spec  # so that each change is reported once
        if before != now and spec is loaded:  # otherwise it was reloaded
            changed.append(path)
    return changed


def warn_of_changed_code() -> None:
    """Warn if workers that start now would import other code than this process has."""
    if changed := changed_files():
        warn(
            f"{', '.join(map(printable, changed[:3]))}{' and others' * (len(changed) > 3)} changed on disk while this "
            "process was running. Workers that start now import the new code, if they need it; this process and older "
            "workers have the old one. Restart the job so that all have the same"
        )
