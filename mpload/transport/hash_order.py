"""Notices globals of the user's modules that depend on the order of a set, which differs between processes.

`CLASSES = {name: number for number, name in enumerate(set(names))}` numbers the classes in another way whenever a
module is imported, unless PYTHONHASHSEED is set. Workers that are no forks import it themselves, so their labels would
differ from those of the training process.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from mpload.errors import FAILURES, warn
from mpload.transport.changed_code import users_modules

__all__ = ["digests_of_globals", "warn_of_hash_order"]

_MAX_ITEMS = 100_000
_MAX_BYTES = 1 << 20
"""Of all texts of a table together. Larger ones are no table of classes, and would take long."""
_MAX_GLOBALS, _MAX_NAME_BYTES = 300, 100
"""So that all fit into one message."""
_MAX_BITS = 64
_PLAIN = {str, bytes, int, float, bool, type(None)}
Digests = dict[str, tuple[str, str]]
"""By the name of a global: a digest of what it holds in any order, and one that also depends on the order."""


def digests_of_globals() -> Digests:
    """Return digests of those lists, tuples and dicts of plain values that the user's modules hold as globals."""
    found: Digests = {}
    for module, _ in users_modules():
        for name, value in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            path = f"{module}.{name}"
            if len(found) == _MAX_GLOBALS:
                return found
            if type(name) is not str or name.startswith("__") or len(json.dumps(path)) > _MAX_NAME_BYTES:
                continue
            try:
                parts = _parts(value)
                if parts is not None:
                    found[path] = _digest(parts[0]), _digest(parts[1])
            except FAILURES:  # another thread has changed it meanwhile
                continue
    return found


def warn_of_hash_order(of_workers: Mapping[str, Any]) -> None:
    """Warn if a global has the same items in this process and in workers, but in another order."""
    here = digests_of_globals() if of_workers else {}
    names = [
        name
        for name, (items, order) in here.items()
        if name in of_workers and of_workers[name][0] == items and of_workers[name][1] != order
    ]
    if names:
        warn(
            f"{', '.join(names[:3])}{' and others' * (len(names) > 3)}: workers have the same items as this process, "
            "but in another order, or with other values for the same keys. If the order is that of a set, it differs "
            "between processes, and labels may be wrong: sort the set, or set PYTHONHASHSEED=0 before Python starts. "
            "Otherwise this process has changed it after the import: pass it to the dataset instead"
        )


def _parts(value: Any) -> tuple[Iterable[str], Iterable[str]] | None:
    """Return texts of the items, the same in any order, and texts that depend on the order; None for other values.

    Those of a dict depend on which key has which value, not on the order of the keys.
    """
    kind = type(value)
    if kind not in {list, tuple, dict} or not 1 < len(value) <= _MAX_ITEMS:
        return None
    if kind is dict:
        keys, values = list(value), list(value.values())
        if not _are_plain([*keys, *values]):
            return None
        return [*sorted(map(repr, keys)), *sorted(map(repr, values))], sorted(map(repr, value.items()))
    return (sorted(map(repr, value)), map(repr, value)) if _are_plain(value) else None


def _are_plain(values: Iterable[Any]) -> bool:
    """Return whether values are numbers and texts, and so small that digests take no time."""
    num_bytes = 0
    for value in values:
        if type(value) not in _PLAIN or (type(value) is int and value.bit_length() > _MAX_BITS):
            return False
        num_bytes += len(value) if isinstance(value, str | bytes) else 0
        if num_bytes > _MAX_BYTES:
            return False
    return True


def _digest(texts: Iterable[str]) -> str:
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
