"""Refuses folders whose subfolders are no classes, or that would lack a class, and links that could not be read."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpload.errors import ArgumentError
from mpload.units import printable

__all__ = [
    "SPLIT_FOLDERS",
    "names_of_some",
    "refuse_link_outside",
    "refuse_linked_classes",
    "refuse_more_beside_classes",
    "refuse_splits",
]

SPLIT_FOLDERS = ("images", "labels")
"""The folders of a split in YOLO's layout."""
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"})


def refuse_splits(folder: str, classes: Sequence[str], laid_out: Sequence[str]) -> None:
    """Raise `ArgumentError` if subfolders are splits by their names, or hold `images` and `labels`.

    Args:
        folder: an absolute path, or a URL.
        classes: the names of its subfolders, sorted.
        laid_out: the names of those that hold `images` and `labels`, sorted.
    """
    named = [name for name in classes if name.lower() in _SPLITS]
    splits = laid_out or (named if len(named) == len(classes) or len(named) > 1 else [])
    if splits:
        why = "hold 'images' and 'labels', as splits in YOLO's layout do" if laid_out else "have the names of splits"
        url, name = printable(folder), printable(splits[0])
        which, source = "each split", f"{url}/{name}"
        if laid_out and "://" in folder:
            which, source = "a local copy of each split", f"{name} --root {url}/{name}"
        raise ArgumentError(
            f"{url}: subfolders {why}, so they are no classes: {names_of_some(splits)}. Index {which} "
            f"by itself: mpload index {source} -o {name}.txt. If "
            "they are classes, give columns='image:path label:int' (--columns)"
        )


def refuse_linked_classes(folder: str, linked: Iterable[str]) -> None:
    """Raise `ArgumentError` if there are links to folders beside class folders, which are not followed.

    Args:
        folder: an absolute path.
        linked: the names of the links.
    """
    names = sorted(linked)
    if names:
        raise ArgumentError(
            f"{printable(folder)}: has class folders that are symbolic links, which are not followed: "
            f"{names_of_some(names)}. Leaving them out would shift the numbers of later classes. Follow links by "
            "--follow-links or FolderOptions(follow_links=True), or move these links out of the folder"
        )


def refuse_more_beside_classes(folder: str, classes: Sequence[str], *, num_beside: int, num_in_classes: int) -> None:
    """Raise `ArgumentError` if more images lie directly in a folder than in its class folders.

    Args:
        folder: an absolute path, or a URL.
        classes: the names of its subfolders, sorted.
        num_beside: number of images directly in the folder.
        num_in_classes: number of images in the subfolders.
    """
    if num_beside > num_in_classes:
        raise ArgumentError(
            f"{printable(folder)}: {num_beside} images lie directly in it, but only {num_in_classes} in its "
            f"subfolders, which would be the classes: {names_of_some(classes)}. If the subfolders are no classes, move "
            "them out of the folder. If they are, move each image into the folder of its class. To index all images "
            "below the folder without labels, give columns='image:path' (--columns image:path)"
        )


def refuse_link_outside(link: str, folder: str, root: str) -> None:
    """Raise `ArgumentError` if a link in a folder leads out of the root of the index, where nothing could be read.

    Args:
        link: its absolute path.
        folder: the absolute path of the folder that is indexed.
        root: the absolute path of the root of the index.
    """
    target = os.path.realpath(link)
    if _is_inside(target, root):
        return
    common = next(str(path) for path in Path(f"{folder}/x").parents if _is_inside(target, str(path)))
    raise ArgumentError(
        f"{printable(link)}: is a link to {printable(target)}, which lies outside of the root {printable(root)}, so it "
        "could not be read. Give a root that contains both, by --root or build_index(..., root=...): "
        f"{printable(common)}. Or replace the link by a copy"
    )


def names_of_some(names: Sequence[str]) -> str:
    """Return the first names for a message, and how many more there are."""
    return ", ".join(map(printable, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _is_inside(target: str, root: str) -> bool:
    return f"{target}/".startswith(os.path.realpath(root).rstrip("/") + "/")
