"""Geometries of all kinds, and a second computation of what they show, in fractions."""

from fractions import Fraction
from math import floor

from hypothesis import strategies as st

from mpload.images.geometry import Geometry
from mpload.images.resize import Box, View

__all__ = ["drawn_numbers", "geometries", "nearest_pixel", "source_point"]

_SIDES = st.integers(1, 400)


@st.composite
def geometries(draw: st.DrawFn, sides: st.SearchStrategy[int] = _SIDES) -> Geometry:
    """Draw a geometry with any box, window and flips; windows may extend beyond the image."""
    height, width, full_height, full_width = (draw(sides) for _ in range(4))
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns))
    starts = st.integers(-20, 20)
    windows = st.builds(Box, top=starts, left=starts, height=sides, width=sides)
    view = View(
        box=Box(top=top, left=left, height=rows, width=columns),
        full=(full_height, full_width),
        window=draw(st.none() | windows),
        mirror=draw(st.booleans()),
    )
    return Geometry(height=height, width=width, view=view, upside_down=draw(st.booleans()))


def drawn_numbers(geometry: Geometry) -> list[int]:
    """Return the numbers of a geometry that a crop drew, in the order of `mpload.images.many_geometries`."""
    view = geometry.view
    return [geometry.height, geometry.width, *view.box, *view.full, *view.shown, view.mirror]


def source_point(geometry: Geometry, y: Fraction, x: Fraction) -> tuple[Fraction, Fraction] | None:
    """Return the y and x of the image that a point of the result shows; None if it is outside the image's box."""
    view, (height, width) = geometry.view, geometry.output_size
    window = view.window or Box(0, 0, *view.full)
    row = window.top + (height - y if geometry.upside_down else y)
    column = window.left + (width - x if view.mirror else x)
    if not (0 <= row <= view.full[0] and 0 <= column <= view.full[1]):
        return None
    return (
        view.box.top + row * Fraction(view.box.height, view.full[0]),
        view.box.left + column * Fraction(view.box.width, view.full[1]),
    )


def nearest_pixel(geometry: Geometry, row: int, column: int, height: int, width: int) -> tuple[int, int]:
    """Return the pixel of a `height` x `width` mask in which the centre of a pixel of an unflipped result lies."""
    half = Fraction(1, 2)
    at = source_point(geometry, row + half, column + half)
    if at is None:
        return -1, -1
    return floor(at[0] * Fraction(height, geometry.height)), floor(at[1] * Fraction(width, geometry.width))
