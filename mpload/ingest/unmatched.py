"""Counts files that a source leaves out because no other file has their name, such as labels without an image."""

import os
from collections.abc import Iterator

from mpload.errors import StorageError
from mpload.ingest.rows import LeftOut, Reason
from mpload.units import printable

__all__ = ["count_unmatched", "in_any_case"]


def count_unmatched(
    left_out: LeftOut,
    reason: Reason,
    *,
    folder: str,
    endings: tuple[str, ...],
    partners: str,
    partner_endings: tuple[str, ...],
) -> None:
    """Count the files below a folder that have no file of the same name below another one. Hidden files do not count.

    Args:
        left_out: counts the files. The first of them, in the order of their paths, is the example.
        reason: the reason to count them for.
        folder: the folder.
        endings: the endings of the files that count, in lower case.
        partners: the other folder.
        partner_endings: the endings of the files there.

    Memory: constant, apart from the names of subfolders.

    Raises:
        StorageError: the folder cannot be read.
    """
    first, count = "", 0
    for name in _files(folder):
        stem = f"{partners}/{os.path.splitext(name)[0]}"  # noqa: PTH122
        if not name.lower().endswith(endings) or any(os.path.isfile(stem + ending) for ending in partner_endings):  # noqa: PTH113
            continue
        first, count = min(first or name, name), count + 1
    left_out.add(reason, f"{os.path.basename(folder)}/{first}", count)  # noqa: PTH119


def in_any_case(endings: tuple[str, ...]) -> tuple[str, ...]:
    """Return endings as people write them: `.jpg`, `.JPG` and `.Jpg`."""
    return (*endings, *map(str.upper, endings), *map(str.title, endings))


def _files(folder: str) -> Iterator[str]:
    """Yield the paths of all files below a folder, relative to it."""
    above = [""]
    try:
        while above:
            start = above.pop()
            with os.scandir(f"{folder}/{start}") as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        above.append(f"{start}{entry.name}/")
                    else:
                        yield start + entry.name
    except OSError as error:
        raise StorageError(f"{printable(folder)}: cannot be read: {error.strerror or error}") from error
