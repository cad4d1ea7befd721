"""JSON files in the format of COCO as sources: images with boxes, polygons, run-length masks, keypoints and captions.

Annotations stand in any order in the file, so they go through an external merge sort (`mpload.ingest.sorting`) by
image. Images are in the order of their ids, as in torchvision's CocoDetection. The objects of an image are one cell of
JSON, as lists by name:

```
{"width":640,"height":480,"boxes":[[x,y,w,h]],"labels":[0],"iscrowd":[0],"area":[9.5],"segments":[[[x,y,...]]]}
```

Labels are places in the index's classes, which are the categories in the order of their ids. A segment is a list of
polygons, or a run-length encoding `{"size":[h,w],"counts":"..."}` in COCO's compressed form.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Never

from mpload.errors import ArgumentError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.index.opening import is_outside
from mpload.ingest.annotations import Annotations
from mpload.ingest.coco_runs import box_of_runs, compressed, decompressed
from mpload.ingest.json_stream import read_members
from mpload.ingest.rows import LeftOut, Reason, Rows, absolute, choose_columns
from mpload.ingest.sorting import sorted_strings
from mpload.storage.urls import check_url, is_url
from mpload.units import printable

__all__ = ["open_coco"]

_IMAGE, _ANNOTATION = "0", "1"
_MAX = 1e12  # of any number
_BOXES, _CAPTIONS = "boxes", "captions"


@contextmanager
def open_coco(
    path: Path,
    *,
    scratch: Path,
    index: Path,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Iterator[Rows]:
    """Open a JSON file of COCO.

    Args:
        path: the JSON file.
        scratch: folder for temporary files.
        index: the index that is made. Objects that are too long for a line are written to a file beside it.
        columns: other names for the columns, or a selection of them.
        root: the folder or URL that the names of images are relative to. By default, it is looked for near the file.

    Memory: about 100 MB for any number of annotations, and the names of the categories.

    Raises:
        ArgumentError: the file is not in this format, the images are not found, or something in it contradicts itself.
        StorageError: the file cannot be read.
    """
    document = _Document(path)
    with ExitStack() as stack:
        strings = stack.enter_context(sorted_strings(document.records(), folder=scratch))
        if document.num_images == 0:
            raise ArgumentError(f"{printable(str(path))}: lists no images, so it is not a file of COCO")
        if document.has_no_annotations and document.categories:  # objects in none of its images
            document.has[_BOXES] = True
        base = absolute(root) if root is not None else _image_folder(path, document.first_name)
        if is_url(base):
            check_url(base)
        found = [Column(name="image", type=ColumnType.PATH), Column(name="image_id", type=ColumnType.STR)]
        found += [Column(name=name, type=ColumnType.STR) for name in (_BOXES, _CAPTIONS) if document.has[name]]
        chosen, numbers = choose_columns(tuple(found), columns)
        annotations = stack.enter_context(Annotations.open(scratch))
        for cells in document.rows(strings, base):
            annotations.add([cells[number] for number in numbers])
        chosen, base, rows = annotations.finish(chosen, root=base, may_move_root=root is None, index=index)
        names = tuple(document.names)
        yield Rows(columns=chosen, root=base, cells=rows, classes=names, left_out=document.left_out)


def _image_folder(path: Path, name: str) -> str:
    """Return the folder that contains the image `name`."""
    split = path.stem.rpartition("_")[2]
    near = [path.parent, path.parent.parent]
    folders = [folder / inner for folder in near for inner in ("", split, "images", f"images/{split}")]
    for folder in folders:
        if os.path.isfile(folder / name):  # noqa: PTH113  unlike Path.is_file, it never fails
            return absolute(folder)
    raise ArgumentError(
        f"{printable(str(path))}: its image {printable(name)} was looked for in {printable(str(folders[0]))} and "
        f"{printable(str(folders[5]))}, but is not there. Give the folder of the images as the root: --root FOLDER"
    )


@dataclass(slots=True)
class _Document:
    path: Path
    num_images: int = 0
    has_no_annotations: bool = False
    """Whether the file has a list of annotations, but an empty one."""
    first_name: str = ""
    has: dict[str, bool] = field(
        default_factory=lambda: dict.fromkeys((_BOXES, _CAPTIONS, "segments", "keypoints"), False)
    )
    categories: dict[int, str] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def names(self) -> list[str]:
        """The names of the categories, in the order of their ids."""
        return [self.categories[number] for number in sorted(self.categories)]

    def records(self) -> Iterator[str]:
        """Yield images and annotations as strings `IMAGE_ID NUL KIND NUL NUMBER NUL JSON`, and note the categories."""
        for number, (name, item) in enumerate(read_members(self.path)):
            if name not in {"images", "annotations", "categories"}:
                continue
            if item == []:
                self.has_no_annotations |= name == "annotations"
                continue
            if not isinstance(item, dict):
                self._fail(f"an item of {name!r} must be an object, got {item!r:.80}")
            if name == "images":
                yield f"{self._key(item, 'id', 'image')}\0{_IMAGE}\0{number:012d}\0{_dumps(self._image(item))}"
            elif name == "annotations":
                made = _dumps(self._annotation(item))
                yield f"{self._key(item, 'image_id', 'annotation')}\0{_ANNOTATION}\0{number:012d}\0{made}"
            else:
                self._add_category(item)

    def rows(self, strings: Iterator[str], root: str) -> Iterator[list[Cell]]:
        """Yield the cells of each image. `strings` are the sorted strings of `records`."""
        places = {category: place for place, category in enumerate(sorted(self.categories))}
        records = (string.split("\0", 3) for string in strings)
        for key, group in groupby(records, key=itemgetter(0)):
            (_, kind, _, text), *others = group
            image_id = key[1:].lstrip("0") or "0" if key[0] == "i" else json.loads(key[1:])
            if kind != _IMAGE:
                self._fail(f"an annotation belongs to image {image_id!r}, which is not among the images")
            if others and others[0][1] == _IMAGE:
                self._fail(f"the id {image_id!r} belongs to two images")
            image = json.loads(text)
            if is_outside(image["name"], root):
                self._fail(f"image {image_id!r} leads outside the root {printable(root)}: {printable(image['name'])}")
            found = [json.loads(text) for _, _, _, text in others]
            cells: list[Cell] = [image["name"], image_id]
            if self.has[_BOXES]:
                cells.append(_dumps(self._objects(image["size"], [each for each in found if each["box"]], places)))
            if self.has[_CAPTIONS]:
                cells.append(_dumps([each["caption"] for each in found if each["caption"] is not None]))
            yield cells

    def _objects(self, size: dict[str, int], objects: list[dict[str, Any]], places: dict[int, int]) -> dict[str, Any]:
        for each in objects:
            if each["category"] not in places:
                self._fail(f"category {each['category']!r} of an annotation is not among the categories")
        made: dict[str, Any] = {**size, "format": "xywh", "boxes": [each["box"] for each in objects]}
        made["labels"] = [places[each["category"]] for each in objects]
        made["iscrowd"] = [each["iscrowd"] for each in objects]
        made["area"] = [each["area"] for each in objects]
        for name in ("segments", "keypoints"):
            if self.has[name]:
                made[name] = [each[name] for each in objects]
        return made

    def _key(self, item: dict[str, Any], name: str, kind: str) -> str:
        value = item.get(name)
        if type(value) is int and 0 <= value < 1 << 63:
            return f"i{value:020d}"
        if not isinstance(value, str) or not _is_text(value):
            self._fail(f"{name!r} of an {kind} must be a positive integer or a text, got {value!r:.80}")
        return f"s{json.dumps(value)}"

    def _image(self, item: dict[str, Any]) -> dict[str, Any]:
        name = item.get("file_name")
        if not isinstance(name, str) or not name or not _is_text(name):
            self._fail(f"'file_name' of image {item['id']!r} must be a path, got {name!r:.80}")
        self.num_images += 1
        self.first_name = self.first_name or name
        sides = {side: item[side] for side in ("width", "height") if item.get(side) is not None}
        if any(type(side) is not int or side < 1 for side in sides.values()):
            self._fail(f"the width and height of image {item['id']!r} must be positive integers, got {sides}")
        return {"name": name, "size": sides if len(sides) == 2 else {}}

    def _annotation(self, item: dict[str, Any]) -> dict[str, Any]:
        caption = item.get("caption")
        if caption is not None:
            if not isinstance(caption, str):
                self._fail(f"{_of(item)}: 'caption' must be a text, got {caption!r:.80}")
            self.has[_CAPTIONS] = True
        box = item.get("bbox")
        if box is None:
            box = self._box_of_segment(item)
        if box is None:
            if caption is None or "category_id" in item:
                self.left_out.add(Reason.NO_BOX, _of(item))
            return {"caption": caption, "box": None}
        if not _are_numbers(box) or len(box) != 4:
            self._fail(f"{_of(item)}: 'bbox' must be four numbers, got {box!r:.80}")
        if min(box[2:]) < 0:
            self._fail(f"{_of(item)}: 'bbox' is x, y, width and height, but has a negative width or height: {box}")
        category = item.get("category_id")
        if type(category) is not int:
            self._fail(f"{_of(item)}: 'category_id' must be an integer, got {category!r:.80}")
        crowd = item.get("iscrowd")
        if crowd not in (None, 0, 1):
            self._fail(f"{_of(item)}: 'iscrowd' must be 0 or 1, got {crowd!r:.80}")
        area = item.get("area")
        if area is not None and not _are_numbers([area]):
            self._fail(f"{_of(item)}: 'area' must be a number, got {area!r:.80}")
        self.has[_BOXES] = True
        made = {
            "caption": caption,
            "box": box,
            "category": category,
            "iscrowd": int(bool(crowd)),
            "area": box[2] * box[3] if area is None else area,
        }
        keypoints = item.get("keypoints")
        if keypoints is not None and (not _are_numbers(keypoints) or len(keypoints) % 3):
            self._fail(f"{_of(item)}: 'keypoints' must be x, y and visibility of each, got {keypoints!r:.80}")
        self.has["keypoints"] |= bool(keypoints)
        made["keypoints"] = keypoints or []
        made["segments"] = self._segment(item)
        self.has["segments"] |= bool(made["segments"])
        return made

    def _box_of_segment(self, item: dict[str, Any]) -> Any:
        """Return left, top, width and height of an annotation's segmentation; None if it has none, or an empty one."""
        if not isinstance(item.get("segmentation"), dict):
            return _box_around(item.get("segmentation"))
        segment: Any = self._segment(item)
        height, width = segment["size"]
        try:
            counts = decompressed(segment["counts"])
        except ValueError as error:
            self._fail(f"{_of(item)}: the counts of 'segmentation' are damaged: the text {error}")
        if sum(counts) != height * width:
            self._fail(f"{_of(item)}: the counts of 'segmentation' must sum to {height} x {width}, got {sum(counts)}")
        return box_of_runs(height, counts)

    def _segment(self, item: dict[str, Any]) -> list[list[float]] | dict[str, Any]:
        found = item.get("segmentation")
        if found is None or found == []:
            return []
        if isinstance(found, list):
            if all(_are_numbers(polygon) and len(polygon) >= 4 and len(polygon) % 2 == 0 for polygon in found):
                return found
            self._fail(f"{_of(item)}: 'segmentation' must be polygons [x, y, x, y, ...], got {found!r:.80}")
        size, counts = (found.get("size"), found.get("counts")) if isinstance(found, dict) else (None, None)
        if not (isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)):
            self._fail(f"{_of(item)}: 'segmentation' must be polygons, or an encoding with a size, got {found!r:.80}")
        if isinstance(counts, str):
            return {"size": size, "counts": counts}
        if (
            not isinstance(counts, list)
            or not all(type(count) is int and count >= 0 for count in counts)
            or sum(counts) != size[0] * size[1]
        ):
            self._fail(
                f"{_of(item)}: the counts of 'segmentation' must sum to {size[0]} x {size[1]}, got {counts!r:.80}"
            )
        return {"size": size, "counts": compressed(counts)}

    def _add_category(self, item: dict[str, Any]) -> None:
        number, name = item.get("id"), item.get("name")
        if type(number) is not int or not isinstance(name, str) or not _is_text(name) or number in self.categories:
            self._fail(f"a category must have an integer of its own as 'id' and a 'name', got {item!r:.80}")
        self.categories[number] = name

    def _fail(self, cause: str) -> Never:
        raise ArgumentError(f"{printable(str(self.path))}: {cause}. Correct the file")


def _of(annotation: dict[str, Any]) -> str:
    return f"annotation {annotation.get('id')!r:.40} of image {annotation.get('image_id')!r:.40}"


def _box_around(polygons: object) -> list[float] | None:
    """Return left, top, width and height of polygons [x, y, x, y, ...]; None if they are no polygons."""
    if not isinstance(polygons, list) or not polygons or not all(map(_are_numbers, polygons)):
        return None
    across, down = ([value for polygon in polygons for value in polygon[start::2]] for start in (0, 1))
    if not across or not down:
        return None
    return [min(across), min(down), max(across) - min(across), max(down) - min(down)]


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) in {int, float} and -_MAX < value < _MAX for value in values)


def _is_text(value: object) -> bool:
    """Whether `value` is a text that can stand in an index. Half a surrogate pair cannot."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
