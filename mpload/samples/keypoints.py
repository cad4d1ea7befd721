"""`Keypoints`: points in an image, such as joints and landmarks, which follow the sample's crop and flips."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.images.geometry import Geometry
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.samples.objects import finite, parse_json, scale_between, stated_size

__all__ = ["Keypoints", "check_visibility", "listed_points", "move_points"]

MAX_VISIBILITY = 2
"""Of a point that can be seen."""


@dataclass(frozen=True, slots=True)
class Keypoints:
    """Read points of an image, which follow the crop and the flips of the sample's image.

    A file or a cell of text holds JSON: a list of points, `[[x, y], ...]` or `[[x, y, visibility], ...]`; COCO's flat
    list `[x, y, visibility, x, ...]`; or a mapping that holds one of these as `"keypoints"` or `"points"`. If it also
    holds the `"width"` and `"height"` of the image that was annotated, points are scaled from that size.

    The visibility is COCO's: 0 for a point that is not known, 1 for a hidden and 2 for a visible one, also of
    a point without a visibility. Points outside of what the result shows get 0. All points with 0 lie at 0, 0.

    Coordinates are those of the image as viewers show it, upright, and continuous: the top left pixel covers 0 to 1.

    Attributes:
        flip_pairs: Places in the list of points that swap their names when the image is mirrored, such as those of the
            left and the right eye.
        offset: Number added to each x and y that is read: 0.5 if they are the indexes of pixels, as in COCO.
        max_bytes: Size of the largest file that is read.

    Raises:
        ArgumentError: A point is in several pairs, or its place is negative.
    """

    target: ClassVar[str] = "keypoints"

    _: KW_ONLY
    flip_pairs: tuple[tuple[int, int], ...] = ()
    offset: float = 0.0
    max_bytes: int = 1 << 24

    def __post_init__(self) -> None:
        places = [place for pair in self.flip_pairs for place in pair]
        if len(set(places)) < len(places) or len(places) != 2 * len(self.flip_pairs) or min(places, default=0) < 0:
            raise ArgumentError(f"flip_pairs must be pairs of places, each place once, got {self.flip_pairs}")
        _ = self.limits

    @property
    def limits(self) -> Limits:
        """Which files are refused."""
        return Limits(max_bytes=self.max_bytes)

    def __call__(self, data: ImageBytes | str, geometry: Geometry | None = None) -> NDArray[np.float32]:
        """Return the points, float32 [n, 3]: x and y in pixels of the result, and the visibility.

        Args:
            data: A file's bytes, or a cell.
            geometry: What the sample shows of its image; None returns the points in pixels of the whole image.

        Raises:
            DecodeError: `data` is no such list of points, or lacks one of `flip_pairs`.
        """
        if len(data) > self.max_bytes:
            self.limits.check_bytes(len(data))
        parsed, scale = parse_json(data), (1.0, 1.0)
        if isinstance(parsed, dict):
            name = next((name for name in ("keypoints", "points") if name in parsed), None)
            if name is None:
                raise DecodeError(f"the JSON has neither 'keypoints' nor 'points', only {list(parsed)[:10]}")
            parsed, scale = parsed[name], scale_between(stated_size(parsed), geometry)
        return move_points(self, listed_points(parsed), scale, geometry)


def check_visibility(points: NDArray[np.float64]) -> None:
    """Refuse flat lists of x and y alone, which would be taken for other points.

    Args:
        points: x, y and visibility of points, float64 [..., n, 3].

    Raises:
        DecodeError: A visibility is not between 0 and 2.
    """
    visibility = points[..., 2]
    wrong = visibility[(visibility < 0) | (visibility > MAX_VISIBILITY)]
    if wrong.size:
        raise DecodeError(
            f"each third number of a flat list is a visibility, 0 to {MAX_VISIBILITY}, got {wrong[0]:g}. Write points "
            "without one as pairs: [[x, y], ...]"
        )


def move_points(
    decode: Keypoints, points: NDArray[np.float64], scale: tuple[float, float], geometry: Geometry | None
) -> NDArray[np.float32]:
    """Return points where the result shows them, float32 [..., n, 3].

    Args:
        decode: Tells what the coordinates mean, and which points swap their names.
        points: x, y and visibility of points of the image, float64 [..., n, 3].
        scale: What x and y are multiplied with to get pixels of the image.
        geometry: What the sample shows of its image; None for the whole image.

    Raises:
        DecodeError: There are too few points for `flip_pairs`.
    """
    xy, visibility = (points[..., :2] + decode.offset) * scale, points[..., 2]
    if geometry is not None:
        xy = geometry.points(xy)
        left, top, right, bottom = geometry.shown_area()
        visibility = np.where(((xy >= (left, top)) & (xy <= (right, bottom))).all(axis=-1), visibility, 0)
    found = np.concatenate([xy, visibility[..., None]], axis=-1)
    found[visibility <= 0] = 0
    if geometry is not None and geometry.view.mirror != geometry.upside_down:
        found = _swapped(found, decode.flip_pairs)
    return found.astype(np.float32)


def _swapped(points: NDArray[np.float64], pairs: tuple[tuple[int, int], ...]) -> NDArray[np.float64]:
    if not points.size:  # an image without objects, or objects without points: there is nothing to swap
        return points
    order = np.arange(points.shape[-2])
    for one, other in pairs:
        if max(one, other) >= len(order):
            raise DecodeError(f"flip_pairs has ({one}, {other}), but there are {len(order)} points")
        order[[one, other]] = other, one
    return points[..., order, :]


def listed_points(parsed: Any) -> NDArray[np.float64]:
    """Return the points of a list of any of the usual forms, float64 [n, 3].

    Raises:
        DecodeError: It is not a list of points.
    """
    if not isinstance(parsed, list) or not parsed:
        return finite(parsed, (None, 3), "points")
    if not isinstance(parsed[0], list):
        numbers = finite(parsed, (None,), "points")
        if len(numbers) % 3:
            raise DecodeError(f"a flat list of points is x, y and visibility of each; got {len(numbers)} numbers")
        points = numbers.reshape(-1, 3)
        check_visibility(points)
        return points
    if len(parsed[0]) == 3:
        return finite(parsed, (None, 3), "points")
    points = finite(parsed, (None, 2), "points")
    return np.concatenate([points, np.full((len(points), 1), float(MAX_VISIBILITY))], axis=1)
