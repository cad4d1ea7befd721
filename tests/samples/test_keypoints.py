"""Keypoints follow the geometry of their image, and those that are no longer visible are marked."""

import itertools
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError, DecodeError
from mpload.images.geometry import Geometry
from mpload.images.resize import Box, View
from mpload.samples.keypoints import Keypoints
from tests.support.geometries import geometries, source_point
from tests.support.hostile import HOSTILE_JSON, JSON_VALUES

NUMBERS = st.floats(-500, 900).map(lambda number: round(number, 2))
CROP = Geometry(height=100, width=200, view=View(box=Box(10, 20, 50, 100), full=(100, 200), mirror=True))


@given(geometries(), st.fractions(0, 1), st.fractions(0, 1))
def test_a_point_is_where_the_image_shows_it(geometry: Geometry, down: Fraction, right: Fraction) -> None:
    height, width = geometry.output_size
    source = source_point(geometry, down * height, right * width)
    if source is not None and min(down, right) > 0.01 and max(down, right) < 0.99:
        made = Keypoints()(json.dumps([[float(source[1]), float(source[0]), 1]]), geometry)
        assert made.dtype == np.float32
        left, top, end, bottom = geometry.shown_area()
        if left + 0.1 < right * width < end - 0.1 and top + 0.1 < down * height < bottom - 0.1:
            np.testing.assert_allclose(made, [[float(right * width), float(down * height), 1]], atol=1e-3)


@given(geometries(), NUMBERS, NUMBERS)
def test_a_point_outside_of_what_is_shown_is_marked_and_has_no_place(geometry: Geometry, x: float, y: float) -> None:
    made = Keypoints()(json.dumps([[x, y, 2], [x, y, 0]]), geometry)
    box, (height, width) = geometry.view.box, geometry.output_size
    place = geometry.points([x, y])
    is_shown = box.left <= x <= box.left + box.width and box.top <= y <= box.top + box.height
    is_shown = is_shown and 0 <= place[0] <= width and 0 <= place[1] <= height
    left, top, right, bottom = geometry.shown_area()
    distance = min(abs(place[0] - left), abs(place[0] - right), abs(place[1] - top), abs(place[1] - bottom))
    if distance > 1e-6:  # at the border, rounding decides
        np.testing.assert_allclose(made[0], [*place, 2] if is_shown else [0, 0, 0], rtol=1e-5, atol=1e-4)
    assert made[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "points",
    [
        [[30, 20], [60, 50]],
        [[30, 20, 2], [60, 50, 2]],
        [30, 20, 2, 60, 50, 2],
        {"keypoints": [30, 20, 2, 60, 50, 2], "num_keypoints": 2},
        {"points": [[60, 40], [120, 100]], "width": 400, "height": 200},
    ],
)
def test_the_usual_forms_of_json_are_understood(points: Any) -> None:
    for data in (json.dumps(points), json.dumps(points).encode()):
        assert Keypoints()(data, CROP).tolist() == [[180, 20, 2], [120, 80, 2]]


def test_pairs_swap_their_names_in_a_mirrored_image_only() -> None:
    text, decode = "[[100, 20], [40, 20], [60, 50]]", Keypoints(flip_pairs=((0, 1),))
    eyes = [[160, 20, 2], [40, 20, 2], [120, 80, 2]]
    assert decode(text, CROP).tolist() == eyes
    plain = Geometry(height=100, width=200, view=CROP.view._replace(mirror=False))
    assert decode(text, plain).tolist() == [[160, 20, 2], [40, 20, 2], [80, 80, 2]]
    turned = Geometry(height=100, width=200, view=CROP.view, upside_down=True)  # by half a turn: left stays left
    assert decode(text, turned).tolist() == [[40, 80, 2], [160, 80, 2], [120, 20, 2]]


def test_indexes_of_pixels_become_their_centres() -> None:
    assert Keypoints(offset=0.5)("[[3, 4]]").tolist() == [[3.5, 4.5, 2]]


def test_without_points_the_array_is_empty() -> None:
    for text, pairs in itertools.product(("[]", '{"points": []}'), ((), ((0, 1),))):
        made = Keypoints(flip_pairs=pairs)(text, CROP)
        assert made.shape == (0, 3)
        assert made.dtype == np.float32


@pytest.mark.parametrize(
    ("decode", "text", "message"),
    [
        (Keypoints(), "[1, 2]", "a flat list of points is x, y and visibility of each; got 2 numbers"),
        (
            Keypoints(),
            "[10, 20, 30, 40, 50, 60]",
            r"each third number of a flat list is a visibility, 0 to 2, got 30\.",
        ),
        (Keypoints(), "{}", "the JSON has neither 'keypoints' nor 'points'"),
        (Keypoints(), '{"points": [[1, 2]], "width": 100, "height": 200}', "exif_orientation=False"),
        (Keypoints(flip_pairs=((0, 3),)), "[[1, 2], [3, 4]]", r"flip_pairs has \(0, 3\), but there are 2 points"),
        (Keypoints(max_bytes=3), "[[1, 2]]", "8 bytes exceed max_bytes=3"),
        *((Keypoints(), text, message) for text, message in HOSTILE_JSON),
    ],
)
def test_bad_points_are_decode_errors_that_say_why(decode: Keypoints, text: str, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(text, CROP)


@given(JSON_VALUES)
def test_any_json_gives_points_or_a_decode_error(value: Any) -> None:
    try:
        made = Keypoints()(json.dumps(value), CROP)
    except DecodeError:
        return
    assert made.shape[1:] == (3,)
    assert np.isfinite(made).all()


@pytest.mark.parametrize("pairs", [((0, 0),), ((0, 1), (1, 2)), ((-1, 2),), ((1, 2, 3),)])
def test_pairs_that_overlap_are_refused(pairs: Any) -> None:
    with pytest.raises(ArgumentError, match="flip_pairs must be pairs of places, each place once"):
        Keypoints(flip_pairs=pairs)
