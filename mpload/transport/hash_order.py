"""Notices globals of the user's modules that depend on the order of a set, which is another one in each process.

`CLASSES = {name: number for number, name in enumerate(set(names))}` numbers the classes in another way whenever a
module is imported, unless PYTHONHASHSEED is set. Workers that are no forks import it themselves, so their labels would
differ from those of the training process.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from mpload.errors import warn
from mpload.transport.changed_code import users_modules

__all__ = ["digests_of_globals", "warn_of_hash_order"]

_MAX_ITEMS = 10_000
_MAX_GLOBALS = 300
_MAX_NAME = 100  # so that all fit into one message
_PLAIN = {str, bytes, int, float, bool, type(None)}
Digests = dict[str, tuple[str, str]]
"""By the name of a global: a digest of what it holds in any order, and one that also depends on the order."""


def digests_of_globals() -> Digests:
    """Return digests of those lists, tuples and dicts of plain values that the user's modules hold as globals."""
    found: Digests = {}
    for module, _ in users_modules():
        for name, value in list(vars(sys.modules[module]).items()):
            path = f"{module}.{name}"
            if len(found) == _MAX_GLOBALS:
                return found
            if len(path) <= _MAX_NAME and not name.startswith("__") and (parts := _parts(value)) is not None:
                items, order = map(_digest, parts)
                found[path] = items, order
    return found


def warn_of_hash_order(of_workers: Mapping[str, Any]) -> None:
    """Warn if a global has the same items in this process and in workers, but in another order."""
    if not of_workers or os.environ.get("PYTHONHASHSEED", "random") != "random":
        return
    here = digests_of_globals()
    names = [
        name
        for name, (items, order) in here.items()
        if name in of_workers and of_workers[name][0] == items and of_workers[name][1] != order
    ]
    if names:
        warn(
            f"{', '.join(names[:3])}{' and others' * (len(names) > 3)}: workers have the same items as this process, "
            "but in another order, or with each other's values. Probably the order is that of a set, which is another "
            "one in each process. Labels may be wrong: sort the set, or set PYTHONHASHSEED=0 before Python starts"
        )


def _parts(value: Any) -> tuple[Iterator[str], Iterator[str]] | None:
    """Return texts of the items, in any order, and texts that depend on their order; None for other values."""
    kind = type(value)
    if kind not in {list, tuple, dict} or not 1 < len(value) <= _MAX_ITEMS:
        return None
    if kind is dict:
        keys, values = list(value), list(value.values())
        if not {*map(type, keys), *map(type, values)} <= _PLAIN:
            return None
        return iter([*sorted(map(repr, keys)), *sorted(map(repr, values))]), iter(sorted(map(repr, value.items())))
    if not set(map(type, value)) <= _PLAIN:
        return None
    return iter(sorted(map(repr, value))), map(repr, value)


def _digest(texts: Iterator[str]) -> str:
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
