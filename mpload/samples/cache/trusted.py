"""Opens a cache's folder and its files, and nothing that somebody else has put in their place.

Caches often lie where others may write: `/tmp`, `/dev/shm`, a group's disk. What is opened here is therefore never a
link, pipe, device, or a second name of another file, and belongs to a user who could be trusted to put it there: where
everybody may write to a folder, only what this user or root has made in it counts, as with the kernel's own
`fs.protected_regular`.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["open_file", "open_folder", "try_lock", "write_file"]

_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO}  # a link; a folder, a socket or a pipe without a reader


def open_folder(path: Path) -> int:
    """Return a descriptor of the folder `path`.

    Raises:
        PermissionError: another user has made it, or a folder or link above it, where everybody may write.
        OSError: it is no folder, or cannot be opened.
    """
    for place in {path.absolute(), path.resolve()}:
        for child in (place, *place.parents[:-1]):
            _check_owner(child.lstat(), child.parent.stat(), str(child))
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_file(name: str, flags: int, *, folder: int) -> int:
    """Return a descriptor of the file `name` in the folder that `folder` is a descriptor of; it never waits.

    Raises:
        PermissionError: another user has made it where everybody may write.
        OSError: it is not a regular file with one name only, or cannot be opened.
    """
    try:
        descriptor = os.open(name, flags | _SAFELY, 0o664, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _not_ours(name) from error
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
            raise _not_ours(name)
        _check_owner(facts, os.fstat(folder), name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_file(name: str, data: bytes, *, folder: int, num_bytes: int | None = None) -> None:
    """Replace the file `name` as a whole; what is longer than `data` is a hole. One process may do so at a time.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = f".{name}.unfinished"
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=folder)  # a killed process has left it
    descriptor = open_file(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, num_bytes or len(data))
    finally:
        os.close(descriptor)
    os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)


def try_lock(descriptor: int) -> bool:
    """Lock an open file, without waiting; return whether it is this process's now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_owner(facts: os.stat_result, above: os.stat_result, shown: str) -> None:
    if above.st_mode & stat.S_IWOTH and facts.st_uid not in {0, os.geteuid()}:
        raise PermissionError(
            errno.EPERM, f"{shown} belongs to user {facts.st_uid} and lies in a folder that every user may write to"
        )


def _not_ours(name: str) -> OSError:
    return OSError(errno.EINVAL, f"{name} is a link, pipe, folder or device where a file of the cache should be")
