"""Resolves the paths of an index and checks that they stay inside its root."""

import os

from mpload.errors import OutsideRootError, StorageError
from mpload.units import printable

__all__ = ["outside_root", "real_path"]


def real_path(root: str, path: str, *, allow_outside_root: bool) -> str:
    """Return the absolute path of a file, with all symbolic links resolved.

    Args:
        root: the folder that relative paths start from, with its own links already resolved.
        path: the path as written in the index, relative to `root` or absolute.
        allow_outside_root: whether the result may lie outside `root`.

    Raises:
        OutsideRootError: the result lies outside `root`, which is not allowed.
        StorageError: `path` is not a valid path.
    """
    try:
        real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118  pathlib would normalise the path
    except ValueError as error:  # a NUL in the path
        raise StorageError(f"{path!r} is not a valid path: {error}. Fix this line of the index") from error
    if not allow_outside_root and not real.startswith(root.rstrip("/") + "/"):
        raise outside_root(path, real, root)
    return real


def outside_root(path: str, real: str, root: str) -> OutsideRootError:
    """Return the error for a `path` that leads to `real`, which lies outside `root`."""
    return OutsideRootError(
        f"{printable(path)}: leads to {printable(real)}, outside of the root {printable(root)}. "
        "Set #root of the index to a folder that holds all files or, if you trust the index, open it by "
        "open_index(..., allow_outside_root=True)"
    )
