"""The geometries of many samples as numbers in an array, which native calls write and read."""

from collections.abc import Sequence
from typing import Final

from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.geometry import Geometry
from mpload.images.resize import Box, View

__all__ = ["NUM_GEOMETRY", "geometry_of"]

NUM_GEOMETRY: Final = 13
"""Numbers of a geometry: height and width of the upright image; top, left, height and width of the box; height and
width that the box is resized to; the window, as the box; 1 if the result is mirrored, else 0. The window lies in the
resized box."""


def geometry_of(crop: RandomResizedCrop | ResizeCenterCrop, numbers: Sequence[int]) -> Geometry:
    """Return the geometry that a crop has drawn, given its numbers."""
    height, width, top, left, box_height, box_width, full_height, full_width, *window, mirror = numbers
    view = View(
        box=Box(top=top, left=left, height=box_height, width=box_width),
        full=(full_height, full_width),
        window=Box(*window) if isinstance(crop, ResizeCenterCrop) else None,
        mirror=bool(mirror),
        antialias=crop.antialias,
    )
    return Geometry(height=height, width=width, view=view)
