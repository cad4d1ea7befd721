"""The folder of a pack: one process at a time writes to it, and unfinished files are deleted.

A finished pack has the sizes of its shards in `sizes.json`, by their names. Packs of older versions do not.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mpload.errors import ArgumentError, StorageError
from mpload.index.publishing import check_local, new_file
from mpload.tools.pack.comparing import lines_in
from mpload.tools.pack.manifest import MANIFEST, read_manifest

__all__ = ["begun_in", "changed_shards", "check_remade", "folder_at", "locked", "note_sizes", "swept"]

_LOCK = ".lock"
_SIZES = "sizes.json"


def folder_at(out: str | os.PathLike[str]) -> Path:
    """Return the path of the folder for a pack. Raise `ArgumentError` if it is a URL."""
    check_local(out, what="shards are written to a local folder")
    return Path(out)


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


def note_sizes(folder: Path, names: Sequence[str]) -> None:
    """Write the sizes of all shards."""
    with new_file(folder / _SIZES) as file:
        file.write(json.dumps({name: _size_of(folder / name) for name in names}, indent=2).encode())


def changed_shards(folder: Path, names: Sequence[str]) -> list[int]:
    """Return the numbers of the shards of a finished pack that are missing or have another size than before.

    Raises:
        ArgumentError: the file of the sizes is damaged.
        StorageError: a file cannot be read.
    """
    path = folder / _SIZES
    sizes: dict[str, int] = {}
    if path.exists():
        try:
            sizes.update(json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"{path} is damaged: {error}. Delete it, then check the shards with --verify"
            ) from error
    found = [_size_of(folder / name) for name in names]
    return [number for number, size in enumerate(found) if size is None or size != sizes.get(names[number], size)]


def check_remade(shard: Path, lines: Path, index: Path, positions: range) -> None:
    """Check that the index of a finished pack has the lines of a shard that was made again, at these positions.

    If it has not, the shard is deleted.

    Raises:
        StorageError: samples lie elsewhere in it than in the shard that was lost.
    """
    if lines.read_bytes() != b"".join(lines_in(index, positions)):
        shard.unlink()
        raise StorageError(
            f"{shard}: was made again, but its samples are not where {index.name} says. The source, the decoder or the "
            "encoder has changed since they were packed. Pack into a new folder"
        )


def _size_of(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it is missing.

    The file is opened, since a client of NFS may remember an older size until then.
    """
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}. Delete it, and pack again") from error


@contextmanager
def swept(folder: Path, *, is_finished: bool) -> Iterator[None]:
    """Delete the unfinished files that killed processes left, before and after packing, and the lines of shards after.

    In the folder of a finished pack these are shards: another unfinished file may be a sidecar that a reader writes.
    But if there are lines of shards, a process was killed when the pack was just finished.
    """
    pattern = ".shard-*.tmp" if is_finished and not any(folder.glob("*.lines")) else "*.tmp"
    _delete(folder.glob(pattern))
    try:
        yield
    finally:
        _delete(folder.glob(pattern))
    _delete(folder.glob("*.lines"))


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
