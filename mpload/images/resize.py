"""What part of an image a result shows, and how its pixels are mixed: by OpenCV, or by a triangle filter in NumPy."""

import math
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from mpload.images.claims import Claim, unclaimed

__all__ = ["Box", "Pixels", "View", "resize_into"]

Pixels = NDArray[np.uint8]


class Box(NamedTuple):
    """A rectangle of whole pixels in an image, as it is shown (EXIF orientation applied)."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: Pixels) -> Pixels:
        """Return the view of `pixels`, [H, W, 3], that the box frames."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


class View(NamedTuple):
    """What a result shows of an image: `box` is resized to `full`, the part `window` of that is cut out, and mirrored.

    Attributes:
        box: In the image.
        full: Height and width that the box is resized to.
        window: In what results; the whole of it where None.
        mirror: Left to right.
        antialias: Where it shrinks, mix all pixels that one of the result covers (a triangle filter, as Pillow's and
            torchvision's); else the four around its centre.
    """

    box: Box
    full: tuple[int, int]
    window: Box | None = None
    mirror: bool = False
    antialias: bool = False

    @property
    def shown(self) -> Box:
        """The window, or all."""
        return self.window or Box(top=0, left=0, height=self.full[0], width=self.full[1])


_FILTER_BYTES = 40
"""What the filter takes for each row of the result and column of what it is made of, in float32 and in between."""


def resize_into(out: Pixels, region: Pixels, view: View, *, claim: Claim = unclaimed) -> None:
    """Write what `view` shows into `out`, C-contiguous uint8 [height, width, 3] of the view's window.

    Args:
        out: where to.
        region: the pixels of the view's box, uint8 [h, w, 3], perhaps at a smaller scale.
        view: what to show; its `box` is ignored.
        claim: called with a number of bytes before so much memory is taken.
    """
    height, width = view.full
    if view.antialias and (region.shape[0] > height or region.shape[1] > width):
        claim(_FILTER_BYTES * view.shown.height * region.shape[1])
        _filter_into(out, region, view)
    elif view.window is None:
        cv2.resize(region, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    else:  # Resized whole and then cut: a source region of whole pixels would be off by up to half a pixel.
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
