"""Draws the masks and objects of a sample over its photo, for a contact sheet."""

import colorsys
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from mpload.images.resize import Pixels

__all__ = ["draw_mask", "draw_objects", "mask_in"]

_PALETTE = 3  # colour type of PNG
_OPACITY = 0.5
_MAX_MASK_PIXELS = 1 << 26
_GOLDEN = 0.618033988749895


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


def draw_objects(image: Pixels, text: str, *, height: int, width: int) -> None:
    """Draw boxes and segments on an image, uint8 RGB [H, W, 3].

    Args:
        image: the image, which may be smaller than the original.
        text: objects as `mpload index` writes them: JSON with `boxes` [x, y, w, h], or the text of YOLO.
        height: height of the original.
        width: width of the original.

    Raises:
        ValueError: `text` is something else.
    """
    scale = np.array([image.shape[1] / width, image.shape[0] / height])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    box: list[float]
    """x, y, width and height in pixels."""
    label: int
    polygons: list[list[float]]
    mask: NDArray[np.uint8] | None = None


def _objects(text: str, *, height: int, width: int) -> Iterator[_Object]:
    if not text.lstrip().startswith(("{", "[")):
        for line in text.splitlines():
            label, *numbers = map(float, line.split())
            if len(numbers) == 4:
                x, y, w, h = numbers
                yield _Object(
                    box=_checked([(x - w / 2) * width, (y - h / 2) * height, w * width, h * height], 4),
                    label=int(label),
                    polygons=[],
                )
        return
    try:
        document = json.loads(text)
        boxes = document["boxes"]
        factors = np.array([width / document.get("width", width), height / document.get("height", height)])
        labels = document.get("labels") or [0] * len(boxes)
        segments = document.get("segments") or [[]] * len(boxes)
        for box, label, segment in zip(boxes, labels, segments, strict=True):
            polygons, mask = ([], _decoded(segment)) if isinstance(segment, dict) else (segment, None)
            yield _Object(
                box=_checked((np.array(_checked(box, 4)) * np.tile(factors, 2)).tolist(), 4),
                label=int(label),
                polygons=[
                    (np.array(_checked(polygon)).reshape(-1, 2) * factors).ravel().tolist() for polygon in polygons
                ],
                mask=mask,
            )
    except (TypeError, KeyError, AttributeError, ZeroDivisionError, OverflowError, RecursionError, IndexError) as error:
        raise ValueError(f"not objects: {error}") from error


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
