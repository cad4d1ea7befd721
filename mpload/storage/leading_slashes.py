"""Finds keys of a bucket that begin with a slash. obstore lists them without it, and cannot read them.

So `/cat/1.png` looks like `cat/1.png`, which is another object, or none.
"""

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["key_with_leading_slash"]

_BEFORE_SLASH = ".~"  # sorted before all keys that begin with a slash
_MAX_SKIPPED = 1000
_SAME_SECONDS = 1.0  # a list may show parts of a second that the object's own headers lack


def key_with_leading_slash(library: Any, store: "ObjectStore") -> str | None:
    """Return a key that begins with a slash, or None if there is none.

    If there are such keys, one of them is the first after `.~`. So that key is looked up. If its object is missing or
    differs from the one listed, the folders at the top of the bucket decide: one of them is nameless.

    Args:
        library: obstore.
        store: the whole bucket.

    Memory: one page of a list. If there seems to be such a key, the names at the top of the bucket.
    """
    for listed in _first_after(library, store):
        if not _is_there(library, store, listed):
            is_found = "" in library.list_with_delimiter(store)["common_prefixes"]
            return f"/{listed['path']}" if is_found else None
    return None


def _first_after(library: Any, store: "ObjectStore") -> list[Any]:
    """Return the first object after `.~`, and also the first whose name has no dot in front.

    Empty objects do not count, as they may be markers of folders, whose slash at the end obstore leaves out too.
    """
    found: list[Any] = []
    pages = library.list(store, offset=_BEFORE_SLASH, chunk_size=1)
    for listed in islice(chain.from_iterable(pages), _MAX_SKIPPED):
        is_last = not listed["path"].startswith(".")
        if listed["size"] and (is_last or not found):
            found.append(listed)
        if listed["size"] and is_last:
            break
    return found


def _is_there(library: Any, store: "ObjectStore", listed: Any) -> bool:
    """Return whether a key is that of the object listed. If it cannot be looked up, it is."""
    try:
        found = library.head(store, listed["path"])
    except FileNotFoundError:
        return False
    except Exception:  # noqa: BLE001  such as that a user may list objects, but not read them
        return True
    tags = [(each["e_tag"] or "").strip('"') for each in (listed, found)]
    seconds = (listed["last_modified"] - found["last_modified"]).total_seconds()
    return tags[0] == tags[1] and listed["size"] == found["size"] and abs(seconds) < _SAME_SECONDS
