"""The folder of a pack: one process at a time writes to it, and unfinished files are deleted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mpload.errors import ArgumentError, StorageError
from mpload.tools.pack.manifest import MANIFEST, read_manifest

__all__ = ["begun_in", "locked", "sweep"]

_LOCK = ".lock"


def begun_in(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the pack in a folder, which is made if it is missing; None if no pack was begun there.

    Raises:
        ArgumentError: the folder contains something else, or the manifest is damaged.
        StorageError: the folder cannot be made or read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = set(folder.iterdir()) - {folder / _LOCK, *folder.glob(f".{MANIFEST}.*.tmp")}
        manifest = read_manifest(folder)  # after the list: another process may have begun
    except OSError as error:
        raise StorageError(f"{folder} cannot hold a pack: {error.strerror}. Name another folder") from error
    if manifest is None and others:
        raise ArgumentError(f"{folder} is not empty and contains no pack. Name an empty or new folder")
    return manifest


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder.

    Raises:
        StorageError: another process has locked it, or it cannot be written.
    """
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise StorageError(f"{folder}: another process is packing into this folder. Wait until it ends") from error
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}. Choose a writable folder") from error
    try:
        yield
    finally:
        lock.release()


def sweep(folder: Path) -> None:
    """Delete the unfinished files that killed processes left."""
    for unfinished in folder.glob("*.tmp"):
        unfinished.unlink(missing_ok=True)
