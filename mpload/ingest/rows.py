"""`Rows`, the result of opening any source: columns, a root, and an iterator over the samples' cells."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, format_columns, parse_columns, path_of
from mpload.index.opening import is_outside
from mpload.storage.ranges import ByteRange
from mpload.units import printable

__all__ = [
    "LeftOut",
    "Reason",
    "Rows",
    "absolute",
    "check_several",
    "choose_columns",
    "rename_columns",
    "root_and_prefix",
    "with_prefix",
]


class Reason(StrEnum):
    """Why something in a source was left out of the index, and which option includes it."""

    LINK = "symbolic links (FolderOptions(follow_links=True) or --follow-links includes them)"
    HIDDEN = (
        "hidden images or folders, whose names start with '.' (FolderOptions(hidden=True) or --hidden includes them)"
    )
    EXTENSION = "files with other extensions (FolderOptions(extensions=...) or --extensions includes them)"
    MEMBER = (
        "members with other extensions (--extensions names further ones of images; columns of texts and arrays end in "
        ".txt, .json, .xml, .npy or .npz)"
    )
    JOINED = "archives that follow the end of a tar (tar reads no further: index the tars that were joined instead)"
    BESIDE_CLASSES = "images beside the class folders (move each into the folder of its class)"
    NO_IMAGE = "values that are not images"
    ALONE = "captions, JSON or arrays with no image of the same key next to them (sort the members: tar --sort=name)"
    TEXT_ALONE = "texts with no image of the same name next to them"
    LABELS_ALONE = "texts of labels with no image of the same name"
    MASK_ALONE = "masks with no image of the same name"
    IMAGE_ALONE = "images with no XML file of the same name (one without objects says that an image shows none)"
    NOT_IN_FIRST = "captions, JSON or arrays that the first sample lacks"
    MORE_THAN_LABEL = (
        "JSON files that say more than the label, or have another label than the .cls file, though that of the first "
        "sample makes no column (to keep them, name one in --columns, such as json:span or json:lmdb)"
    )
    NO_TEXT = "columns of a type that cannot be written as text"
    FEATURE = "features of the first record besides its images and its label (store them in Parquet to have columns)"
    NO_BOX = "objects without a 'bbox' or a segmentation"
    NO_FILE = "names of images that are not regular files (broken links, folders, pipes)"


@dataclass(slots=True)
class LeftOut:
    """Counts what was left out of an index, by reason, with one example each."""

    counts: Counter[Reason] = field(default_factory=Counter)
    examples: dict[Reason, str] = field(default_factory=dict)

    def add(self, reason: Reason, example: str, count: int = 1) -> None:
        """Count `count` things that were left out for `reason`."""
        if count:
            self.counts[reason] += count
            self.examples.setdefault(reason, example)

    def take(self, reason: Reason) -> tuple[str, int]:
        """Remove the count for a reason, and return it as `example, count`: the last two arguments of `add`."""
        return self.examples.pop(reason, ""), self.counts.pop(reason, 0)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return "; ".join(
            f"{count} {reason}, such as {printable(self.examples[reason])}" for reason, count in self.counts.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """An open source. Its samples can be iterated once, through `cells`."""

    columns: tuple[Column, ...]
    root: str
    """The absolute path or URL that the paths in `cells` are relative to."""
    cells: Iterator[Sequence[Cell]]
    classes: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of each column whose integers number classes that the source names itself."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """What was left out. The counts are complete once `cells` is exhausted."""
    is_list: bool = False
    """Whether the paths were read from a list or an index, and are not names of files that were found."""
    notice: str = ""
    """What the user should know of a choice that was made for the index; or empty."""


def absolute(path: str | os.PathLike[str]) -> str:
    """Return `path` made absolute, without `.` and `..`. A URL is returned unchanged."""
    text = os.fspath(path)
    return text if "://" in text else os.path.normpath(Path(text).expanduser().absolute())


def check_several(paths: object, name: str) -> None:
    """Raise `ArgumentError` if an argument is one path where several are expected."""
    if isinstance(paths, str | os.PathLike):
        raise ArgumentError(f"{name} is one path, {os.fspath(paths)!r}, but must be a list of paths. Write [{paths!r}]")


def root_and_prefix(folder: str, root: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the absolute root, and the prefix that makes paths relative to `folder` relative to this root.

    Raises:
        ArgumentError: `root` does not contain `folder`.
    """
    if root is None:
        return folder, ""
    top = absolute(root)
    if "://" in folder and folder.startswith(top.rstrip("/") + "/"):
        return top, folder[len(top.rstrip("/")) + 1 :] + "/"
    if "://" in top or top == folder:
        return top, ""
    if is_outside(folder, top):
        raise ArgumentError(f"root {top} does not contain the source {folder}. Give the folder itself or a parent")
    return top, os.path.relpath(folder, top) + "/"


def with_prefix(cell: Cell, prefix: str) -> Cell:
    """Return a source cell with `prefix` prepended to its path, unless the path is absolute or a URL."""
    path = path_of(cell)
    if "://" in path or path.startswith("/"):
        return cell
    return replace(cell, path=prefix + path) if isinstance(cell, ByteRange) else prefix + path


def rename_columns(found: tuple[Column, ...], columns: str | None) -> tuple[Column, ...]:
    """Return the columns `found` in a source, renamed as in `columns`.

    Raises:
        ArgumentError: the types in `columns` differ from those found.
    """
    if columns is None:
        return found
    wanted = parse_columns(columns)
    if [column.type for column in wanted] != [column.type for column in found]:
        raise ArgumentError(
            f"columns {columns!r} do not match this source, which has {format_columns(found)!r}. "
            "Only the names may differ, not the number and types. "
            "Some of the columns can be selected by their names and types"
        )
    return wanted


def choose_columns(found: tuple[Column, ...], columns: str | None) -> tuple[tuple[Column, ...], list[int]]:
    """Return the columns of an index, and the numbers of these columns among those `found` in the source.

    `columns` either gives all columns found other names, or selects some of them by their names and types.

    Raises:
        ArgumentError: `columns` does neither.
    """
    wanted = found if columns is None else parse_columns(columns)
    if len(wanted) < len(found) and set(wanted) <= set(found):
        return wanted, [found.index(column) for column in wanted]
    return rename_columns(found, columns), list(range(len(found)))
