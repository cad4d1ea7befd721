"""Publishes files: a new file gets its name when it is complete, and the header of an index its root.

A file that is there is replaced by a rename. So that this harms nothing, only a regular file is replaced, a symbolic
link stays and the file that it leads to is replaced, and the new file gets the permissions of the old one.
"""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mpload.errors import ArgumentError, MploadError, StorageError
from mpload.index.plain_lists import BOM, MAGIC
from mpload.storage.urls import is_url, redacted
from mpload.units import MIB, printable

__all__ = ["check_local", "check_out", "declared_root", "file_at", "is_index", "new_file", "new_path"]

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
}
_URL_AS_PATH = re.compile(r"(?:s3|gs|az|https?):/", re.IGNORECASE)
"""The start of a URL that was made a Path. A Path keeps one of its two slashes."""


def check_local(out: str | os.PathLike[str], *, what: str = "an index is written to a local file") -> None:
    """Raise `ArgumentError` if `out` is a URL.

    Args:
        out: where something is to be written.
        what: what is written, and where to.
    """
    text = os.fspath(out)
    if is_url(text) or _URL_AS_PATH.match(text):
        url = text if is_url(text) else text.replace(":/", "://", 1)
        raise ArgumentError(f"{redacted(url)}: {what}. Give its path, and upload it then")


def check_out(out: Path, sources: list[Path]) -> None:
    """Raise `ArgumentError` unless an index can be published at `out`, and `out` is not one of `sources`.

    A file that is there must be an index, or empty. So `mpload index -o *.tar` does not replace a shard.
    """
    if out.is_dir():
        raise ArgumentError(f"{out}: is a directory. Name the index file: {out / 'train.txt'}")
    folder = file_at(out).parent
    if not folder.is_dir():
        raise ArgumentError(f"{folder}: no such folder. Create it: mkdir -p {folder}")
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ArgumentError(f"{out}: is the source itself. Give the new index another name")
    if out.is_file() and _start_of(out) and not is_index(out):
        raise ArgumentError(
            f"{printable(str(out))}: is not an index, so no index replaces it. Name another file, or delete this one"
        )


def is_index(path: Path) -> bool:
    """Return whether a file begins like an index."""
    return _start_of(path).removeprefix(BOM).startswith(MAGIC)


def _start_of(path: Path) -> bytes:
    """Return the first bytes of a file. There are none if it cannot be read, though perhaps replaced."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(BOM) + len(MAGIC))
    return b""


def file_at(path: Path) -> Path:
    """Return the file that is made or replaced to publish one at `path`: where `path` leads, if it is a symbolic link.

    Raises:
        ArgumentError: there is something at `path` that is not a regular file, or it is a link that leads nowhere.
    """
    shown = printable(str(path))
    try:
        old = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path.resolve() if path.is_symlink() else path
    except OSError as error:
        raise ArgumentError(f"{shown}: cannot be written: {error.strerror or error}. Name another file") from error
    if not stat.S_ISREG(old.st_mode):
        kind = _KINDS.get(stat.S_IFMT(old.st_mode), "not a regular file")
        raise ArgumentError(f"{shown}: is {kind}, and is not replaced by a file. Name a new file or a regular file")
    if not path.is_symlink():
        return path
    target = path.resolve()
    if not target.exists():  # such as /dev/stdout, if its file was deleted
        raise ArgumentError(f"{shown}: leads to a file that has no name any more. Name another file")
    return target


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
        ArgumentError, StorageError: as for `new_path`.
    """
    with new_path(path) as unfinished, unfinished.open("xb", buffering=MIB) as file:
        if path.exists():  # which others may not be allowed to read
            unfinished.chmod(0o600)
        yield file


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path. A file written there is synced to disk and renamed to `path` if no error occurs.

    If `path` is a symbolic link, the file that it leads to is replaced, and the link stays. The permissions of a file
    that is replaced are kept; its owner and its group too, where the system allows it.

    Raises:
        ArgumentError: there is something at `path` that is not a regular file.
        StorageError: the file cannot be written.
    """
    target = file_at(path)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield unfinished
        _sync(unfinished)
        _take_permissions(unfinished, file_at(path))
        # Delete the old sidecar: it would match a new text of the same size and the same modification time, which
        # happens within one tick of the file system's clock.
        for name in {path, target}:
            with suppress(PermissionError, IsADirectoryError):  # another user's, in a sticky folder; and no fresh one
                name.with_name(name.name + ".mpx").unlink(missing_ok=True)
        unfinished.replace(target)
        with suppress(OSError):  # not every file system can sync folders
            _sync(target.parent)
    except OSError as error:
        if isinstance(error, MploadError):
            raise
        raise StorageError(
            f"{printable(str(path))}: cannot be written: {error.strerror or error}. "
            "Free some space, or choose a writable folder"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _take_permissions(new: Path, old: Path) -> None:
    """Give a new file the permissions of the file that it will replace, and its owner and group if that is possible."""
    try:
        facts = old.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(facts.st_mode) & 0o777
    has_group = new.stat().st_gid == facts.st_gid
    for owner in (facts.st_uid, -1):  # another owner only if this is root
        with suppress(OSError):
            os.chown(new, owner, facts.st_gid)
            has_group = True
            break
    if not has_group:  # another group may do no more than everybody
        mode &= ~0o070 | (mode & 0o007) << 3
    new.chmod(mode)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
