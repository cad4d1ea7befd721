"""Opens a cache's folder and files, and refuses files that other users have put in their place.

Caches are often in folders that other users may write to: `/tmp`, `/dev/shm`, a group's disk. Links, pipes, devices and
hard links to other files are therefore never opened. In a folder that every user may write to, only files owned by this
user or root are opened; the kernel's `fs.protected_regular` follows the same rule.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["open_file", "open_folder", "try_lock", "write_file"]

_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO}  # a link; a folder; a socket, or a pipe without a reader


def open_folder(path: Path) -> int:
    """Return a descriptor of the folder `path`.

    Raises:
        PermissionError: The folder, or a folder or link above it, belongs to another user and is in a folder that every
            user may write to.
        OSError: It is not a folder, or it cannot be opened.
    """
    for place in {path.absolute(), Path(os.path.realpath(path))}:  # `Path.resolve` raises RuntimeError for circles
        for child in (place, *place.parents[:-1]):
            _check_owner(child.lstat(), child.parent.stat(), str(child))
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_file(name: str, flags: int, *, folder: int) -> int:
    """Return a descriptor of the file `name` in the folder with the descriptor `folder`. Never block.

    Raises:
        PermissionError: The file belongs to another user, and every user may write to the folder.
        OSError: It is not a regular file, has more than one hard link, or cannot be opened.
    """
    try:
        descriptor = os.open(name, flags | _SAFE_FLAGS, 0o664, dir_fd=folder)
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
    """Replace the file `name` atomically, extended by a hole to `num_bytes`. Only one process may do so at a time.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = f".{name}.unfinished"
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=folder)  # left behind by a killed process
    descriptor = open_file(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, num_bytes or len(data))
    finally:
        os.close(descriptor)
    os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)


def try_lock(descriptor: int) -> bool:
    """Try to lock an open file without waiting; return whether this process now holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_owner(facts: os.stat_result, parent: os.stat_result, name: str) -> None:
    if parent.st_mode & stat.S_IWOTH and facts.st_uid not in {0, os.geteuid()}:
        raise PermissionError(
            errno.EPERM, f"{name} belongs to user {facts.st_uid} and is in a folder that every user may write to"
        )


def _not_ours(name: str) -> OSError:
    return OSError(errno.EINVAL, f"{name} is a link, pipe, folder or device instead of a cache file")
