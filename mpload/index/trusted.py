"""Which files beside an index text are trusted, and where new ones are written.

A text may be in a folder that every user may write to, such as `/tmp` or a scratch disk. There, another user can leave
a sidecar with wrong labels, a pipe, or a link to `/dev/zero`. So a file in such a folder is only used if it is regular,
has one name, and belongs to this user, to root or to the owner of the text. The same holds for the folders of copies on
a local disk. `mpload.samples.cache.trusted` has such a rule for caches. In other folders, all users who may write are
trusted, so colleagues of a group share files.

It is enough to check by path, before a file is opened. In a sticky folder, other users cannot replace a trusted file.
Where a folder that every user may write to is not sticky, they can replace the text as well.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

__all__ = ["check_trusted", "check_trusted_folder", "is_trusted", "places_to_write"]


def check_trusted(path: Path, text: Path | None) -> None:
    """Raise an error unless the file at `path`, derived from `text`, may be used.

    `text` is None if no user's file is the source, but an object at a URL.

    Raises:
        FileNotFoundError: there is no file.
        PermissionError: it belongs to another user, and every user may write to the folder.
        OSError: it is not a regular file, or cannot be looked at.
    """
    facts = path.lstat()
    is_open = _is_open_to_all(path.parent.stat())
    if stat.S_ISLNK(facts.st_mode) and not is_open:
        return check_trusted(Path(os.path.realpath(path, strict=True)), text)
    if not stat.S_ISREG(facts.st_mode) or (is_open and facts.st_nlink > 1):
        raise OSError(errno.EINVAL, "it is a link, pipe, folder or device, not a regular file")
    if is_open and facts.st_uid not in _trusted_users(text):
        raise PermissionError(
            errno.EPERM, f"it belongs to user {facts.st_uid} and is in a folder that every user may write to"
        )
    return None


def check_trusted_folder(folder: Path, text: Path | None) -> None:
    """Raise an error unless files in a folder, derived from `text`, may be used.

    Raises:
        FileNotFoundError: there is no folder.
        PermissionError: the folder, or a folder or link above it, belongs to another user and is in a folder that every
            user may write to.
        OSError: it cannot be looked at.
    """
    for place in {folder.absolute(), Path(os.path.realpath(folder))}:
        for child in (place, *place.parents[:-1]):
            facts = child.lstat()
            if _is_open_to_all(child.parent.stat()) and facts.st_uid not in _trusted_users(text):
                raise PermissionError(
                    errno.EPERM,
                    f"{child} belongs to user {facts.st_uid} and is in a folder that every user may write to",
                )


def is_trusted(path: Path, text: Path) -> bool:
    """Return whether there is a file at `path`, derived from `text`, that may be used."""
    try:
        check_trusted(path, text)
    except OSError:
        return False
    return True


def places_to_write(paths: Sequence[Path], text: Path) -> list[Path]:
    """Return the possible paths of a derived file in the order in which to try to write it.

    The first of `paths` is beside the text. It comes last if something is there that this user cannot replace, or may
    not trust: a file that other users do not trust would be replaced by each of them in turn.
    """
    beside, *others = paths
    return [beside, *others] if _may_replace(beside, text) else [*others, beside]


def _may_replace(path: Path, text: Path) -> bool:
    try:
        facts, folder = path.lstat(), path.parent.stat()
        user = os.geteuid()
        if stat.S_ISDIR(facts.st_mode):
            return False
        if folder.st_mode & stat.S_ISVTX and user not in {0, facts.st_uid, folder.st_uid}:
            return False
        is_trusted = not _is_open_to_all(folder) or facts.st_uid in _trusted_users(text)
        return is_trusted or user in {0, text.stat().st_uid}
    except OSError:  # such as: there is nothing
        return True


def _is_open_to_all(folder: os.stat_result) -> bool:
    return bool(folder.st_mode & stat.S_IWOTH)


def _trusted_users(text: Path | None) -> set[int]:
    return {0, os.geteuid()} | (set() if text is None else {text.stat().st_uid})
