"""Turns the outlines of objects, as COCO stores them, into masks of pixels: the same as those of pycocotools."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.geometry import Geometry
from mpload.images.limits import Limits
from mpload.images.mask import check_ratio, check_shape
from mpload.samples.objects import finite, shortened

__all__ = ["decode_counts", "draw_segment"]

_STEPS: Final = 5
"""Outlines are drawn at this many times the image's resolution, as in pycocotools."""
_MAX_STEPS: Final = 1 << 21
"""Bounds the memory for an outline, some 60 bytes a step."""


def draw_segment(
    out: NDArray[np.uint8],
    segment: Any,
    geometry: Geometry,
    *,
    size: tuple[int, int] | None = None,
    scale: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Set the pixels of a result to 1 where the geometry shows an object.

    Args:
        out: The result, uint8 [h, w] of the geometry's output size.
        segment: COCO's `segmentation`: a list of polygons, each `[x, y, x, y, ...]`; or run lengths, a mapping of
            `size`, height and width, and `counts`, a list or a compressed string.
        geometry: What the sample shows of the image.
        size: Height and width of the image that was annotated; None for that of the geometry.
        scale: What x and y of polygons are multiplied with to get pixels of that image.

    Raises:
        DecodeError: The segment is damaged, or too large. Or the ratio of width to height of run lengths is not that
            of the image.
    """
    view = geometry.view
    out = out[:: -1 if geometry.upside_down else 1, :: -1 if view.mirror else 1]
    plain = replace(geometry, upside_down=False, view=view._replace(mirror=False))
    if isinstance(segment, dict):
        mask = _mask_of_runs(segment)
        if size is None:
            check_shape(mask.shape[0], mask.shape[1], geometry)
        else:
            check_ratio(mask.shape[0], mask.shape[1], image_size=size)
        rows, columns = plain.nearest(*mask.shape)
        shown = _inside(rows), _inside(columns)
        out[shown] = mask[np.ix_(rows[shown[0]], columns[shown[1]])]
        return
    if not isinstance(segment, list):
        raise DecodeError(f"a segmentation must be polygons or run lengths, got {shortened(segment)}")
    height, width = size or (geometry.height, geometry.width)
    _check_size(height, width)
    rows, columns = plain.nearest(height, width)
    shown = _inside(rows), _inside(columns)
    for polygon in segment:
        numbers = finite(polygon, (None,), "a polygon")
        if len(numbers) % 2:
            raise DecodeError(f"a polygon must be x and y of each point, got {len(numbers)} numbers")
        borders = _borders(numbers.reshape(-1, 2) * scale, height, width)
        _fill(out[shown], borders, rows[shown[0]], columns[shown[1]])


def _inside(places: NDArray[np.int64]) -> slice:
    """Return which rows or columns of an unflipped result show something of the image: all but some at the ends."""
    inside = np.flatnonzero(places >= 0)
    return slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 0)


def _fill(
    out: NDArray[np.uint8],
    borders: tuple[NDArray[np.int64], NDArray[np.int64]],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> None:
    """Set the pixels inside an outline to 1.

    Args:
        out: The result, uint8 [h, w].
        borders: The columns of the image in which the outline is crossed, and the first row after each crossing.
        rows: The row of the image that each row of the result shows, int64 [h], ascending.
        columns: Its column for each column of the result, int64 [w], ascending.
    """
    first, end = np.searchsorted(columns, borders[0]), np.searchsorted(columns, borders[0], "right")
    num_copies = end - first  # an enlarged image shows each of its columns several times
    if not num_copies.any():
        return
    column = np.repeat(first - np.cumsum(num_copies) + num_copies, num_copies) + np.arange(num_copies.sum())
    row = np.repeat(np.searchsorted(rows, borders[1]), num_copies)
    low, high = int(column.min()), int(column.max()) + 1
    # A pixel is inside if the number of crossings above it is odd. Crossings below the last row get a row of their own.
    num_rows = len(rows) + 1
    crossings = np.bincount((column - low) * num_rows + row, minlength=(high - low) * num_rows)
    odd = (crossings & 1).astype(np.uint8).reshape(high - low, num_rows)
    out[:, low:high] |= np.bitwise_xor.accumulate(odd, axis=1)[:, :-1].T


def _check_size(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > Limits().max_pixels:
        raise DecodeError(f"a segmentation of {width}x{height} pixels is empty or larger than {Limits().max_pixels:,}")


def _borders(points: NDArray[np.float64], height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the outline of a polygon is crossed, going down the columns of the image.

    This does what pycocotools' `rleFrPoly` does.

    Args:
        points: x and y of the corners, float64 [n, 2].
        height: The image's height in pixels.
        width: The image's width in pixels.

    Returns:
        The column and the first row after each crossing, both int64 [m]; the row is `height` below the image.
    """
    corners = np.trunc(points * _STEPS + 0.5).astype(np.int64)
    corners = np.concatenate([corners, corners[:1]])
    start, lengths = corners[:-1], np.abs(np.diff(corners, axis=0))
    is_flat = lengths[:, 0] >= lengths[:, 1]  # wider than high
    num_steps = lengths.max(axis=1)
    if num_steps.sum() > _MAX_STEPS:
        raise DecodeError(f"a polygon is {num_steps.sum() // _STEPS:,} pixels long, more than {_MAX_STEPS // _STEPS:,}")
    edge = np.repeat(np.arange(len(start)), num_steps + 1)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(num_steps + 1) - num_steps - 1, num_steps + 1)
    # Each edge is drawn from the end with the smaller coordinate along its longer side, and then listed in its order.
    along = np.where(is_flat, 0, 1)
    number = np.arange(len(start))
    is_backwards = corners[:-1][number, along] > corners[1:][number, along]
    low = np.where(is_backwards[:, None], corners[1:], corners[:-1])
    high = np.where(is_backwards[:, None], corners[:-1], corners[1:])
    slope = (high - low)[number, 1 - along] / np.maximum(1, num_steps)
    step = np.where(is_backwards[edge], num_steps[edge] - step, step)
    main = low[number, along][edge] + step
    other = np.trunc(low[number, 1 - along][edge] + slope[edge] * step + 0.5).astype(np.int64)
    x, y = np.where(is_flat[edge], main, other), np.where(is_flat[edge], other, main)
    moves = np.flatnonzero(x[1:] != x[:-1]) + 1
    column, remainder = np.divmod(np.where(x[moves] < x[moves - 1], x[moves], x[moves] - 1) - _STEPS // 2, _STEPS)
    is_inside = (remainder == 0) & (column >= 0) & (column < width)
    row = -(-(np.minimum(y[moves], y[moves - 1]) - _STEPS // 2) // _STEPS)
    return column[is_inside], row.clip(0, height)[is_inside]


def _mask_of_runs(segment: Mapping[str, Any]) -> NDArray[np.uint8]:
    height, width = (int(side) for side in finite(segment.get("size"), (2,), "the size of run lengths"))
    _check_size(height, width)
    counts = segment.get("counts")
    if isinstance(counts, str):
        runs = decode_counts(counts)
    else:
        runs = finite(counts, (None,), "the counts of run lengths").astype(np.int64)
    if (runs < 0).any() or int(runs.sum()) != height * width:
        raise DecodeError(f"the counts of run lengths must be {height * width:,} pixels, got {int(runs.sum()):,}")
    values = (np.arange(len(runs)) & 1).astype(np.uint8)
    return np.repeat(values, runs).reshape(width, height).T


def decode_counts(text: str) -> NDArray[np.int64]:
    """Return the run lengths in a string of pycocotools, int64 [n].

    Each number is stored in groups of 5 bits, the lowest first, as the difference to the one before the previous one.

    Raises:
        DecodeError: It is not such a string.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64) - 48
    if len(codes) and (codes.min() < 0 or codes.max() > 63 or codes[-1] & 32):
        raise DecodeError(f"the counts of run lengths are damaged: {shortened(text)}")
    ends = np.flatnonzero(codes < 32)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    place = np.arange(len(codes)) - np.repeat(starts, ends - starts + 1)
    if len(place) and place.max() > 7:
        raise DecodeError("the counts of run lengths are damaged: a number has more than 40 bits")
    if not len(ends):
        return np.empty(0, np.int64)
    numbers = np.add.reduceat((codes & 31) << (5 * place), starts)
    is_negative = (codes[ends] & 16) > 0
    numbers -= is_negative.astype(np.int64) << (5 * (place[ends] + 1))
    for first in (1, 2):
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers
