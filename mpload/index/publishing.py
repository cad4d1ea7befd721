"""Publishes files: a new file gets its name when it is complete, and the header of an index its root."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, MploadError, StorageError
from mpload.units import MIB, printable

__all__ = ["check_out", "declared_root", "new_file", "new_path"]


def check_out(out: Path, sources: list[Path]) -> None:
    """Raise `ArgumentError` unless `out` is a possible path for an index and is not one of `sources`."""
    if out.is_dir():
        raise ArgumentError(f"{out}: is a directory. Name the index file: {out / 'train.txt'}")
    if not out.parent.is_dir():
        raise ArgumentError(f"{out.parent}: no such folder. Create it: mkdir -p {out.parent}")
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ArgumentError(f"{out}: is the source itself. Give the new index another name")


def declared_root(root: str, out: Path, *, relative: bool) -> str | None:
    """Return the `#root` directive of the index `out`; None if its own folder is the root."""
    folder = os.path.normpath(out.parent.absolute())
    if root == folder:
        return None
    return os.path.relpath(root, folder) if relative and "://" not in root else root


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that is renamed to `path` if the context ends without an error, and deleted otherwise.

    Raises:
        StorageError: the file cannot be written.
    """
    with new_path(path) as unfinished, unfinished.open("xb", buffering=MIB) as file:
        yield file


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path. A file written there is synced to disk and renamed to `path` if no error occurs.

    Raises:
        StorageError: the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield unfinished
        _sync(unfinished)
        # Delete the old sidecar: it would match a new text of the same size and the same modification time, which
        # happens within one tick of the file system's clock.
        path.with_name(path.name + ".mpx").unlink(missing_ok=True)
        unfinished.replace(path)
        with suppress(OSError):  # not every file system can sync folders
            _sync(path.parent)
    except OSError as error:
        if isinstance(error, MploadError):
            raise
        raise StorageError(
            f"{printable(str(path))}: cannot be written: {error.strerror or error}. "
            "Free some space, or choose a writable folder"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
