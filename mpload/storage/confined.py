"""Paths of an index stay inside its root: the one place that says so, and how."""

import os

from mpload.errors import OutsideRootError, StorageError

__all__ = ["outside_root", "real_path", "shown"]


def real_path(root: str, path: str, *, allow_outside_root: bool) -> str:
    """Return where `path`, below `root` or absolute, really leads.

    Args:
        root: a real path.
        path: as an index has it.
        allow_outside_root: whether it may lead out of `root`, links included.

    Raises:
        OutsideRootError: it does, and may not.
        StorageError: it is no path.
    """
    try:
        real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118  may hold what pathlib would change
    except ValueError as error:  # a NUL in the path
        raise StorageError(f"{path!r} is not a valid path: {error}. Fix this line of the index") from error
    if not allow_outside_root and not real.startswith(root.rstrip("/") + "/"):
        raise outside_root(path, real, root)
    return real


def outside_root(path: str, real: str, root: str) -> OutsideRootError:
    """Return the error of a `path` that leads to `real`, out of `root`."""
    return OutsideRootError(
        f"{shown(path)}: leads to {shown(real)}, outside of the root {shown(root)}. "
        "Set #root of the index to a folder that holds all files, or allow paths outside of it"
    )


def shown(path: str) -> str:
    r"""Return `path` as it can be printed and logged: bytes that are not UTF-8 as `\udcff`."""
    return path.encode("utf-8", "backslashreplace").decode()
