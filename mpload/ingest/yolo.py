"""Folders in YOLO's layout as sources: `images`, and in `labels` a text of the same name for each image with objects.

The text of an image is one cell, and an empty one where there is no text: the image shows no object. The names of the
classes are the lines of `classes.txt`, or the `names` in `data.yaml`, if one of them is beside the two folders.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, parse_columns
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.folders import open_folder
from mpload.ingest.rows import Rows, choose_columns, root_and_prefix
from mpload.units import MIB, printable

__all__ = ["is_yolo_folder", "open_yolo"]

_IMAGES = "images"
_LABELS = "labels"
_MAX_TEXT_BYTES = MIB


def is_yolo_folder(folder: Path, extensions: tuple[str, ...]) -> bool:
    """Whether a folder has just the subfolders `images` and `labels`, with texts and no images in `labels`."""
    try:
        with os.scandir(str(folder)) as entries:
            names = {entry.name for entry in entries if entry.name[0] != "." and entry.is_dir()}
        if names != {_IMAGES, _LABELS}:
            return False
        for _, _, files in os.walk(folder / _LABELS):
            if any(name.lower().endswith(extensions) for name in files):
                return False
            if any(name.endswith(".txt") for name in files):
                return True
    except OSError:  # opening the folder raises an error that says more
        pass
    return False


@contextmanager
def open_yolo(
    folder: Path,
    *,
    options: FolderOptions,
    scratch: Path,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Iterator[Rows]:
    """Open a folder in YOLO's layout. Images are in the order of their paths.

    Args:
        folder: the folder that contains `images` and `labels`.
        options: which files count as images.
        scratch: folder for temporary files of the sort.
        columns: other names for the columns, or a selection of them.
        root: a parent folder that the paths are relative to; `folder` by default.

    Raises:
        ArgumentError: there are no images, or a file is not a text.
        StorageError: a file cannot be read.
    """
    chosen, numbers = choose_columns(parse_columns("image:path boxes:str"), columns)
    base, prefix = root_and_prefix(str(folder), root)
    images = f"{folder}/{_IMAGES}"
    with open_folder(images, options=options, scratch=scratch, columns="image:path", root=images) as rows:

        def cells(image: str) -> list[Cell]:
            stem = os.path.splitext(image)[0]  # noqa: PTH122
            made: list[Cell] = [f"{prefix}{_IMAGES}/{image}", _text(folder / _LABELS / f"{stem}.txt")]
            return [made[number] for number in numbers]

        yield Rows(
            columns=chosen,
            root=base,
            cells=(cells(str(image)) for (image,) in rows.cells),
            classes=_class_names(folder),
            left_out=rows.left_out,
        )


def _class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the classes; empty if none are given.

    Raises:
        ArgumentError: `data.yaml` is not of the usual form.
    """
    if names := _text(folder / "classes.txt"):
        return tuple(line.strip() for line in names.splitlines())
    path = folder / "data.yaml"
    if not (text := _text(path)):
        return ()
    try:
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(
            f"{printable(str(path))}: cannot be read without PyYAML. Run: pip install pyyaml"
        ) from error
    try:
        document: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{printable(str(path))}: is not YAML: {' '.join(str(error).split())}") from error
    found = document.get("names") if isinstance(document, dict) else None
    if isinstance(found, dict) and sorted(map(str, found)) == sorted(map(str, range(len(found)))):
        found = [found[number] for number in sorted(found, key=int)]
    if not isinstance(found, list) or not all(isinstance(name, str) and name.isprintable() for name in found):
        raise ArgumentError(f"{printable(str(path))}: 'names' must list the names of all classes, got {found!r:.80}")
    return tuple(found)


def _text(path: Path) -> str:
    """Return the text of a file without blank lines; empty if there is no file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StorageError(f"{printable(str(path))}: cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{printable(str(path))}: is not UTF-8: {error.reason}. Correct the file") from error
    if len(data) > _MAX_TEXT_BYTES or "\0" in text:
        raise ArgumentError(f"{printable(str(path))}: is larger than {_MAX_TEXT_BYTES} bytes, or not a text")
    return "\n".join(line for line in text.splitlines() if line.strip())
