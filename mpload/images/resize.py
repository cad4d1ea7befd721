"""Views of images and how they are resized: by OpenCV, or with a triangle filter in NumPy."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpload.images.claims import Claim, unclaimed
from mpload.images.opencv import cv2

__all__ = ["Box", "Pixels", "View", "resize_into"]

Pixels = NDArray[np.uint8]


class Box(NamedTuple):
    """A rectangle of whole pixels in an image, after its EXIF orientation was applied."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: Pixels) -> Pixels:
        """Return the part of `pixels`, [H, W, 3], that is inside the box, without a copy."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


class View(NamedTuple):
    """A view of an image: `box` is resized to `full`, then `window` is cut out of the result and perhaps mirrored.

    Attributes:
        box: The region of the image.
        full: Height and width that the box is resized to.
        window: The region of the resized box that is kept; None keeps all of it.
        mirror: Mirror the result left to right.
        antialias: When downsizing, average all pixels that a pixel of the result covers (a triangle filter, as in
            Pillow and torchvision), not only the four around its centre.
    """

    box: Box
    full: tuple[int, int]
    window: Box | None = None
    mirror: bool = False
    antialias: bool = False

    @property
    def shown(self) -> Box:
        """The window, or the whole resized box if there is none."""
        return self.window or Box(top=0, left=0, height=self.full[0], width=self.full[1])


_FILTER_BYTES = 40
"""Memory that the filter takes per row of the result and column of the region, for float32 values and temporaries."""


def resize_into(out: Pixels, region: Pixels, view: View, *, claim: Claim = unclaimed) -> None:
    """Resize a region to a view's result.

    Args:
        out: The array to write to, C-contiguous uint8 [height, width, 3] of the view's window.
        region: The pixels of the view's box, uint8 [h, w, 3], perhaps at a smaller scale.
        view: The view; its `box` is ignored.
        claim: Called with a number of bytes before that much memory is allocated.
    """
    height, width = view.full
    if view.antialias and (region.shape[0] > height or region.shape[1] > width):
        claim(_FILTER_BYTES * view.shown.height * region.shape[1])
        _filter_into(out, region, view)
    elif view.window is None:
        cv2.resize(region, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    else:  # Resize first, then cut: cutting the region at whole pixels would be off by up to half a pixel.
        full = cv2.resize(region, (width, height), interpolation=cv2.INTER_LINEAR)
        np.copyto(out, view.window.of(np.asarray(full, np.uint8)))
    if view.mirror:
        cv2.flip(out, 1, dst=out)


def _filter_into(out: Pixels, region: Pixels, view: View) -> None:
    height, width, _ = region.shape
    shown = view.shown
    rows = _mix(region.reshape(height, -1), view.full[0], shown.top, shown.height)
    columns = np.ascontiguousarray(rows.reshape(shown.height, width, 3).transpose(1, 0, 2)).reshape(width, -1)
    mixed = _mix(columns, view.full[1], shown.left, shown.width).reshape(shown.width, shown.height, 3)
    np.copyto(out, np.rint(mixed.transpose(1, 0, 2)), casting="unsafe")


def _mix(rows: NDArray[np.uint8] | NDArray[np.float32], full: int, first: int, count: int) -> NDArray[np.float32]:
    """Return rows `first` to `first + count` of `rows`, [n, m], resized to `full` rows."""
    length = len(rows)
    scale = length / full
    support = max(scale, 1.0)
    centres = (np.arange(first, first + count) + 0.5) * scale
    taps = np.floor(centres - support + 0.5).astype(np.int64)[:, None] + np.arange(2 * math.ceil(support) + 1)
    weights = np.maximum(0, 1 - np.abs(taps + 0.5 - centres[:, None]) / support)
    weights[(taps < 0) | (taps >= length)] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    taps = taps.clip(0, length - 1)
    mixed = np.zeros((count, rows.shape[1]), np.float32)
    for tap in range(taps.shape[1]):
        mixed += rows[taps[:, tap]] * weights[:, tap, None].astype(np.float32)
    return mixed
