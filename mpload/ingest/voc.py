"""Folders in the layout of Pascal VOC as sources: `JPEGImages`, and an XML file for each image in `Annotations`.

The objects of an image are one cell of JSON, as lists by name:

```
{"width":500,"height":375,"boxes":[[x,y,w,h]],"labels":[0],"difficult":[0]}
```

VOC counts pixels from 1 and includes the last one: `xmin` 1 and `xmax` 3 are the box from x = 0 with w = 3. Labels are
places in the index's classes, which are the sorted names of all objects in `Annotations`, so that all sets of a folder
have the same. A set such as `ImageSets/Main/train.txt` is a source too: it has the images of the set, in its order.
Those of `ImageSets/Segmentation` have masks instead of boxes.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Never
from xml.etree import ElementTree as ET

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, parse_columns
from mpload.ingest.folder_options import IMAGE_EXTENSIONS
from mpload.ingest.rows import LeftOut, Reason, Rows, choose_columns, root_and_prefix
from mpload.ingest.sorting import sorted_strings
from mpload.ingest.unmatched import count_unmatched
from mpload.units import MIB, printable

__all__ = ["is_voc_folder", "is_voc_set", "open_voc"]

_IMAGES, _XMLS, _MASKS = "JPEGImages", "Annotations", "SegmentationClass"
_MAX_XML_BYTES = 4 * MIB
_MAX_CLASSES = 1 << 16
_MAX = 1e9  # of a coordinate


def is_voc_folder(path: Path) -> bool:
    """Whether a folder has the layout of Pascal VOC."""
    try:
        return (path / _IMAGES).is_dir() and next(_stems(path), None) is not None
    except StorageError:
        return False


def is_voc_set(path: Path) -> bool:
    """Whether a file is a set of a folder in the layout of Pascal VOC."""
    return len(path.parts) > 3 and path.parts[-3] == "ImageSets" and is_voc_folder(path.parents[2])


@contextmanager
def open_voc(
    path: Path, *, scratch: Path, columns: str | None = None, root: str | os.PathLike[str] | None = None
) -> Iterator[Rows]:
    """Open a folder of Pascal VOC, or one of its sets.

    Args:
        path: the folder, or the text of a set.
        scratch: folder for temporary files of the sort.
        columns: other names for the columns, or a selection of them.
        root: a parent folder that the paths are relative to; the folder of Pascal VOC by default.

    Images of a folder without an XML file are counted as left out.

    Memory: constant, apart from the names of the classes. Each XML file is read twice.

    Raises:
        ArgumentError: a file is missing or breaks the format.
        StorageError: a file cannot be read.
    """
    folder = path if path.is_dir() else path.parents[2]
    base, prefix = root_and_prefix(str(folder), root)
    has_masks = not path.is_dir() and path.parent.name == "Segmentation"
    found = parse_columns("image:path mask:path" if has_masks else "image:path boxes:str")
    chosen, numbers = choose_columns(found, columns)
    names = [] if has_masks else _names(folder)
    places = {name: place for place, name in enumerate(names)}

    def cells(stem: str) -> list[Cell]:
        made: list[Cell] = [prefix + _existing(folder, f"{_IMAGES}/{stem}.jpg")]
        if has_masks:
            made.append(prefix + _existing(folder, f"{_MASKS}/{stem}.png"))
        else:
            objects = _read(folder / _XMLS / f"{stem}.xml")
            objects["labels"] = [places[name] for name in objects["labels"]]
            made.append(json.dumps(objects, separators=(",", ":")))
        return [made[number] for number in numbers]

    if path.is_dir():
        left_out = LeftOut()
        with sorted_strings(_stems(folder), folder=scratch) as stems:
            every = chain(map(cells, stems), _count_images(folder, left_out))
            yield Rows(columns=chosen, root=base, cells=every, classes=tuple(names), left_out=left_out)
    else:
        yield Rows(
            columns=chosen, root=base, cells=map(cells, _listed(path)), classes=() if has_masks else tuple(names)
        )


def _stems(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder / _XMLS) as entries:
            for entry in entries:
                if entry.name.endswith(".xml") and not entry.name.startswith("."):
                    yield entry.name.removesuffix(".xml")
    except OSError as error:
        raise _unreadable(folder / _XMLS, error) from error


def _count_images(folder: Path, left_out: LeftOut) -> Iterator[list[Cell]]:
    """Count images without an XML file, once this is iterated over. Yield nothing."""
    count_unmatched(
        left_out,
        Reason.IMAGE_ALONE,
        folder=str(folder / _IMAGES),
        endings=IMAGE_EXTENSIONS,
        partners=str(folder / _XMLS),
        partner_endings=(".xml",),
    )
    yield from ()


def _names(folder: Path) -> list[str]:
    """Return the sorted names of all objects."""
    names: set[str] = set()
    for stem in _stems(folder):
        names.update(_read(folder / _XMLS / f"{stem}.xml")["labels"])
        if len(names) > _MAX_CLASSES:
            raise ArgumentError(f"{printable(str(folder / _XMLS))}: its objects have more than {_MAX_CLASSES} names")
    return sorted(names)


def _listed(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if words := line.split():
                    if "/" in words[0] or "\0" in words[0]:
                        raise ArgumentError(
                            f"{printable(str(path))}: {printable(words[0])} is not the name of an image"
                        )
                    yield words[0]
    except OSError as error:
        raise _unreadable(path, error) from error


def _existing(folder: Path, name: str) -> str:
    if not os.path.isfile(folder / name):  # noqa: PTH113  unlike Path.is_file, it never fails
        raise ArgumentError(f"{printable(str(folder / name))}: is missing. Is the folder a complete copy?")
    return name


def _read(path: Path) -> dict[str, Any]:
    """Return the objects of an XML file. Their labels are names."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_XML_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > _MAX_XML_BYTES:
        _fail(path, f"is larger than {_MAX_XML_BYTES} bytes")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:  # entities can expand without limit
        _fail(path, "declares a document type, which annotations do not need")
    try:
        top = ET.fromstring(data)  # noqa: S314  without a document type there are no entities
    except (ET.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        _fail(path, f"is not XML: {error}")
    for element in top.iter():
        element.tag = element.tag.rpartition("}")[2]  # without the namespace
    made: dict[str, Any] = {}
    sides = [_number(path, top, f"size/{side}", default=0) for side in ("width", "height")]
    if all(sides):
        made = {"width": int(sides[0]), "height": int(sides[1])}
    made |= {"format": "xywh", "boxes": [], "labels": [], "difficult": []}
    for item in top.iterfind("object"):
        left, upper, right, lower = (_number(path, item, f"bndbox/{name}") for name in ("xmin", "ymin", "xmax", "ymax"))
        if right < left - 1 or lower < upper - 1:
            found = [left, upper, right, lower]
            _fail(path, f"xmax and ymax of an object must not be below its xmin and ymin, got {found}")
        name = (item.findtext("name") or "").strip()
        if not name or not name.isprintable():
            _fail(path, f"the name of an object is {name!r:.80}")
        made["boxes"].append([left - 1, upper - 1, right - left + 1, lower - upper + 1])
        made["labels"].append(name)
        made["difficult"].append(int(_number(path, item, "difficult", default=0) != 0))
    return made


def _number(path: Path, item: ET.Element, name: str, *, default: int | None = None) -> float:
    text = item.findtext(name)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = _MAX
    if not -_MAX < value < _MAX or "_" in (text or ""):
        _fail(path, f"{name} must be a number, got {text!r:.80}")
    return int(value) if value == int(value) else value


def _fail(path: Path, cause: str) -> Never:
    raise ArgumentError(f"{printable(str(path))}: {cause}. Correct the file")


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{printable(str(path))}: cannot be read: {error.strerror or error}. Is the folder complete?")
