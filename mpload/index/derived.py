"""Where files that are derived from an index text are kept, and the lock of the process that makes them."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from mpload.errors import MploadError

__all__ = ["derived_paths", "machine_lock"]


def derived_paths(text: Path, *, suffix: str, folder: str) -> list[Path]:
    """Return the possible paths of a derived file: beside the text, or else in a folder of the user's cache folder."""
    name = hashlib.blake2b(os.fsencode(text.absolute()), digest_size=16).hexdigest()
    return [text.with_name(text.name + suffix), platformdirs.user_cache_path("mpload") / folder / f"{name}{suffix}"]


@contextlib.contextmanager
def machine_lock(name: str, *, limit_seconds: float, busy: MploadError) -> Iterator[bool]:
    """Let one process of this machine at a time do the work called `name`.

    Yields True, or False if no lock can be made: then the work may be done twice, which is better than failing.

    Args:
        name: name of the lock's file.
        limit_seconds: how long to wait for other processes.
        busy: the error that is raised after that time.
    """
    # The lock is in the cache folder, because flock needs a file that persists. It does not exclude other machines, but
    # publishing by a rename makes a race with them harmless.
    folder = platformdirs.user_cache_path("mpload") / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock", timeout=limit_seconds)
        lock.acquire()
    except Timeout as error:
        raise busy from error
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
