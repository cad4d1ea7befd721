"""Where files that are derived from an index text are kept, and the lock of the process that makes them."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from filelock import FileLock, Timeout

from mpload.errors import MploadError, SidecarError
from mpload.index.cache_folder import cache_folder
from mpload.index.open_file import raise_if_limited
from mpload.index.trusted import check_trusted, places_to_write
from mpload.index.unfinished import unfinished_file

__all__ = ["derived_name", "derived_paths", "found_or_made", "machine_lock"]

_LOCK_SECONDS = 3600.0
_Found = TypeVar("_Found")


def derived_name(text: Path, *, suffix: str) -> str:
    """Return the name of a derived file in the cache folder."""
    return f"{hashlib.blake2b(os.fsencode(text.absolute()), digest_size=16).hexdigest()}{suffix}"


def derived_paths(text: Path, *, suffix: str, folder: str) -> list[Path]:
    """Return the possible paths of a derived file: beside the text, or else in a folder of the user's cache folder."""
    beside, cache = text.with_name(text.name + suffix), cache_folder()
    return [beside] if cache is None else [beside, cache / folder / derived_name(text, suffix=suffix)]


@contextlib.contextmanager
def machine_lock(name: str, *, limit_seconds: float, busy: MploadError, folder: Path | None = None) -> Iterator[bool]:
    """Let one process of this machine at a time do the work called `name`.

    Yields True, or False if no lock can be made: then the work may be done twice, which is better than failing.

    Args:
        name: name of the lock's file.
        limit_seconds: how long to wait for other processes.
        busy: the error that is raised after that time.
        folder: the folder of the lock, on a local disk; None means the user's cache folder.
    """
    # The lock is in the cache folder, because flock needs a file that persists. It does not exclude other machines, but
    # publishing by a rename makes a race with them harmless.
    if folder is None:
        cache = cache_folder()
        if cache is None:
            yield False
            return
        folder = cache / "locks"
    lock = FileLock(folder / f"{name}.lock", timeout=limit_seconds)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise busy from error
    except OSError:
        is_locked = False
    else:
        is_locked = True
    if not is_locked:  # not in the handler, as errors in there would seem to follow from this one
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def found_or_made(
    text: Path,
    *,
    suffix: str,
    folder: str,
    find: Callable[[Path], _Found | None],
    write: Callable[[BinaryIO], object],
    what: str,
    size: str,
) -> _Found:
    """Return what a derived file contains. One process of this machine makes the file if there is none that fits.

    Args:
        text: the index text.
        suffix: as for `derived_paths`.
        folder: as for `derived_paths`.
        find: reads the file at a path; None, or an `OSError` or `ValueError`, if it does not fit.
        write: writes an empty file.
        what: what is made, for messages.
        size: how much space it takes, for messages.

    Raises:
        SidecarError: it cannot be written anywhere, or another process takes too long to make it.
        StorageError: the limit of open files is reached.
    """
    paths = derived_paths(text, suffix=suffix, folder=folder)

    def first_found() -> _Found | None:
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                check_trusted(path, text)
                if (found := find(path)) is not None:
                    return found
        return None

    if (found := first_found()) is not None:
        return found
    busy = SidecarError(f"{text}: another process has made {what} for {_LOCK_SECONDS:.0f} s. Try later")
    with machine_lock(Path(derived_name(text, suffix=suffix)).stem, limit_seconds=_LOCK_SECONDS, busy=busy):
        if (found := first_found()) is not None:
            return found
        failures: list[OSError] = []
        for path in places_to_write(paths, text):
            try:
                _publish(path, write)
                check_trusted(path, text)  # where root is another user, as on many network file systems
                made = find(path)
            except OSError as error:
                if isinstance(error, MploadError):  # of what the file is made of
                    raise
                raise_if_limited(path, error)
                failures.append(error)
            else:
                if made is not None:
                    return made
    raise SidecarError(
        f"{text}: {what} cannot be written anywhere ({'; '.join(map(str, failures))}). It takes {size}. "
        "Free some space, or set XDG_CACHE_HOME to a writable folder"
    )


def _publish(path: Path, write: Callable[[BinaryIO], object]) -> None:
    with unfinished_file(path) as unfinished:
        with unfinished.open("r+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # before it gets its name: after a power failure it would hold zeros
        unfinished.replace(path)
