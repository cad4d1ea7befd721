"""Decodes the parts of an image that several views show, once for each scale where that takes less time.

The pixels of a view do not depend on that: they are those of `Image.draw`, which decodes the image for each view.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mpload.images.backends import Native, StoredView
from mpload.images.image import Image
from mpload.images.jpeg import Jpeg
from mpload.images.resize import Box, Pixels, View, resize_into

__all__ = ["decoded_once"]


def decoded_once(image: Image, views: Iterable[View]) -> Image:
    """Return the image, prepared to draw these views in less time.

    A JPEG is decoded at the scale that each view needs. Views of one scale share a decoded part, the smallest box
    around them all. The header's numbers tell whether it takes less work to decode each view alone instead.

    Raises:
        DecodeError: The image is damaged or truncated.
    """
    if not isinstance(image, Jpeg):  # it is decoded already
        return image
    boxes: dict[int, list[Box]] = {}
    for view in views:
        stored = image.stored_view(view)
        boxes.setdefault(stored.denominator, []).append(stored.box)
    parts = {denominator: _around(group) for denominator, group in boxes.items()}
    if image.has_one_scan and _work_together(parts, image) >= _work_alone(boxes, image):
        return image
    decoded = image.decoded(parts)
    return image if decoded is None else _InParts(image, parts, decoded)


def _around(boxes: Sequence[Box]) -> Box:
    top, left = min(box.top for box in boxes), min(box.left for box in boxes)
    bottom, right = max(box.top + box.height for box in boxes), max(box.left + box.width for box in boxes)
    return Box(top=top, left=left, height=bottom - top, width=right - left)


def _work_together(parts: Mapping[int, Box], image: Jpeg) -> int:
    """Return the work to decode the parts together, in units of the time that one pixel takes.

    The Huffman codes of all rows down to the last one are decoded once, then the colours of the pixels of each part. On
    photographs both take about the same time for each pixel of the part; at a smaller scale colours take less, but not
    in proportion to the pixels.
    """
    last = max((denominator * (box.top + box.height) for denominator, box in parts.items()), default=0)
    colours = sum(denominator * box.height * box.width for denominator, box in parts.items())
    return last * image.stored_size[1] + colours


def _work_alone(boxes: Mapping[int, Sequence[Box]], image: Jpeg) -> int:
    """Return the work to decode each box alone."""
    return sum(_work_together({denominator: box}, image) for denominator, group in boxes.items() for box in group)


@dataclass(frozen=True, slots=True)
class _InParts:
    """A JPEG, and the parts of it that have been decoded."""

    jpeg: Jpeg
    parts: Mapping[int, Box]
    """By denominator: a part of the stored image at that scale."""
    decoded: Mapping[int, Pixels]
    """By denominator: the pixels of that part, as `Jpeg.decoded` returns them."""

    @property
    def height(self) -> int:
        return self.jpeg.height

    @property
    def width(self) -> int:
        return self.jpeg.width

    def pixels(self) -> Pixels:
        return self.jpeg.pixels()

    def region(self, box: Box, *, at_least: tuple[int, int]) -> Pixels:
        return self.jpeg.region(box, at_least=at_least)

    def draw(self, view: View, out: Pixels) -> None:
        stored = self.jpeg.stored_view(view)
        around = self.parts.get(stored.denominator)
        if around is None or _around([around, stored.box]) != around:
            self.jpeg.draw(view, out)
            return
        decoded = self.decoded[stored.denominator]
        if self.jpeg.native is None:
            resize_into(out, self.jpeg.upright(stored.box.of(decoded)), view, claim=self.jpeg.claim)
        elif not self.jpeg.write_turned(view, out, partial(_resize, self.jpeg.native, around, decoded)):
            self.jpeg.draw(view, out)


def _resize(native: Native, around: Box, decoded: Pixels, stored: StoredView, pixels: Pixels) -> bool:
    top, left, height, width = stored.box
    box = Box(top=top - around.top, left=left - around.left, height=height, width=width)
    here = stored._replace(size=(around.height, around.width), box=box)
    return native.resize(decoded, here, pixels) is None
