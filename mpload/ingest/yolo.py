"""Folders in YOLO's layout as sources: `images`, and in `labels` a text of the same name for each image with objects.

The text of an image is one cell, and an empty one where there is no text: the image shows no object. The names of the
classes, and whether objects have keypoints, are read from the files beside the two folders (`mpload.ingest.yolo_yaml`).
A line with keypoints looks like one with a polygon. To tell them apart, objects with keypoints are a cell of JSON:

```
{"format":"yolo","boxes":[[x,y,w,h]],"labels":[0],"keypoints":[[x,y,visibility,...]]}
```
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpload.errors import ArgumentError, DecodeError
from mpload.index.columns import Cell, parse_columns
from mpload.index.label_lines import LabelLine, read_label_line
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.folders import open_folder
from mpload.ingest.rows import Reason, Rows, choose_columns, root_and_prefix
from mpload.ingest.unmatched import count_unmatched, in_any_case
from mpload.ingest.yolo_yaml import Description, describe_labels, read_text
from mpload.units import printable

__all__ = ["is_yolo_folder", "open_yolo"]

_IMAGES = "images"
_LABELS = "labels"


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
        ArgumentError: there are no images, a line breaks the format, or the files that describe the labels do.
        StorageError: a file cannot be read.

    Warns:
        MploadWarning: `classes.txt` has other names than the YAML file.

    Texts of labels without an image are counted as left out.
    """
    chosen, numbers = choose_columns(parse_columns("image:path boxes:str"), columns)
    description = describe_labels(folder)
    base, prefix = root_and_prefix(str(folder), root)
    images = f"{folder}/{_IMAGES}"
    with open_folder(
        images, options=options, scratch=scratch, columns="image:path", root=images, confined_to=base
    ) as rows:

        def cells() -> Iterator[list[Cell]]:
            for (image,) in rows.cells:
                stem = os.path.splitext(str(image))[0]  # noqa: PTH122
                path = f"{prefix}{_IMAGES}/{image}"
                text = folder / _LABELS / f"{stem}.txt"
                yield [path if number == 0 else _objects(text, description) for number in numbers]
            count_unmatched(
                rows.left_out,
                Reason.LABELS_ALONE,
                folder=f"{folder}/{_LABELS}",
                endings=(".txt",),
                partners=images,
                partner_endings=in_any_case(options.extensions),
            )

        yield Rows(
            columns=chosen,
            root=base,
            cells=cells(),
            classes=description.classes,
            left_out=rows.left_out,
        )


def _objects(path: Path, description: Description) -> str:
    """Return the cell of an image with the objects in the file at `path`, which were checked."""
    found: list[LabelLine] = []
    lines: list[str] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            made = read_label_line(line, description.keypoints)
        except DecodeError as error:
            advice = "" if description.keypoints is None else f", or kpt_shape in {printable(str(description.path))}"
            raise ArgumentError(f"{printable(str(path))}:{number}: {error}. Correct the line{advice}") from error
        num_classes = len(description.classes)
        if num_classes and made.label >= num_classes:
            raise ArgumentError(
                f"{printable(str(path))}:{number}: has class {made.label}, but {printable(str(description.path))} "
                f"names only classes 0 to {num_classes - 1}: {line!r:.80}. Correct the line, or add the name"
            )
        found.append(made)
        lines.append(line)
    if description.keypoints is None:
        return "\n".join(lines)
    made_of_all = {
        "format": "yolo",
        "boxes": [each.box for each in found],
        "labels": [each.label for each in found],
        "keypoints": [each.keypoints for each in found],
    }
    return json.dumps(made_of_all, separators=(",", ":"))
