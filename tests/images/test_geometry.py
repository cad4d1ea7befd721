"""A geometry maps points, pixels of masks and further images to where the image itself is shown."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mpload.errors import ArgumentError
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.images.geometry import DrawsGeometry, Geometry, open_as, show
from mpload.images.resize import Box, View
from tests.support.geometries import geometries, nearest_pixel, source_point
from tests.support.photos import Photos, encode

SIDES = st.integers(1, 300)
CROPS = [RandomResizedCrop((60, 80), antialias=True), ResizeCenterCrop((48, 40), resize=64)]


@given(geometries(), st.fractions(0, 1), st.fractions(0, 1))
def test_a_point_lies_where_the_result_shows_it(geometry: Geometry, down: Fraction, right: Fraction) -> None:
    height, width = geometry.output_size
    source = source_point(geometry, down * height, right * width)
    if source is not None:
        found = geometry.points([[float(source[1]), float(source[0])]])
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, [[float(right * width), float(down * height)]], atol=1e-6)


@given(geometries(), SIDES, SIDES, st.data())
def test_the_nearest_pixel_is_the_one_that_holds_the_centre(
    geometry: Geometry, height: int, width: int, data: st.DataObject
) -> None:
    rows, columns = geometry.nearest(height, width)
    assert (len(rows), len(columns)) == geometry.output_size
    row, column = (data.draw(st.integers(0, side - 1)) for side in geometry.output_size)
    flipped_row = len(rows) - 1 - row if geometry.upside_down else row
    flipped_column = len(columns) - 1 - column if geometry.view.mirror else column
    plain = replace(geometry, upside_down=False, view=geometry.view._replace(mirror=False))
    expected = nearest_pixel(plain, flipped_row, flipped_column, height, width)
    if rows[row] < 0 or columns[column] < 0:
        assert expected == (-1, -1)
    else:
        assert (rows[row], columns[column]) == expected


def test_the_nearest_pixel_is_exact_in_images_of_any_length() -> None:
    long = 178_956_970
    view = View(box=Box(long // 3, 0, long // 2, 1), full=(10_007, 1))
    rows, _ = Geometry(height=long, width=1, view=view).nearest(long - 1, 1)
    half = Fraction(1, 2)
    for row in (0, 5_003, 10_006):
        at = (long // 3 + (row + half) * Fraction(long // 2, 10_007)) * Fraction(long - 1, long)
        assert rows[row] == at.__floor__()


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("name", ["jpeg_420", "exif_6", "png_rgb", "cmyk"])
def test_a_geometry_that_is_given_shows_the_pixels_that_drawing_it_shows(photos: Photos, name: str, crop: Any) -> None:
    data = photos[name].read_bytes()
    for seed in range(5):
        drawn = {"rng": np.random.default_rng(seed)} if isinstance(crop, RandomResizedCrop) else {}
        expected = crop(data, **drawn)
        image = open_as(crop, data)
        geometry = crop.draw_geometry(image.height, image.width, np.random.default_rng(seed))
        np.testing.assert_array_equal(crop(data, geometry=geometry), expected)
        np.testing.assert_array_equal(show(crop, image, geometry), expected)


@pytest.mark.parametrize("name", ["jpeg_420", "png_rgb"])
def test_a_decoder_that_follows_keeps_its_own_antialiasing(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    plain, smooth = RandomResizedCrop(40), RandomResizedCrop(40, antialias=True)
    image = open_as(plain, data)
    geometry = plain.draw_geometry(image.height, image.width, np.random.default_rng(5))
    expected = smooth(data, np.random.default_rng(5))
    np.testing.assert_array_equal(smooth(data, geometry=geometry), expected)
    assert not np.array_equal(plain(data, geometry=geometry), expected)


@given(geometries(st.integers(30, 250)))
def test_points_and_pixels_agree(geometry: Geometry) -> None:
    x, y = np.meshgrid(np.arange(geometry.width), np.arange(geometry.height))
    png = encode(Image.fromarray(np.stack([x, y, 0 * x], axis=-1).astype(np.uint8)), "PNG")
    crop = ResizeCenterCrop(geometry.output_size, resize=max(geometry.output_size))
    pixels = crop(png, geometry=replace(geometry, fill=255)).astype(float)
    rows, columns = geometry.nearest(geometry.height, geometry.width)
    outside = (rows[:, None] < 0) | (columns < 0)
    np.testing.assert_array_equal(pixels[..., 2] > 0, outside)
    places = geometry.points(pixels[..., :2] + 0.5)
    there = np.stack(np.meshgrid(np.arange(len(columns)), np.arange(len(rows))), axis=-1) + 0.5
    box, full = geometry.view.box, geometry.view.full
    # A pixel's value is rounded, and at the border of the box the resize repeats the outermost pixels: half each.
    error = np.abs(places - there)[~outside]
    assert (error <= np.array([full[1] / box.width, full[0] / box.height]) * 1.05 + 0.05).all()


@pytest.mark.parametrize("factor", [2, 3])
def test_an_image_of_another_size_shows_the_same_region(factor: int) -> None:
    small = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    large = small.repeat(factor, axis=0).repeat(factor, axis=1)
    crop = RandomResizedCrop((60, 60))
    geometry = crop.draw_geometry(60, 90, np.random.default_rng(1))
    box = geometry.view.box
    scaled = geometry.for_size(60 * factor, 90 * factor).view.box
    assert scaled == tuple(side * factor for side in box)
    own = ResizeCenterCrop((box.height * factor, box.width * factor))
    pixels = own(encode(Image.fromarray(large), "PNG"), geometry=geometry)
    expected = box.of(small).repeat(factor, axis=0).repeat(factor, axis=1)
    np.testing.assert_array_equal(pixels, expected[:, ::-1] if geometry.view.mirror else expected)


@given(geometries(), SIDES, SIDES)
def test_the_same_region_is_met_to_a_pixel_of_the_smaller_image(geometry: Geometry, height: int, width: int) -> None:
    box, scaled = geometry.view.box, geometry.for_size(height, width).view.box
    for start, length, side, new_start, new_length, new_side in (
        (box.top, box.height, geometry.height, scaled.top, scaled.height, height),
        (box.left, box.width, geometry.width, scaled.left, scaled.width, width),
    ):
        tolerance = max(1, new_side / side) + 0.5
        assert abs(new_start - start * new_side / side) <= tolerance
        assert abs(new_length - length * new_side / side) <= tolerance
        assert 0 <= new_start < new_start + new_length <= new_side


@given(geometries(), SIDES, SIDES)
def test_a_geometry_has_the_size_that_is_asked_for(geometry: Geometry, height: int, width: int) -> None:
    assert geometry.at_size((height, width)).output_size == (height, width)


def test_decoders_that_draw_are_recognised() -> None:
    assert all(isinstance(crop, DrawsGeometry) for crop in (*CROPS, ImageDecoder()))


def test_a_random_crop_without_anything_to_draw_from_is_refused() -> None:
    png = encode(Image.fromarray(np.zeros((9, 9, 3), np.uint8)), "PNG")
    with pytest.raises(ArgumentError, match="pass rng=, or geometry= with"):
        RandomResizedCrop(8)(png)


@pytest.mark.parametrize("box", [Box(0, 0, 0, 1), Box(-1, 0, 2, 2), Box(5, 5, 6, 5), Box(9, 9, 2, 2)])
def test_a_box_outside_its_image_is_refused(box: Box) -> None:
    with pytest.raises(ArgumentError, match="the box must lie in the 10x10 image"):
        Geometry(height=10, width=10, view=View(box=box, full=(4, 4)))
