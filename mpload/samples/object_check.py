"""Checks objects in an index or in label files before they are trained on."""

from collections.abc import Sequence
from typing import Any, Final, get_args

from mpload.errors import DecodeError
from mpload.samples.boxes import BoxFormat, box_corners
from mpload.samples.objects import holds_json, parse_json, parse_objects, parse_yolo, text_of

__all__ = ["check_objects"]

_LISTS: Final = ("labels", "iscrowd", "area", "difficult", "segments", "keypoints")
"""What `mpload index` writes for each object, beside its box."""


def check_objects(data: bytes | str, *, num_classes: int = 0) -> None:
    """Check what a cell or file says of the objects of an image.

    Lines are those of YOLO. JSON is checked further if it names the `"format"` of its boxes, as `mpload index` writes
    it: the meaning of other JSON is known only to its decoder.

    Args:
        data: a cell, or the bytes of a file.
        num_classes: the number of classes that have names; 0 if they are not known.

    Raises:
        DecodeError: `Boxes` could not read the objects, or a class has no name.
    """
    text = text_of(data)
    if not holds_json(text):
        _check_labels(parse_yolo(text).values["labels"], num_classes)
        return
    parsed = parse_json(text)
    if not isinstance(parsed, dict) or parsed.get("format") not in get_args(BoxFormat):
        return
    objects = parse_objects(text)
    box_corners(objects, parsed["format"])
    for name in _LISTS:
        if name in objects.values:
            objects.column(name)
    _check_labels(objects.values.get("labels", ()), num_classes)


def _check_labels(labels: Sequence[Any], num_classes: int) -> None:
    for number, label in enumerate(labels):
        if num_classes and isinstance(label, int) and not 0 <= label < num_classes:
            raise DecodeError(
                f"object {number} has class {label}, but the index names only classes 0 to {num_classes - 1}"
            )
