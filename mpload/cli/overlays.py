"""Draws the masks and objects of a sample over its photo, for a contact sheet."""

import colorsys
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from mpload.cli.lettering import Lettering
from mpload.images.resize import Pixels
from mpload.index.label_lines import read_label_line

__all__ = ["draw_mask", "draw_objects", "mask_in"]

_PALETTE = 3  # colour type of PNG
_OPACITY = 0.5
_MAX_MASK_PIXELS = 1 << 26
_GOLDEN = 0.618033988749895
_NAME_HEIGHT, _NAME_BASE, _NAME_INDENT = 20, 15, 3  # of a class name, before it is scaled
_NAME_SHARE = 1 / 12  # of the longer side of an image, for the height of a name


def mask_in(data: bytes) -> NDArray[Any] | None:
    """Return the mask in an image file: ids [H, W], or a palette's colours, RGB [H, W, 3]; None if it is a photo."""
    try:
        found: NDArray[Any] | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    if found is None or found.dtype != np.uint8:
        return None
    if found.ndim == 2:
        return found
    has_palette = data.startswith(b"\x89PNG") and data[25:26] == bytes([_PALETTE])
    return found[..., 2::-1] if has_palette else None


def draw_mask(image: Pixels, mask: NDArray[Any]) -> None:
    """Tint the pixels of an image, uint8 RGB [H, W, 3], where a mask is not 0. The mask may have another size."""
    small = cv2.resize(mask, (image.shape[1], image.shape[0]), interpolation=cv2.INTER_NEAREST)
    if small.ndim == 2:
        small = np.array([_colour(number) for number in range(256)], np.uint8)[small] * (small > 0)[..., None]
    where = small.any(axis=2)
    image[where] = (image[where] * (1 - _OPACITY) + small[where] * _OPACITY).astype(np.uint8)


def draw_objects(
    image: Pixels, text: str, *, height: int, width: int, names: Sequence[str], lettering: Lettering
) -> None:
    """Draw boxes and segments on an image, uint8 RGB [H, W, 3].

    Args:
        image: the image, which may be smaller than the original.
        text: objects as `mpload index` writes them: JSON with `boxes`, [x, y, w, h] or as its `format` says, or the
            text of YOLO.
        height: height of the original.
        width: width of the original.
        names: the names of the classes, which are written into the boxes; empty if they are not known.
        lettering: writes them. A name that it cannot write is shown as its number.

    Raises:
        ValueError: `text` is something else.
    """
    scale = np.array([image.shape[1] / width, image.shape[0] / height])
    named: list[tuple[str, tuple[int, int], tuple[int, int, int]]] = []
    for each in _objects(text, height=height, width=width):
        colour = _colour(each.label + 1)
        tinted = image.copy()
        for polygon in each.polygons:
            points = np.clip(np.array(polygon).reshape(-1, 2) * scale, -1e4, 1e4).round().astype(np.int32)
            cv2.fillPoly(tinted, [points], colour)
        image[:] = cv2.addWeighted(image, 1 - _OPACITY, tinted, _OPACITY, 0)
        if each.mask is not None:
            draw_mask(image, each.mask * np.uint8((each.label + 1) % 255 + 1))
        left, top = np.clip(np.array(each.box[:2]) * scale, -1e4, 1e4).round().astype(int).tolist()
        right, bottom = np.clip((np.array(each.box[:2]) + each.box[2:]) * scale, -1e4, 1e4).round().astype(int).tolist()
        cv2.rectangle(image, (left, top), (right, bottom), colour, 2)
        if 0 <= each.label < len(names):
            name = names[each.label] if lettering.has(names[each.label]) else str(each.label)
            named.append((name, (left, top), colour))
    for name, place, colour in named:
        _write_name(image, name, place, colour, lettering)


def _write_name(
    image: Pixels, name: str, place: tuple[int, int], colour: tuple[int, int, int], lettering: Lettering
) -> None:
    """Write a name on a dark strip, whose top left corner is at `place` or at the border of the image."""
    factor = max(image.shape[:2]) * _NAME_SHARE / _NAME_HEIGHT
    left, top = max(0, place[0]), max(0, place[1])
    if left >= image.shape[1] or top >= image.shape[0]:
        return
    strip = np.zeros((_NAME_HEIGHT, max(4 * _NAME_HEIGHT, round(image.shape[1] / factor)), 3), np.uint8)
    lettering.write(strip, name, row=_NAME_BASE, colour=colour, indent=_NAME_INDENT)
    length = int(np.flatnonzero(strip.any(axis=(0, 2))).max(initial=0)) + _NAME_INDENT
    size = max(1, round(length * factor)), max(1, round(_NAME_HEIGHT * factor))
    shown = cv2.resize(strip[:, :length], size, interpolation=cv2.INTER_AREA)
    part = image[top : top + size[1], left : left + size[0]]
    part[:] = shown[: part.shape[0], : part.shape[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    box: list[float]
    """x, y, width and height in pixels."""
    label: int
    polygons: list[list[float]]
    mask: NDArray[np.uint8] | None = None


def _objects(text: str, *, height: int, width: int) -> Iterator[_Object]:
    size = [width, height]
    if not text.lstrip().startswith(("{", "[")):
        for line in filter(str.strip, text.splitlines()):
            found = read_label_line(line)
            polygons = [_scaled(found.polygon, size)] if found.polygon else []
            yield _Object(box=_in_pixels(found.box, size), label=found.label, polygons=polygons)
        return
    try:
        document = json.loads(text)
        boxes = document["boxes"]
        factors = [width / document.get("width", width), height / document.get("height", height)]
        are_fractions = document.get("format") == "yolo"
        labels = document.get("labels") or [0] * len(boxes)
        segments = document.get("segments") or [[]] * len(boxes)
        for box, label, segment in zip(boxes, labels, segments, strict=True):
            polygons, mask = ([], _decoded(segment)) if isinstance(segment, dict) else (segment, None)
            yield _Object(
                box=_in_pixels(_checked(box, 4), size)
                if are_fractions
                else _checked(_scaled(_checked(box, 4), factors)),
                label=int(label),
                polygons=[_scaled(_checked(polygon), size if are_fractions else factors) for polygon in polygons],
                mask=mask,
            )
    except (TypeError, KeyError, AttributeError, ZeroDivisionError, OverflowError, RecursionError, IndexError) as error:
        raise ValueError(f"not objects: {error}") from error


def _scaled(numbers: Sequence[float], factors: Sequence[float]) -> list[float]:
    """Return x, y, ... multiplied with the factors for x and y."""
    scaled: list[float] = (np.array(numbers).reshape(-1, 2) * factors).ravel().tolist()
    return scaled


def _in_pixels(box: Sequence[float], size: Sequence[float]) -> list[float]:
    """Return x, y, width and height of a box that YOLO gives by its centre in fractions of the image."""
    x, y, width, height = box
    return _scaled([x - width / 2, y - height / 2, width, height], size)


def _checked(numbers: list[float], count: int | None = None) -> list[float]:
    if not all(math.isfinite(number) for number in numbers) or len(numbers) != (count or len(numbers)):
        raise ValueError("not the numbers of a box or polygon")
    return numbers


def _decoded(segment: dict[str, Any]) -> NDArray[np.uint8]:
    """Return the mask of a run-length encoding, uint8 [H, W], as pycocotools does."""
    height, width = segment["size"]
    counts = segment["counts"]
    if isinstance(counts, str):
        counts = _expanded(counts)
    if not 0 < height * width <= _MAX_MASK_PIXELS or min(counts) < 0 or sum(counts) != height * width:
        raise ValueError("the counts of a segment do not fit its size")
    values = np.arange(len(counts), dtype=np.uint8) % 2
    mask: NDArray[np.uint8] = np.repeat(values, counts).reshape(width, height).T
    return np.ascontiguousarray(mask)


def _expanded(text: str) -> list[int]:
    counts: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if shift > 60:
            raise ValueError("a count of a segment is too large")
        if not bits & 0x20:
            if bits & 0x10:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return counts


def _colour(number: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(number * _GOLDEN % 1, 0.85, 1)
    return round(255 * red), round(255 * green), round(255 * blue)
