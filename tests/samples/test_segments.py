"""Masks of objects are those of pycocotools, and follow the crop of their image."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools import mask as coco  # type: ignore[import-untyped]

from mpload.errors import DecodeError
from mpload.images.geometry import Geometry
from mpload.images.mask import nearest_values
from mpload.samples.boxes import Boxes
from mpload.samples.keypoints import Keypoints
from mpload.samples.segments import decode_counts, draw_segment
from tests.support.geometries import geometries
from tests.support.hostile import JSON_VALUES

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in pycocotools

SIDES = st.integers(1, 50)
NUMBERS = st.floats(-15, 65).map(lambda number: round(number, 2)) | st.integers(-15, 65)
POLYGONS = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=9), min_size=1, max_size=3)
DECODE = Boxes("xywh", values=("masks:mask",), min_side=0)


def drawn(segment: Any, height: int, width: int) -> NDArray[np.uint8]:
    out = np.zeros((height, width), np.uint8)
    draw_segment(out, segment, Geometry.whole(height, width))
    return out


@given(POLYGONS, SIDES, SIDES, st.booleans())
def test_polygons_have_the_pixels_of_pycocotools(
    points: list[list[tuple[float, float]]], height: int, width: int, is_closed: bool
) -> None:
    if is_closed:
        points = [[*polygon, polygon[0]] for polygon in points]
    flat = [[number for point in polygon for number in point] for polygon in points]
    expected = coco.decode(coco.merge(coco.frPyObjects(flat, height, width)))
    np.testing.assert_array_equal(drawn(flat, height, width), expected)


@pytest.mark.parametrize("polygon", [[], [3, 4], [3, 4, 20, 31]])
def test_a_polygon_with_fewer_than_three_points_is_empty(polygon: list[int]) -> None:
    assert not drawn([polygon], 40, 50).any()


def test_a_large_polygon_has_the_pixels_of_pycocotools() -> None:
    rng = np.random.default_rng(0)
    for number in range(30):
        polygon = rng.uniform(-20, 660, 2 * rng.integers(3, 200)).round(number % 3).tolist()
        expected = coco.decode(coco.merge(coco.frPyObjects([polygon], 480, 640)))
        np.testing.assert_array_equal(drawn([polygon], 480, 640), expected)


@given(SIDES, SIDES, st.integers(0, 2**32), st.floats(0, 1))
def test_run_lengths_have_the_pixels_of_pycocotools(height: int, width: int, seed: int, share: float) -> None:
    mask = (np.random.default_rng(seed).random((height, width)) < share).astype(np.uint8)
    encoded = coco.encode(np.asfortranarray(mask))
    text = encoded["counts"].decode()
    counts = decode_counts(text).tolist()
    for segment in ({"size": [height, width], "counts": text}, {"size": [height, width], "counts": counts}):
        np.testing.assert_array_equal(drawn(segment, height, width), mask)
    assert coco.frPyObjects({"size": [height, width], "counts": counts}, height, width)["counts"] == encoded["counts"]


@given(geometries(), POLYGONS)
def test_masks_of_objects_follow_the_crop(geometry: Geometry, points: list[list[tuple[float, float]]]) -> None:
    flat = [[number for point in polygon for number in point] for polygon in points]
    whole = drawn(flat, geometry.height, geometry.width)
    box = [0, 0, geometry.width, geometry.height]
    runs = coco.encode(np.asfortranarray(whole))
    objects = [
        {"bbox": box, "segmentation": flat},
        {"bbox": [-5, -5, 2, 2], "segmentation": flat},
        {"bbox": box, "segmentation": {"size": runs["size"], "counts": runs["counts"].decode()}},
    ]
    made = DECODE(json.dumps(objects), geometry)
    expected = nearest_values(whole, geometry, ignore=0, dtype="uint8")
    assert made["masks"].dtype == np.uint8
    assert made["masks"].shape == (len(made["boxes"]), *geometry.output_size)
    for mask in made["masks"]:
        np.testing.assert_array_equal(mask, expected)


def test_polygons_of_another_image_size_are_scaled() -> None:
    geometry = Geometry.whole(40, 60)
    square = [10, 10, 30, 10, 30, 30, 10, 30]
    objects = {"width": 120, "height": 80, "annotations": [{"bbox": [10, 10, 20, 20], "segmentation": [square]}]}
    mask = DECODE(json.dumps(objects), geometry)["masks"][0]
    rows, columns = np.nonzero(mask)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (5, 14, 5, 14)
    assert mask.sum() == 100
    whole = DECODE(json.dumps(objects))["masks"]
    assert whole.shape == (1, 80, 120)
    assert whole.sum() == 400


@pytest.mark.parametrize("size", [None, (80, 120)])
def test_run_lengths_of_another_shape_than_the_image_are_refused(size: tuple[int, int] | None) -> None:
    def made(height: int, width: int) -> Any:
        runs = {"size": [height, width], "counts": [0, height, height * (width - 1)]}
        objects = [{"bbox": [0, 0, 40, 40], "segmentation": runs}]
        stated = {} if size is None else dict(zip(("height", "width"), size, strict=True))
        return DECODE(json.dumps({**stated, "annotations": objects}), Geometry.whole(40, 60))["masks"]

    for height, width in ((40, 60), (80, 120), (4, 6), (27, 40)):
        assert made(height, width).shape == (1, 40, 60)
    for height, width in ((60, 40), (120, 80), (10, 10), (40, 64), (38, 60)):
        with pytest.raises(DecodeError, match=rf"the mask is {width}x{height}, but its image is (60x40|120x80)"):
            made(height, width)


def test_polygons_of_yolo_are_fractions() -> None:
    decode = Boxes("yolo", values=("labels:int", "masks:mask"))
    made = decode("7 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75\n", Geometry.whole(40, 60))
    np.testing.assert_array_equal(made["masks"][0], drawn([[15, 10, 45, 10, 45, 30, 15, 30]], 40, 60))
    assert made["boxes"].tolist() == [[15, 10, 45, 30]]


def test_points_of_objects_are_dropped_with_them() -> None:
    geometry = Geometry.whole(40, 60)
    objects = [
        {"bbox": [-9, -9, 5, 5], "keypoints": [1, 1, 2, 2, 2, 2]},
        {"bbox": [5, 5, 9, 9], "keypoints": [6, 7, 2, 70, 8, 1]},
        {"bbox": [5, 5, 9, 9], "keypoints": []},
    ]
    decode = Boxes("xywh", values=(), keypoints=Keypoints(offset=0.5))
    made = decode(json.dumps(objects), geometry)["keypoints"]
    assert made.dtype == np.float32
    assert made.tolist() == [[[6.5, 7.5, 2], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert decode("[]", geometry)["keypoints"].shape == (0, 0, 3)
    with pytest.raises(DecodeError, match="keypoints must be numbers"):
        decode(json.dumps([{"bbox": [5, 5, 9, 9], "keypoints": [1, 2, 3]}, objects[1]]), geometry)
    with pytest.raises(DecodeError, match="keypoints must be x, y and visibility of each; got 4 numbers"):
        decode(json.dumps([{"bbox": [5, 5, 9, 9], "keypoints": [1, 2, 3, 4]}]), geometry)


def test_an_image_without_objects_has_no_masks() -> None:
    assert DECODE("[]", Geometry.whole(4, 6))["masks"].shape == (0, 4, 6)


def test_memory_for_masks_is_requested() -> None:
    claims: list[int] = []
    objects = [{"bbox": [0, 0, 9, 9], "segmentation": [[0, 0, 4, 0, 4, 4]]}] * 3
    DECODE(json.dumps(objects), Geometry.whole(10, 20), claim=claims.append)
    assert claims == [600]


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (None, "a segmentation must be polygons or run lengths, got None"),
        ("text", "a segmentation must be polygons or run lengths"),
        ([[1, 2, 3, 4, 5, 6, 7]], "a polygon must be x and y of each point, got 7 numbers"),
        ([[1, 2, 3, 4, 5, None]], "a polygon must be numbers"),
        ([[0, 0, 1e9, 0, 1e9, 1e9]], "a polygon is 3,000,000,000 pixels long, more than 419,430"),
        ({}, "the size of run lengths must be numbers"),
        ({"size": [4, 6]}, "the counts of run lengths must be numbers"),
        ({"size": [4, 6], "counts": [25]}, "the counts of run lengths must be 24 pixels, got 25"),
        ({"size": [4, 6], "counts": [-1, 25]}, "the counts of run lengths must be 24 pixels"),
        ({"size": [0, 6], "counts": []}, "a segmentation of 6x0 pixels is empty or larger than"),
        ({"size": [100_000, 100_000], "counts": [10_000_000_000]}, "is empty or larger than"),
        ({"size": [4, 6], "counts": "\x01"}, "the counts of run lengths are damaged"),
        ({"size": [4, 6], "counts": "é"}, "the counts of run lengths are damaged"),
        ({"size": [4, 6], "counts": "\ud800"}, "the counts of run lengths are damaged"),
        ({"size": [4, 6], "counts": "oooooooooooo0"}, "a number has more than 40 bits"),
        ({"size": [4, 6], "counts": "o"}, "the counts of run lengths are damaged"),
        ({"size": [4, 6], "counts": ""}, "must be 24 pixels, got 0"),
    ],
)
def test_damaged_segments_are_decode_errors_that_say_why(segment: Any, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        DECODE(json.dumps([{"bbox": [0, 0, 4, 4], "segmentation": segment}]), Geometry.whole(40, 60))


def test_too_many_masks_are_refused() -> None:
    objects = [{"bbox": [0, 0, 9, 9], "segmentation": []}] * 300
    with pytest.raises(DecodeError, match=r"masks \[300, 2000, 2000\] are more than 1,073,741,824 bytes"):
        DECODE(json.dumps(objects), Geometry.whole(2000, 2000))


TEXTS = st.text("0123456789:;<=>?@ABCXYZ[\\]^_`abcmno", max_size=12) | st.text(max_size=4)
RUNS = st.fixed_dictionaries({"size": st.just([4, 6]) | JSON_VALUES, "counts": TEXTS | JSON_VALUES})


@given(JSON_VALUES | st.lists(st.lists(NUMBERS | JSON_VALUES, max_size=8), max_size=2) | RUNS)
def test_any_json_gives_masks_or_a_decode_error(segment: Any) -> None:
    try:
        made = DECODE(json.dumps([{"bbox": [0, 0, 4, 4], "segmentation": segment}]), Geometry.whole(40, 60))
    except DecodeError:
        return
    assert made["masks"].shape == (1, 40, 60)
    assert made["masks"].max() <= 1
