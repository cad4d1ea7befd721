"""Unfinished files: new files until they get their names.

The process that writes one has locked it, so that another process can tell what a killed one has left. File systems may
not show locks to other machines, so the name of an unfinished file also contains a hash of the machine's name.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["unfinished_file"]

_SUFFIX = ".tmp"
_NODE_BYTES = _TOKEN_BYTES = 4


@contextlib.contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """Make an empty file beside `path`, to be filled and renamed to `path`. Otherwise it is deleted at the end.

    The folder is made if it is missing. Unfinished files for `path` are deleted if their writers on this machine have
    died; for this, the folder is listed, which takes about a second for a million files.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    unfinished, lock = _new_file(path)
    with lock:
        try:
            yield unfinished
        finally:
            unfinished.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    head = _head_of(path)
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):  # noqa: PTH208  `iterdir` would make a path of each
            if name.startswith(head) and name.endswith(_SUFFIX):
                _delete_if_left(path.with_name(name))


def _new_file(path: Path) -> tuple[Path, BinaryIO]:
    """Return a new file, and the open file by which it is locked."""
    while True:
        unfinished = path.with_name(f"{_head_of(path)}{secrets.token_hex(_TOKEN_BYTES)}{_SUFFIX}")
        lock = unfinished.open("xb")
        with contextlib.suppress(OSError):  # without locks, it is never swept
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_nlink:
            return unfinished, lock
        lock.close()  # it was swept before it was locked


def _head_of(path: Path) -> str:
    node = hashlib.blake2b(platform.node().encode(), digest_size=_NODE_BYTES).hexdigest()
    return f"{path.name}.{node}"


def _delete_if_left(unfinished: Path) -> None:
    with contextlib.suppress(OSError):  # such as one of another user
        descriptor = os.open(unfinished, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error: its writer is alive
            unfinished.unlink()
        finally:
            os.close(descriptor)
