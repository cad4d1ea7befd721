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

    A JPEG is decoded at the scale that each view needs. Views of one scale share a decoded part, which is the smallest
    box around them all, unless it takes less work to decode each alone.

    Raises:
        DecodeError: The image is damaged or truncated.
    """
    if not isinstance(image, Jpeg):  # it is decoded already
        return image
    boxes: dict[int, list[Box]] = {}
    for view in views:
        stored = image.stored_view(view)
        boxes.setdefault(stored.denominator, []).append(stored.box)
    parts = {}
    for denominator, group in boxes.items():
        part = _around(group)
        width = -(-image.stored_size[1] // denominator)
        if len(group) > 1 and (not image.has_one_scan or _work([part], width) < _work(group, width)):
            pixels = image.decoded(denominator, part)
            if pixels is not None:
                parts[denominator] = part, pixels
    return _InParts(image, parts)


def _around(boxes: Sequence[Box]) -> Box:
    top, left = min(box.top for box in boxes), min(box.left for box in boxes)
    bottom, right = max(box.top + box.height for box in boxes), max(box.left + box.width for box in boxes)
    return Box(top=top, left=left, height=bottom - top, width=right - left)


def _work(boxes: Sequence[Box], width: int) -> int:
    """Return the work to decode each box of an image of that width, in pixels.

    The Huffman codes of all rows down to the last one of a box are decoded, then the colours of its pixels. Measured on
    photographs, both take about the same time for a pixel.
    """
    return sum((box.top + box.height) * width + box.height * box.width for box in boxes)


@dataclass(frozen=True, slots=True)
class _InParts:
    """A JPEG of which some parts are decoded."""

    jpeg: Jpeg
    parts: Mapping[int, tuple[Box, Pixels]]
    """By denominator: a part of the stored image at that scale, and its pixels as `Jpeg.decoded` returns them."""

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
        around, decoded = self.parts.get(stored.denominator, (None, None))
        if around is None or decoded is None or _around([around, stored.box]) != around:
            self.jpeg.draw(view, out)
        elif self.jpeg.native is None:
            resize_into(out, self.jpeg.upright(stored.box.of(decoded)), view, claim=self.jpeg.claim)
        elif not self.jpeg.write_turned(view, out, partial(_resize, self.jpeg.native, around, decoded)):
            self.jpeg.draw(view, out)


def _resize(native: Native, around: Box, decoded: Pixels, stored: StoredView, pixels: Pixels) -> bool:
    top, left, height, width = stored.box
    box = Box(top=top - around.top, left=left - around.left, height=height, width=width)
    here = stored._replace(size=(around.height, around.width), box=box)
    return native.resize(decoded, here, pixels) is None
