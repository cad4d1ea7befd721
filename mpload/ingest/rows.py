"""What every kind of source gives: columns, a root, and the cells of one sample after another."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, format_columns, parse_columns, path_of
from mpload.storage.ranges import ByteRange

__all__ = [
    "LeftOut",
    "Reason",
    "Rows",
    "absolute",
    "is_outside",
    "place_below",
    "rename_columns",
    "shown",
    "with_prefix",
]


class Reason(StrEnum):
    """Why something of a source is not in the index, and which option takes it."""

    LINK = "symbolic links (FolderOptions(follow_links=True) takes them)"
    HIDDEN = "hidden images or folders, whose names start with '.' (FolderOptions(hidden=True) takes them)"
    EXTENSION = "files of other extensions (FolderOptions(extensions=...) takes them)"
    BESIDE_CLASSES = "images beside the class folders (move each into the folder of its class)"
    NO_IMAGE = "values that are not images"
    NO_FILE = "names of images that are not regular files (broken links, folders, pipes)"


@dataclass(slots=True)
class LeftOut:
    """Counts what a source holds and its index does not, with one example for each reason."""

    counts: Counter[Reason] = field(default_factory=Counter)
    examples: dict[Reason, str] = field(default_factory=dict)

    def add(self, reason: Reason, example: str, count: int = 1) -> None:
        """Count something that was left out."""
        if count:
            self.counts[reason] += count
            self.examples.setdefault(reason, example)

    def take(self, reason: Reason) -> tuple[str, int]:
        """Remove what was counted for a reason, and return it as `add` takes it."""
        return self.examples.pop(reason, ""), self.counts.pop(reason, 0)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return "; ".join(
            f"{count} {reason}, such as {shown(self.examples[reason])}" for reason, count in self.counts.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A source that is open: its samples stream through `cells`, once."""

    columns: tuple[Column, ...]
    root: str
    """An absolute path or a URL: what the paths in `cells` are relative to."""
    cells: Iterator[Sequence[Cell]]
    classes: tuple[str, ...] = ()
    left_out: LeftOut = field(default_factory=LeftOut)
    """Complete when `cells` is exhausted."""


def absolute(path: str | os.PathLike[str]) -> str:
    """Return `path` absolute and without `.` and `..`; a URL as it is."""
    text = os.fspath(path)
    return text if "://" in text else os.path.normpath(Path(text).expanduser().absolute())


def place_below(folder: str, root: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the root for the files of `folder`, and what goes before their paths, which are relative to `folder`.

    Raises:
        ArgumentError: `root` does not hold `folder`.
    """
    if root is None:
        return folder, ""
    top = absolute(root)
    if "://" in folder and folder.startswith(top.rstrip("/") + "/"):
        return top, folder[len(top.rstrip("/")) + 1 :] + "/"
    if "://" in top or top == folder:
        return top, ""
    if is_outside(folder, top):
        raise ArgumentError(f"root {top} does not hold the source {folder}. Give the folder itself or one above it")
    return top, os.path.relpath(folder, top) + "/"


def is_outside(path: str, root: str) -> bool:
    """Whether `path` leads out of `root`, as far as its text tells."""
    if "://" in path:
        return not path.startswith(root.rstrip("/") + "/")
    if not path.startswith("/") and ".." not in path:
        return False
    if "://" in root:
        return path.startswith("/") or os.path.normpath(path).split("/")[0] == ".."
    full = os.path.normpath(f"{root}/{path}" if not path.startswith("/") else path)
    return full != root and not full.startswith(root.rstrip("/") + "/")


def with_prefix(cell: Cell, prefix: str) -> Cell:
    """Return a source cell with `prefix` before its path, where that is relative."""
    path = path_of(cell)
    if "://" in path or path.startswith("/"):
        return cell
    return replace(cell, path=prefix + path) if isinstance(cell, ByteRange) else prefix + path


def rename_columns(found: tuple[Column, ...], columns: str | None) -> tuple[Column, ...]:
    """Return the columns that a source has, under the names that `columns` gives them.

    Raises:
        ArgumentError: `columns` has other types.
    """
    if columns is None:
        return found
    wanted = parse_columns(columns)
    if [column.type for column in wanted] != [column.type for column in found]:
        raise ArgumentError(
            f"columns {columns!r} do not fit this source, which gives {format_columns(found)!r}. "
            "Keep number and types; the names are yours"
        )
    return wanted


def shown(path: str) -> str:
    r"""Return `path` as it can be printed: bytes that are not UTF-8 as `\udcff`."""
    return path.encode("utf-8", "backslashreplace").decode()
