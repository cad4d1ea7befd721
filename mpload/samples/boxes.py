"""`Boxes`: the boxes of a sample's objects, which follow the crop and the flips of its image."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.images.claims import Claim, unclaimed
from mpload.images.geometry import Geometry
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.index.label_lines import MAX_FRACTION, MIN_FRACTION, fraction_fault
from mpload.samples.keypoints import Keypoints, check_visibility, move_points
from mpload.samples.objects import (
    Objects,
    finite,
    holds_json,
    is_yolo,
    parse_objects,
    parse_yolo,
    scale_between,
    text_of,
)
from mpload.samples.segments import draw_segment

__all__ = ["BoxFormat", "Boxes", "box_corners"]

BoxFormat = Literal["xyxy", "xywh", "cxcywh", "yolo"]
"""Left, top, right, bottom; left, top, width, height; centre, width, height; these as fractions of the image."""

_KINDS = ("int", "float", "str", "mask")
_MAX_MASK_BYTES = 1 << 30
_MAX_VALUE = 1 << 53  # up to here, doubles hold all integers


@dataclass(frozen=True, slots=True)
class Boxes:
    """Read the boxes of an image's objects, and the values that belong to each, such as its label.

    Boxes follow the crop and the flips of the sample's image. They are clipped to what the result shows of it. Boxes
    that are not visible enough are dropped, with all values of their objects. Without an image that is cropped, boxes
    stay in the pixels of the whole image.

    A file or a cell of text holds JSON, in one of these forms, or with `format="yolo"` the lines of a YOLO label file:

    - a list of boxes, `[[10, 20, 30, 40], ...]`; a fifth number of each is its label;
    - a list of objects, `[{"bbox": [...], "category_id": 3, ...}, ...]`, such as COCO's annotations of one image;
    - lists by name, `{"bbox": [[...], ...], "category": [3, ...], ...}`, as Hugging Face stores objects;
    - a mapping that holds one of these as `"annotations"` or `"objects"`. If it also holds the `"width"` and `"height"`
      of the image that was annotated, boxes are scaled from that size to the image's. If it names the `"format"` of its
      boxes, as `mpload index` does, another one is an error;
    - `null`, which an index of a table holds where a list is missing: there are no objects.

    Coordinates are those of the image as viewers show it, upright, and continuous: the top left pixel covers 0 to 1.

    With `"masks:mask"` in `values`, each object also has the mask of its COCO `segmentation`, polygons or run lengths,
    with the pixels that pycocotools gives it in the whole image; masks follow the crop by nearest neighbour.

    Attributes:
        format: The meaning of a box's four numbers: "xyxy" (left, top, right, bottom), "xywh" (left, top, width and
            height, as in COCO), "cxcywh" (centre, width and height) or "yolo" (these as fractions of the image; beyond
            -0.01 to 1.01, they are an error).
        values: Which values of the objects to return, each with its type: `int`, `float`, `str` or `mask`. For
            `labels`, the usual other names are understood: `label`, `category_id`, `category`, `class`. For `masks`,
            they are `segmentation` and `segments`, which a YOLO file with polygons has.
        keypoints: How the points of each object are read, which is then COCO's flat list `keypoints`, in fractions of
            the image if boxes are; None leaves them out.
        classes: Names of the classes; a label that is a name becomes its position here.
        min_visible: Fraction of a box's area that must be visible, in [0, 1].
        min_side: Length in pixels of the result that both sides of the visible part must have.
        max_bytes: Size of the largest file that is read.

    Raises:
        ArgumentError: `format` is unknown, or a number is out of range.
    """

    target: ClassVar[str] = "boxes"

    format: BoxFormat = "xyxy"
    _: KW_ONLY
    values: tuple[str, ...] = ("labels:int",)
    classes: tuple[str, ...] = ()
    keypoints: Keypoints | None = None
    min_visible: float = 0.0
    min_side: float = 1.0
    max_bytes: int = 1 << 24

    def __post_init__(self) -> None:
        if self.format not in get_args(BoxFormat):
            known = ", ".join(map(repr, get_args(BoxFormat)))
            raise ArgumentError(f"format must be one of {known}, got {self.format!r}")
        if isinstance(cast("Any", self.values), str):
            raise ArgumentError(f"values must be a tuple, such as ({self.values!r},); got the string {self.values!r}")
        for value in self.values:
            name, _, kind = value.rpartition(":")
            if not name or name in {"boxes", "keypoints"} or kind not in _KINDS:
                raise ArgumentError(f"values must be names with a type, such as 'labels:int', got {value!r}")
        if not 0 <= self.min_visible <= 1:
            raise ArgumentError(f"min_visible must be in [0, 1], got {self.min_visible}")
        if not self.min_side >= 0:
            raise ArgumentError(f"min_side must not be negative, got {self.min_side}")
        _ = self.limits

    @property
    def limits(self) -> Limits:
        """Which files are refused."""
        return Limits(max_bytes=self.max_bytes)

    def __call__(
        self, data: ImageBytes | str, geometry: Geometry | None = None, claim: Claim = unclaimed
    ) -> dict[str, Any]:
        """Return the boxes that are visible, and their objects' values.

        Args:
            data: A file's bytes, or a cell.
            geometry: What the sample shows of its image; None returns all boxes in pixels of the whole image.
            claim: As for `open_image`; called for masks.

        Returns:
            `boxes`, float32 [n, 4]: left, top, right and bottom in pixels of the result. For each of `values`: int64
            [n], float32 [n], a list of `str`, or uint8 [n, height, width] with 1 where the object is. With `keypoints`,
            also these, float32 [n, k, 3].

        Raises:
            DecodeError: `data` does not list such objects.
        """
        if len(data) > self.max_bytes:
            self.limits.check_bytes(len(data))
        objects = self._parsed(data)
        corners = self._corners(objects, geometry)
        found, is_visible = self._visible(corners, geometry)
        kept = np.flatnonzero(is_visible)
        result: dict[str, Any] = {"boxes": found[kept].astype(np.float32)}
        for value in self.values:
            name, _, kind = value.rpartition(":")
            column = objects.column(name)
            if kind == "mask":
                result[name] = self._masks(column, kept, objects, geometry, claim)
            else:
                result[name] = self._column(name, kind, column, kept)
        if self.keypoints is not None:
            result["keypoints"] = self._points(self.keypoints, objects, kept, geometry)
        return result

    def _parsed(self, data: ImageBytes | str) -> Objects:
        if self.format == "yolo":
            text = text_of(data)
            return parse_objects(text) if holds_json(text) else parse_yolo(text)
        try:
            return parse_objects(data)
        except DecodeError as error:
            if is_yolo(data):
                raise DecodeError(f'{error}. It looks like a YOLO label file: pass format="yolo" to Boxes') from error
            raise

    def _corners(self, objects: Objects, geometry: Geometry | None) -> NDArray[np.float64]:
        """Return left, top, right and bottom in pixels of the geometry's image, float64 [n, 4]."""
        corners = box_corners(objects, self.format)
        across, down = self._scale(objects, geometry)
        return corners if across == down == 1 else corners * np.array((across, down, across, down))

    def _scale(self, objects: Objects, geometry: Geometry | None) -> tuple[float, float]:
        if self.format != "yolo":
            return scale_between(objects.size, geometry)
        if geometry is not None:
            return geometry.width, geometry.height
        if objects.size is None:
            raise DecodeError("boxes that are fractions of an image need the image: decode a column of images too")
        return objects.size[1], objects.size[0]

    def _visible(
        self, corners: NDArray[np.float64], geometry: Geometry | None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the boxes in pixels of the result, clipped to what it shows, and which of them are visible enough."""
        if geometry is None:
            return corners, (corners[:, 2:] - corners[:, :2]).min(axis=1) >= self.min_side
        whole = np.sort(geometry.points(corners.reshape(-1, 2, 2)), axis=1)
        left, top, right, bottom = geometry.shown_area()
        found = np.minimum(np.maximum(whole, (left, top)), (right, bottom))
        lengths = found[:, 1] - found[:, 0]
        shorter = lengths.min(axis=1)
        is_visible = (shorter > 0) & (shorter >= self.min_side)
        if self.min_visible > 0:
            areas, shown = (whole[:, 1] - whole[:, 0]).prod(axis=1), lengths.prod(axis=1)
            is_visible &= shown >= self.min_visible * areas
        return found.reshape(-1, 4), is_visible

    def _column(self, name: str, kind: str, column: Sequence[Any], kept: NDArray[np.intp]) -> Any:
        if name == "labels" and self.classes:
            column = [self._number(value) for value in column]
        if kind == "str":
            if not all(isinstance(value, str) for value in column):
                raise DecodeError(f"{name!r} must be a string for each object")
            return [column[place] for place in kept]
        return _numbers(name, kind, column)[kept]

    def _masks(
        self,
        column: Sequence[Any],
        kept: NDArray[np.intp],
        objects: Objects,
        geometry: Geometry | None,
        claim: Claim,
    ) -> NDArray[np.uint8]:
        """Return the masks of the objects that are kept, uint8 [n, height, width]."""
        size = objects.size
        if geometry is None:
            if size is None:
                raise DecodeError("masks of objects need the size of their image: decode a column of images too")
            geometry = Geometry.whole(*size)
        scale = (1.0, 1.0)
        if self.format == "yolo":
            size, scale = None, (geometry.width, geometry.height)
        shape = len(kept), *geometry.output_size
        if math.prod(shape) > _MAX_MASK_BYTES:
            raise DecodeError(f"masks {list(shape)} are more than {_MAX_MASK_BYTES:,} bytes")
        claim(math.prod(shape))
        masks = np.zeros(shape, np.uint8)
        for mask, place in zip(masks, kept, strict=True):
            draw_segment(mask, column[place], geometry, size=size, scale=scale)
        return masks

    def _points(
        self, decode: Keypoints, objects: Objects, kept: NDArray[np.intp], geometry: Geometry | None
    ) -> NDArray[np.float32]:
        """Return the points of the objects that are kept, float32 [n, k, 3]."""
        column = objects.column("keypoints")
        length = max((len(points) for points in column if isinstance(points, list)), default=0)
        unknown = [0] * length  # of an object without points
        numbers = finite([unknown if points == [] else points for points in column], (None, None), "keypoints")
        if numbers.shape[1] % 3:
            raise DecodeError(f"keypoints must be x, y and visibility of each; got {numbers.shape[1]} numbers")
        points = numbers.reshape(len(numbers), numbers.shape[1] // 3, 3)[kept]
        check_visibility(points)
        return move_points(decode, points, self._scale(objects, geometry), geometry)

    def _number(self, label: object) -> object:
        if not isinstance(label, str):
            return label
        if label not in self.classes:
            raise DecodeError(f"the label {label!r} is not one of classes={self.classes}")
        return self.classes.index(label)


def box_corners(objects: Objects, box_format: str) -> NDArray[np.float64]:
    """Return left, top, right and bottom of boxes, float64 [n, 4], in the unit that they have.

    Raises:
        DecodeError: The objects say that their format is another one. A box has a negative width or height, or it must
            be in fractions of the image and is not.
    """
    if objects.format not in {None, box_format}:
        raise DecodeError(f'the boxes are "{objects.format}", says their JSON: pass Boxes("{objects.format}")')
    first, second = objects.boxes[:, :2], objects.boxes[:, 2:]
    if box_format in {"cxcywh", "yolo"}:
        first = first - second / 2
    corners = np.concatenate([first, second if box_format == "xyxy" else first + second], axis=1)
    is_negative = corners[:, 2:] < corners[:, :2]
    if is_negative.any():
        number = int(np.flatnonzero(is_negative.any(axis=1))[0])
        raise DecodeError(
            f"box {number} has a negative width or height: {objects.boxes[number].tolist()} as {box_format}. Pass the "
            "format of the boxes"
        )
    if box_format == "yolo":
        is_outside = (objects.boxes < MIN_FRACTION) | (objects.boxes > MAX_FRACTION)
        if is_outside.any():
            number = int(np.flatnonzero(is_outside.any(axis=1))[0])
            raise DecodeError(f"box {number} has {fraction_fault(objects.boxes[number].tolist())}")
    return corners


def _numbers(name: str, kind: str, column: Sequence[Any]) -> NDArray[Any]:
    """Return a value per object, int64 or float32 [n]."""
    dtype = np.int64 if kind == "int" else np.float32
    try:
        found = np.asarray(column)
    except (ValueError, OverflowError):  # lists of different lengths
        found = np.asarray(None)
    if not len(column):
        return np.empty(0, dtype)
    is_number = found.ndim == 1 and found.dtype.kind in "biuf"
    if is_number and found.dtype != dtype:
        is_number = bool(np.abs(found).max() <= _MAX_VALUE) and (
            kind == "float" or np.array_equal(np.trunc(found), found)
        )
    if not is_number:
        hint = " Pass classes= to Boxes if they are names" if found.dtype.kind == "U" else ""
        raise DecodeError(f"{name!r} must be one {kind} for each object.{hint}")
    return found.astype(dtype)
