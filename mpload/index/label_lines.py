"""The lines of YOLO's label files. Each is an object: its class, then its box or polygon in fractions of the image.

In files for poses, each line has keypoints after its box. Only the dataset's YAML file says so, as `kpt_shape`, because
such a line looks like one with a polygon.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mpload.errors import DecodeError

__all__ = [
    "MAX_FRACTION",
    "MIN_FRACTION",
    "KeypointShape",
    "LabelLine",
    "fraction_fault",
    "is_label_line",
    "read_label_line",
]

MIN_FRACTION, MAX_FRACTION = -0.01, 1.01
"""Between these are centres, sides and keypoints. As in Ultralytics, there is 1 % of room for rounding."""
_MAX_NUMBER = 1e9
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
"""What float() reads, without underscores, infinity and NaN."""
_NAMES = ("centre x", "centre y", "width", "height")
_SIDES = ("width", "height")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeypointShape:
    """The keypoints in a line, as `kpt_shape` gives them."""

    num_points: int
    numbers_per_point: int
    """2 for x and y, 3 if a visibility follows."""

    def __post_init__(self) -> None:
        if self.num_points < 1 or self.numbers_per_point not in {2, 3}:
            raise ValueError(f"keypoints must be at least one, of 2 or 3 numbers each, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelLine:
    """An object. Coordinates are fractions of the image's width and height."""

    label: int
    box: Sequence[float]
    """x and y of the centre, width, height."""
    polygon: Sequence[float] = ()
    """x and y of each corner; empty if the line has only a box."""
    keypoints: Sequence[float] = ()
    """x, y and COCO's visibility of each keypoint; empty if none were expected."""


def read_label_line(line: str, keypoints: KeypointShape | None = None) -> LabelLine:
    """Read a line that is not blank.

    Args:
        line: the line.
        keypoints: which keypoints follow the box; None if more than four numbers are a polygon.

    Raises:
        DecodeError: the line breaks the format, or a number is out of range. The message goes on after the words
            "line 3 of the boxes".
    """
    words = line.split()
    if keypoints is not None:
        num_wanted = 5 + keypoints.num_points * keypoints.numbers_per_point
        if len(words) != num_wanted:
            raise DecodeError(
                f"must have {num_wanted} numbers, a class, a box and {keypoints.num_points} keypoints of "
                f"{keypoints.numbers_per_point} numbers, as kpt_shape says, but has {len(words)}: {line!r:.80}"
            )
    elif len(words) < 5 or not len(words) % 2:
        raise _malformed(line)
    if not all(map(_NUMBER.fullmatch, words)):
        raise _malformed(line)
    label, *numbers = map(float, words)
    if max(map(abs, (label, *numbers))) > _MAX_NUMBER:
        raise DecodeError(f"has a number beyond {_MAX_NUMBER:.0e}: {line!r:.80}")
    if label < 0 or label != int(label):
        raise DecodeError(f"has class {words[0]}, but classes are whole numbers from 0: {line!r:.80}")
    if keypoints is None and len(numbers) > 4:
        box = _box_around(numbers)
        if (fault := fraction_fault(box)) is not None:
            raise DecodeError(
                f"has a polygon with {fault}: {line!r:.80}. If these are keypoints, index the folder with a data.yaml "
                "that names their kpt_shape"
            )
        return LabelLine(label=int(label), box=box, polygon=numbers)
    box = numbers[:4]
    if min(box[2:]) < 0:
        raise DecodeError(f"has a negative width or height: {line!r:.80}")
    if (fault := fraction_fault(box)) is not None:
        raise DecodeError(f"has {fault}: {line!r:.80}")
    return LabelLine(
        label=int(label), box=box, keypoints=() if keypoints is None else _points(line, numbers, keypoints)
    )


def fraction_fault(box: Sequence[float]) -> str | None:
    """Return which number of a box is no fraction, and what it should be; None if all are fractions.

    Args:
        box: centre x, centre y, width and height.
    """
    for number, value in enumerate(box):
        if not MIN_FRACTION <= value <= MAX_FRACTION:
            return (
                f"{_NAMES[number]} {value:g}, which must be a fraction of the image's {_SIDES[number % 2]}, from 0 to 1"
            )
    return None


def is_label_line(line: str) -> bool:
    """Whether a line consists of at least five numbers, which may be out of range."""
    words = line.split()
    return len(words) >= 5 and all(map(_NUMBER.fullmatch, words))


def _malformed(line: str) -> DecodeError:
    return DecodeError(f"must be a class, then centre x, centre y, width and height, got {line!r:.80}")


def _box_around(polygon: Sequence[float]) -> list[float]:
    x, y = polygon[::2], polygon[1::2]
    return [(min(x) + max(x)) / 2, (min(y) + max(y)) / 2, max(x) - min(x), max(y) - min(y)]


def _points(line: str, numbers: Sequence[float], shape: KeypointShape) -> list[float]:
    """Return x, y and visibility of each keypoint. Without a visibility, 0 0 is a point that is not known."""
    found: list[float] = []
    for start in range(4, len(numbers), shape.numbers_per_point):
        x, y, *others = numbers[start : start + shape.numbers_per_point]
        visibility = others[0] if others else 2 * bool(x or y)
        if min(x, y, visibility) < MIN_FRACTION or max(x, y) > MAX_FRACTION:
            raise DecodeError(
                f"has the keypoint {[x, y, *others]}, whose x and y must be fractions of the image, from 0 to 1, and "
                f"whose visibility must be 0, 1 or 2: {line!r:.80}"
            )
        found += x, y, int(visibility) if visibility == int(visibility) else visibility
    return found
