"""The folder of a pack: one process at a time writes to it, and unfinished files are deleted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from mpload.errors import StorageError

__all__ = ["LOCK", "locked", "sweep"]

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder.

    Raises:
        StorageError: another process has locked it.
    """
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout as error:
        raise StorageError(f"{folder}: another process is packing into this folder. Wait until it ends") from error


def sweep(folder: Path) -> None:
    """Delete the unfinished files that killed processes left."""
    for unfinished in folder.glob("*.tmp"):
        unfinished.unlink(missing_ok=True)
