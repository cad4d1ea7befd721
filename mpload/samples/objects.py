"""Reads the objects that a file or a cell lists for an image: their boxes, and one value of each kind per object."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.geometry import Geometry
from mpload.images.jpeg_header import ImageBytes
from mpload.index.label_lines import read_label_line

__all__ = [
    "Objects",
    "finite",
    "holds_json",
    "is_yolo",
    "names_of",
    "parse_json",
    "parse_objects",
    "parse_yolo",
    "scale_between",
    "shortened",
    "stated_size",
    "text_of",
]

_BOXES: Final = ("boxes", "bbox", "bboxes", "box")
_LISTS: Final = ("annotations", "objects")
_FORMATS: Final = ("xyxy", "xywh", "cxcywh", "yolo")
_MAX_NUMBER: Final = 1e9
_OTHER_NAMES: Final = {
    "labels": ("label", "category_id", "category", "categories", "class", "class_id"),
    "masks": ("segmentation", "segmentations", "segments"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """The objects of one image, as a file lists them."""

    boxes: NDArray[np.float64]
    """float64 [n, 4], in the format of the file."""
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """By name, a list that should have one value per object."""
    items: Sequence[Mapping[str, Any]] = ()
    """The values of each object by name, if the file has them like this."""
    size: tuple[int, int] | None = None
    """Height and width of the image that the coordinates belong to, if the file gives them."""
    format: str | None = None
    """The format of the boxes, if the file names it."""

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of a name, or of another name that is usual for it.

        Raises:
            DecodeError: There are none, or not one for each object.
        """
        names = names_of(name)
        found = [known for known in names if known in self.values]
        for known in found:
            if len(self.values[known]) == len(self.boxes):
                return self.values[known]
        for known in names:
            if self.items and known in self.items[0]:
                return _column(self.items, known)
        if not len(self.boxes):
            return ()
        if found:
            raise DecodeError(f"{found[0]!r} lists {len(self.values[found[0]])}, but there are {len(self.boxes)} boxes")
        others = ", ".join(map(repr, self.items[0] if self.items else self.values)) or "the boxes"
        raise DecodeError(f"the objects have no {name!r}, only {others}. Pass values= without it")


def names_of(name: str) -> tuple[str, ...]:
    """Return the names that are usual for a value, the preferred one first."""
    return name, *_OTHER_NAMES.get(name, ())


def text_of(data: ImageBytes | str) -> str:
    """Return a file's bytes, or a cell, as text.

    Raises:
        DecodeError: The bytes are not UTF-8.
    """
    if isinstance(data, str):
        return data
    with suppress(UnicodeDecodeError):
        return str(data, "utf-8").removeprefix("\ufeff")  # faster than "utf-8-sig", which counts without the mark
    try:
        return str(data, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DecodeError(f"not a text in UTF-8: {error}") from error


def parse_json(data: ImageBytes | str) -> Any:
    """Parse JSON.

    Raises:
        DecodeError: It is not JSON, is nested too deeply, or has NaN or infinity, which are not JSON.
    """
    try:
        return _JSON.decode(text_of(data))
    except RecursionError as error:
        raise DecodeError("the JSON is nested too deeply") from error
    except ValueError as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError(f"not JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise DecodeError(f"the JSON holds {name}, which is not a number of JSON")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def finite(numbers: object, shape: tuple[int | None, ...], subject: str) -> NDArray[np.float64]:
    """Return nested lists of numbers as an array, float64 of `shape`, where None stands for any length.

    Raises:
        DecodeError: Something in it is not a number, or too large, or the shape is another.
    """
    try:
        found = np.asarray(numbers)
    except (ValueError, OverflowError):  # lists of different lengths
        found = np.asarray(None)
    if found.size == 0 and numbers == []:
        return np.empty([length or 0 for length in shape])
    fits = found.ndim == len(shape) and all(map(_fits, found.shape, shape)) and found.dtype.kind in "iuf"
    numbers_found: NDArray[np.float64] = found.astype(np.float64) if fits else np.empty(0)
    if not fits or not np.abs(numbers_found).max(initial=0) <= _MAX_NUMBER:  # NaN is not smaller either
        wanted = f"[{', '.join('n' if length is None else str(length) for length in shape)}]"
        raise DecodeError(f"{subject} must be numbers {wanted} of at most {_MAX_NUMBER:.0e}, got {shortened(numbers)}")
    return numbers_found


def _fits(length: int, wanted: int | None) -> bool:
    return wanted is None or length == wanted


def shortened(value: object) -> str:
    """Return a value for a message, of at most 80 characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        return type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_objects(data: ImageBytes | str) -> Objects:
    """Read objects from JSON, which may have any of the usual forms.

    - a list of boxes, `[[10, 20, 30, 40], ...]`; a fifth number of each is its label;
    - a list of objects, `[{"bbox": [...], "category_id": 3, ...}, ...]`, such as COCO's annotations of one image;
    - lists by name, `{"bbox": [[...], ...], "category": [3, ...], ...}`, as Hugging Face stores objects;
    - a mapping that holds one of these as `"annotations"` or `"objects"`, and perhaps `"width"` and `"height"`;
    - `null`, which an index of a table holds where a list is missing: there are no objects.

    Raises:
        DecodeError: It is not such JSON.
    """
    parsed = parse_json(data)
    return _objects([] if parsed is None else parsed, nested=False)


def holds_json(text: str) -> bool:
    """Return whether a text of objects is JSON that `parse_objects` may read, not the lines of a YOLO label file."""
    return text.lstrip().startswith(("[", "{", "null"))


def _objects(parsed: Any, *, nested: bool) -> Objects:
    if isinstance(parsed, list):
        return _listed(parsed)
    if not isinstance(parsed, dict):
        raise DecodeError(f"the JSON must be a list of boxes or objects, or lists by name, got {shortened(parsed)}")
    size = stated_size(parsed)
    for holder in _LISTS:
        if holder in parsed and not nested:
            inner = _objects(parsed[holder], nested=True)
            return replace(inner, size=inner.size or size, format=inner.format or _stated_format(parsed))
    name = next((name for name in _BOXES if isinstance(parsed.get(name), list)), None)
    if name is None:
        raise DecodeError(f"the JSON has none of {', '.join(_BOXES)}, only {shortened(list(parsed))}")
    boxes = finite(parsed[name], (None, 4), name)
    values = {key: value for key, value in parsed.items() if isinstance(value, list) and key != name}
    return Objects(boxes=boxes, values=values, size=size, format=_stated_format(parsed))


def _listed(parsed: list[Any]) -> Objects:
    first = parsed[0] if parsed else []
    if isinstance(first, dict):
        name = next((name for name in _BOXES if name in first), None)
        if name is None:
            raise DecodeError(f"the objects have none of {', '.join(_BOXES)}, only {shortened(list(first))}")
        return Objects(boxes=finite(_column(parsed, name), (None, 4), name), items=parsed)
    has_labels = isinstance(first, list) and len(first) == 5
    numbers = finite(parsed, (None, 5 if has_labels else 4), "boxes")
    return Objects(boxes=numbers[:, :4], values={"labels": numbers[:, 4].tolist()} if has_labels else {})


def _column(items: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    try:
        return [item[name] for item in items]
    except (KeyError, TypeError, IndexError) as error:
        number = next(number for number, item in enumerate(items) if not isinstance(item, dict) or name not in item)
        raise DecodeError(f"object {number} has no {name!r}, but others have: {shortened(items[number])}") from error


def _stated_format(parsed: Mapping[str, Any]) -> str | None:
    stated = parsed.get("format")
    return stated if stated in _FORMATS else None


def stated_size(parsed: dict[str, Any]) -> tuple[int, int] | None:
    """Return height and width of the image that was annotated; None if the mapping does not give them.

    Raises:
        DecodeError: They are not positive integers.
    """
    holder = parsed["image"] if isinstance(parsed.get("image"), dict) else parsed
    height, width = holder.get("height"), holder.get("width")
    if height is None and width is None:
        return None
    if (
        isinstance(height, int)
        and isinstance(width, int)
        and 0 < min(height, width) <= max(height, width) <= _MAX_NUMBER
    ):
        return height, width
    raise DecodeError(f"height and width must be positive integers, got {shortened([height, width])}")


def parse_yolo(data: ImageBytes | str) -> Objects:
    """Read objects from the lines of a YOLO label file: the class, then the centre, width and height of the box.

    All four are fractions of the image's width and height. More numbers in a line are a polygon, x and y of each point
    in fractions: the box is then the polygon's, and `segments` holds it.

    Raises:
        DecodeError: A line is not of this form, a class is negative, or a fraction is not between 0 and 1, with 1 % of
            room for rounding.
    """
    boxes: list[Sequence[float]] = []
    labels: list[int] = []
    polygons: list[list[float]] = []
    for number, line in enumerate(text_of(data).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = read_label_line(line)
        except DecodeError as error:
            raise DecodeError(f"line {number} of the boxes {error}") from error
        labels.append(found.label)
        boxes.append(found.box)
        if found.polygon:
            polygons.append(list(found.polygon))
    values: dict[str, Sequence[Any]] = {"labels": labels}
    if len(polygons) == len(boxes):
        values["segments"] = [[polygon] for polygon in polygons]
    return Objects(boxes=np.array(boxes, np.float64).reshape(-1, 4), values=values)


def is_yolo(data: ImageBytes | str) -> bool:
    """Return whether `parse_yolo` reads objects from `data`."""
    try:
        return len(parse_yolo(data).boxes) > 0
    except DecodeError:
        return False


def scale_between(size: tuple[int, int] | None, geometry: Geometry | None) -> tuple[float, float]:
    """Return the factors for x and y that turn them into pixels of the image.

    Args:
        size: Height and width of the image that the coordinates belong to; None for those of the image.
        geometry: What the sample shows of the image; None leaves the coordinates as they are.

    Raises:
        DecodeError: The size is that of the image on its side.
    """
    if size is None or geometry is None:
        return 1.0, 1.0
    height, width = size
    if (height, width) == (geometry.width, geometry.height) and height != width:
        raise DecodeError(
            f"the objects are of a {width}x{height} image, but it is {geometry.width}x{geometry.height} when it is "
            "turned upright by its EXIF orientation. Pass exif_orientation=False to the image's decoder if the objects "
            "were marked without it"
        )
    return geometry.width / width, geometry.height / height
