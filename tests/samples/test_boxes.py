"""Boxes follow the geometry of their image, with all that belongs to them, and hostile files are decode errors."""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import ArgumentError, DecodeError
from mpload.images.decoders import RandomResizedCrop
from mpload.images.geometry import Geometry
from mpload.images.mask import nearest_values
from mpload.images.resize import Box, View
from mpload.samples.boxes import Boxes, BoxFormat
from mpload.samples.keypoints import Keypoints
from tests.support.geometries import geometries, source_point
from tests.support.hostile import HOSTILE_JSON, JSON_VALUES

CROP = Geometry(height=100, width=200, view=View(box=Box(10, 20, 50, 100), full=(100, 200), mirror=True))
PLAIN = Geometry(height=100, width=200, view=View(box=Box(0, 0, 100, 200), full=(100, 200)))


@st.composite
def corners(draw: st.DrawFn) -> NDArray[np.float64]:
    """Draw boxes: left, top, right and bottom. Some lie partly or wholly outside any image."""
    numbers = st.floats(-50, 450).map(lambda number: round(number, 2))
    found = [[draw(numbers) for _ in range(4)] for _ in range(draw(st.integers(0, 6)))]
    boxes = np.array(found, np.float64).reshape(-1, 2, 2)
    return np.sort(boxes, axis=1).reshape(-1, 4)


@given(geometries(), corners(), st.sampled_from([0.0, 0.3, 1.0]))
def test_boxes_are_what_the_result_shows_of_them(
    geometry: Geometry, boxes: NDArray[np.float64], min_visible: float
) -> None:
    text = json.dumps([[*box, number] for number, box in enumerate(boxes.tolist())])
    made = Boxes("xyxy", min_visible=min_visible, min_side=0)(text, geometry)
    assert (made["boxes"].dtype, made["labels"].dtype) == (np.float32, np.int64)
    kept = dict(zip(made["labels"].tolist(), made["boxes"].tolist(), strict=True))
    for number, box in enumerate(boxes.tolist()):
        expected, share = shown(geometry, box)
        if expected is None or share < min_visible - 1e-9:
            assert number not in kept
        elif share > max(min_visible, 0) + 1e-9:
            np.testing.assert_allclose(kept[number], expected, atol=1e-3)


def shown(geometry: Geometry, box: list[float]) -> tuple[list[float] | None, float]:
    """Return the visible part of a box in the result, and the fraction of the box that it is, one side at a time."""
    found: list[Fraction] = []
    share = 1.0
    view, window, (height, width) = geometry.view, geometry.view.shown, geometry.output_size
    across = view.box.left, view.box.width, view.full[1], window.left, width, view.mirror
    down = view.box.top, view.box.height, view.full[0], window.top, height, geometry.upside_down
    for axis, (start, side, full, first, length, is_mirrored) in enumerate((across, down)):
        low = (Fraction(box[axis]) - start) * Fraction(full, side) - first
        high = (Fraction(box[axis + 2]) - start) * Fraction(full, side) - first
        shown_low = max(low, Fraction(-first), Fraction(0))
        shown_high = min(high, Fraction(full - first), Fraction(length))
        if shown_high <= shown_low:
            return None, 0.0
        share *= float((shown_high - shown_low) / (high - low))
        found += [length - shown_high, length - shown_low] if is_mirrored else [shown_low, shown_high]
    return [float(found[place]) for place in (0, 2, 1, 3)], share


@given(geometries(st.integers(40, 200)), st.integers(0, 2**32))
def test_a_box_surrounds_the_pixels_of_its_object_to_one_pixel(geometry: Geometry, seed: int) -> None:
    rng = np.random.default_rng(seed)
    top, left = rng.integers(geometry.height - 5), rng.integers(geometry.width - 5)
    bottom, right = rng.integers(top + 4, geometry.height) + 1, rng.integers(left + 4, geometry.width) + 1
    ids = np.zeros((geometry.height, geometry.width), np.uint8)
    ids[top:bottom, left:right] = 1
    rows, columns = np.nonzero(nearest_values(ids, geometry, ignore=0, dtype="uint8"))
    text = json.dumps([[int(left), int(top), int(right), int(bottom)]])
    made = Boxes("xyxy", values=(), min_side=0)(text, geometry)["boxes"]
    if len(rows):
        pixels = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(made[0], pixels, atol=1)


@given(geometries())
def test_a_box_of_the_result_shows_the_box_of_the_image(geometry: Geometry) -> None:
    box = geometry.view.box
    text = json.dumps([[box.left, box.top, box.width, box.height]])
    made = Boxes("xywh", values=(), min_side=0)(text, geometry)["boxes"].tolist()
    left, top, right, bottom = geometry.shown_area()
    if left < right and top < bottom:
        np.testing.assert_allclose(made, [[left, top, right, bottom]], atol=1e-3)
        assert source_point(geometry, Fraction(top + bottom) / 2, Fraction(left + right) / 2) is not None
    else:
        assert not made


@given(geometries(), corners())
def test_all_formats_describe_the_same_boxes(geometry: Geometry, boxes: NDArray[np.float64]) -> None:
    size = [geometry.width, geometry.height]
    lengths = np.minimum(boxes[:, 2:] - boxes[:, :2], size)
    middles = ((boxes[:, 2:] + boxes[:, :2]) / 2).clip(0, size)  # the boxes themselves may stick out of the image
    boxes = np.hstack([middles - lengths / 2, middles + lengths / 2])
    texts: dict[BoxFormat, str] = {
        "xywh": json.dumps(np.hstack([boxes[:, :2], lengths]).tolist()),
        "cxcywh": json.dumps(np.hstack([middles, lengths]).tolist()),
        "yolo": "\n".join(
            " ".join(map(repr, [7, *row])) for row in np.hstack([middles / size, lengths / size]).tolist()
        ),
    }
    expected = Boxes("xyxy", values=(), min_side=0.01)(json.dumps(boxes.tolist()), geometry)["boxes"]
    for box_format, text in texts.items():
        made = Boxes(box_format, values=(), min_side=0.01)(text, geometry)["boxes"]
        if len(made) == len(expected):  # a box at the limit may be dropped by one and kept by another
            np.testing.assert_allclose(made, expected, atol=1e-2)
    if len(boxes):
        assert set(Boxes("yolo")(texts["yolo"], geometry)["labels"].tolist()) <= {7}


@pytest.mark.parametrize("text", ["0 0.5 0.5 0.2 0.2\n", "\n3 0.1 0.1 0.9 0.1 0.5 0.9\n1 .5 .5 .5 .5"])
def test_lines_of_a_yolo_file_without_its_format_are_an_error_that_names_it(text: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(DecodeError, match=r'^not JSON: .*a YOLO label file: pass format="yolo" to Boxes$'):
            Boxes("xywh")(data, CROP)
        assert len(Boxes("yolo", min_side=0)(data, PLAIN)["boxes"]) == text.strip().count("\n") + 1
    for other in ("0 0.5 0.5 0.2\n", "a dog", "", '[["x"]]'):
        with pytest.raises(DecodeError) as caught:
            Boxes()(other)
        assert "YOLO" not in str(caught.value)


@pytest.mark.parametrize(
    "objects",
    [
        [[30, 20, 10, 10, 3], [60, 50, 40, 8, 5]],
        [{"bbox": [30, 20, 10, 10], "category_id": 3}, {"bbox": [60, 50, 40, 8], "category_id": 5, "id": 8}],
        {"bbox": [[30, 20, 10, 10], [60, 50, 40, 8]], "category": [3, 5], "caption": "two"},
        {"boxes": [[30, 20, 10, 10], [60, 50, 40, 8]], "labels": [3, 5]},
        {"annotations": [{"bbox": [30, 20, 10, 10], "label": 3}, {"bbox": [60, 50, 40, 8], "label": 5}]},
        {"objects": {"bbox": [[30, 20, 10, 10], [60, 50, 40, 8]], "categories": [3, 5]}},
        {"boxes": [[60, 40, 20, 20], [120, 100, 80, 16]], "labels": [3, 5], "width": 400, "height": 200},
        {"image": {"width": 400, "height": 200}, "annotations": [
            {"bbox": [60, 40, 20, 20], "label": 3}, {"bbox": [120, 100, 80, 16], "label": 5}]},
    ],
)  # fmt: skip
def test_the_usual_forms_of_json_are_understood(objects: Any) -> None:
    for data in (json.dumps(objects), json.dumps(objects).encode(), b"\xef\xbb\xbf" + json.dumps(objects).encode()):
        made = Boxes("xywh")(data, CROP)
        np.testing.assert_array_equal(made["boxes"], [[160, 20, 180, 40], [40, 80, 120, 96]])
        np.testing.assert_array_equal(made["labels"], [3, 5])


def test_values_are_dropped_together_with_their_boxes() -> None:
    objects = [
        {"bbox": [0, 0, 5, 5], "category_id": "cat", "iscrowd": 0, "area": 25.5, "name": "outside"},
        {"bbox": [30, 20, 60, 60], "category_id": "dog", "iscrowd": 1, "area": 900, "name": "inside"},
    ]
    decode = Boxes("xyxy", values=("labels:int", "iscrowd:int", "area:float", "name:str"), classes=("cat", "dog"))
    made = decode(json.dumps(objects), CROP)
    assert {name: value if isinstance(value, list) else value.tolist() for name, value in made.items()} == {
        "boxes": [[120.0, 20.0, 180.0, 100.0]], "labels": [1], "iscrowd": [1], "area": [900.0], "name": ["inside"]
    }  # fmt: skip
    assert (made["iscrowd"].dtype, made["area"].dtype) == (np.int64, np.float32)


@pytest.mark.parametrize("text", ["[]", '{"boxes": []}', '{"bbox": [], "category": []}', '{"annotations": []}', b"[]"])
def test_an_image_without_objects_has_empty_arrays_of_the_same_types(text: str | bytes) -> None:
    made = Boxes("xywh", values=("labels:int", "area:float", "name:str"))(text, CROP)
    assert (made["boxes"].shape, made["boxes"].dtype) == ((0, 4), np.float32)
    assert (made["labels"].shape, made["labels"].dtype) == ((0,), np.int64)
    assert (made["area"].shape, made["area"].dtype) == ((0,), np.float32)
    assert made["name"] == []


def test_an_empty_yolo_file_has_no_boxes() -> None:
    for text in (b"", "\n \n"):
        assert Boxes("yolo")(text, CROP)["boxes"].shape == (0, 4)


def test_a_line_with_a_polygon_gives_its_box() -> None:
    made = Boxes("yolo")("3 0.1 0.2 0.3 0.2 0.2 0.6\n", PLAIN)
    np.testing.assert_allclose(made["boxes"], [[20, 20, 60, 60]], atol=1e-4)


@pytest.mark.parametrize(
    ("line", "box"),
    [
        ("0 1.01 -0.01 0.1 0.1", [192, 0, 200, 4]),  # rounded
        ("0 0 1 0.5 0.5", [0, 75, 50, 100]),  # sticks out of the image
        ("0 -0.2 0.5 0.5 0.5 0.5 1.1", [0, 50, 100, 100]),  # a polygon that does
    ],
)
def test_what_is_legal_beyond_the_image_is_clipped_to_it(line: str, box: list[float]) -> None:
    np.testing.assert_allclose(Boxes("yolo")(line, PLAIN)["boxes"], [box], atol=1e-4)


def test_keypoints_of_boxes_that_are_fractions_are_fractions_too() -> None:
    text = '{"format":"yolo","boxes":[[0.5,0.5,0.2,0.4]],"labels":[3],"keypoints":[[0.45,0.5,2,0,0,0]]}'
    made = Boxes("yolo", keypoints=Keypoints())(text, PLAIN)
    np.testing.assert_allclose(made["boxes"], [[80, 30, 120, 70]], atol=1e-4)
    np.testing.assert_allclose(made["keypoints"], [[[90, 50, 2], [0, 0, 0]]], atol=1e-4)
    cropped = Boxes("yolo", keypoints=Keypoints())(text, CROP)
    np.testing.assert_allclose(cropped["keypoints"][0, 0], [60, 80, 2], atol=1e-4)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("[]", (0, 0, 3)), ('[{"bbox":[30,20,60,50],"labels":1,"keypoints":[]}]', (1, 0, 3))],
)
def test_objects_without_keypoints_have_none_to_swap_in_a_mirrored_image(text: str, shape: tuple[int, ...]) -> None:
    assert CROP.view.mirror
    made = Boxes(keypoints=Keypoints(flip_pairs=((1, 2),)))(text, CROP)
    assert made["keypoints"].shape == shape


def test_without_a_geometry_boxes_stay_in_pixels_of_the_image() -> None:
    assert Boxes("xywh")("[[1, 2, 3, 4, 5]]")["boxes"].tolist() == [[1, 2, 4, 6]]
    with pytest.raises(DecodeError, match="need the image: decode a column of images too"):
        Boxes("yolo")("0 0.5 0.5 0.1 0.1")


def test_small_parts_of_boxes_are_dropped() -> None:
    text = "[[0, 0, 22, 60, 1], [0, 0, 20.4, 60, 2]]"  # 2 and 0.4 pixels of them are in the box that is shown
    assert Boxes()(text, CROP)["labels"].tolist() == [1]
    assert Boxes(min_side=0)(text, CROP)["labels"].tolist() == [1, 2]
    assert Boxes(min_visible=0.1)(text, CROP)["labels"].tolist() == []


@pytest.mark.parametrize(
    ("decode", "text", "message"),
    [
        (Boxes(), "[[5, 5, 1, 1, 0]]", "box 0 has a negative width or height: .* Pass the format of the boxes"),
        (Boxes(), "[[5, 5, 9, 9]]", "the objects have no 'labels', only the boxes. Pass values="),
        (Boxes(), '[{"bbox": [1, 2, 3, 4], "label": "cat"}]', "'labels' must be one int .* Pass classes="),
        (Boxes(classes=("dog",)), '[{"bbox": [1, 2, 3, 4], "label": "cat"}]', "'cat' is not one of classes="),
        (Boxes(values=("a:float",)), '[{"bbox": [1, 2, 3, 4], "a": null}]', "'a' must be one float for each object"),
        (Boxes(values=("a:int",)), '[{"bbox": [1, 2, 3, 4], "a": 0.5}]', "'a' must be one int for each object"),
        (Boxes(values=("a:int",)), '[{"bbox": [1, 2, 3, 4], "a": 1e300}]', "'a' must be one int for each object"),
        (Boxes(values=("a:str",)), '[{"bbox": [1, 2, 3, 4], "a": 5}]', "'a' must be a string for each object"),
        (Boxes(values=()), "[[0, 0, 9, -9223372036854775808]]", "numbers .* of at most 1e"),
        (Boxes(), '{"bbox": [[1, 2, 3, 4]], "labels": [1, 2]}', "'labels' lists 2, but there are 1 boxes"),
        (Boxes(), '{"bbox": [[1, 2, 3, 4], [1, 2, 3, 4]], "labels": [1]}', "'labels' lists 1, but there are 2 boxes"),
        (Boxes(), '[{"label": 3}]', "the objects have none of boxes, bbox, bboxes, box, only"),
        (Boxes(), '{"boxes": [[1, 2, 3, 4]], "labels": [1], "width": 0, "height": 5}', "must be positive integers"),
        (Boxes(), '{"boxes": [[1, 2, 3, 4]], "labels": [1], "width": 100, "height": 200}', "exif_orientation=False"),
        (Boxes("yolo"), "0 0.5 0.5 0.1", "line 1 of the boxes must be a class, then"),
        (Boxes("yolo"), "\n0 0.5 0.5 0.1 nan", "line 2 of the boxes must be"),
        (Boxes("yolo"), "0 0.5 0.5 0.1 1e999", "line 1 of the boxes has a number beyond"),
        (Boxes("yolo"), "0 0.5 0.5 0.1 -0.1", "negative width or height"),
        (Boxes("yolo"), "0 50 50 20 20", "line 1 of the boxes has centre x 50, which must be a fraction of the im"),
        (Boxes("yolo"), "0 .5 .5 .1 .1\n0 .5 .5 .1 1.02", "line 2 of the boxes has height 1.02, which must be a frac"),
        (Boxes("yolo"), "0 9 9 30 9 30 40", "has a polygon with centre x 19.5, .* a data.yaml that names their kpt"),
        (Boxes("yolo"), "-1 .5 .5 .1 .1", "line 1 of the boxes has class -1, but classes are whole numbers from 0"),
        (Boxes("yolo"), "0.5 .5 .5 .1 .1", "line 1 of the boxes has class 0.5, but classes are whole numbers from 0"),
        (Boxes("yolo"), '[{"bbox": [0.5, 0.5, 0.1, 20], "label": 1}]', "box 0 has height 20, which must be a fraction"),
        (Boxes("yolo"), b"\xff\xfe0", "not a text in UTF-8"),
        (Boxes(max_bytes=9), "[[1, 2, 3, 4]]", "14 bytes exceed max_bytes=9"),
        *((Boxes(), text, message) for text, message in HOSTILE_JSON if text != "null"),
    ],
)  # fmt: skip
def test_bad_boxes_are_decode_errors_that_say_why(decode: Boxes, text: str, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(text, CROP)


@pytest.mark.parametrize("box_format", ["xywh", "yolo"])
def test_a_missing_list_of_a_table_has_no_objects(box_format: BoxFormat) -> None:
    decode = Boxes(box_format, values=("labels:int", "names:str", "masks:mask"), keypoints=Keypoints())
    for data in ("null", b" null\n"):
        made = decode(data, CROP)
        assert {name: len(value) for name, value in made.items()} == dict.fromkeys(made, 0)
        assert made.keys() == {"boxes", "labels", "names", "masks", "keypoints"}


@given(JSON_VALUES, st.sampled_from(["xyxy", "xywh", "cxcywh", "yolo"]))
def test_any_json_gives_boxes_or_a_decode_error(value: Any, box_format: BoxFormat) -> None:
    for decode in (Boxes(box_format, min_visible=0.1), Boxes(box_format, values=("labels:float", "a:str"))):
        try:
            made = decode(json.dumps(value), CROP)
        except DecodeError:
            continue
        assert np.isfinite(made["boxes"]).all()
        assert {len(values) for values in made.values()} == {len(made["boxes"])}


@given(st.text("0123456789.-+eE \n_naif", max_size=60) | st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_gives_boxes_or_a_decode_error(text: str | bytes) -> None:
    try:
        made = Boxes("yolo")(text, CROP)["boxes"]
    except DecodeError:
        return
    assert made.shape[1] == 4
    assert np.isfinite(made).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Boxes("yxyx"), "format must be one of 'xyxy', 'xywh', 'cxcywh', 'yolo', got 'yxyx'"),  # type: ignore[arg-type]
        (lambda: Boxes(values=("labels",)), "values must be names with a type, such as 'labels:int', got 'labels'"),
        (lambda: Boxes(values="labels:int"), r"values must be a tuple, such as \('labels:int',\); got the"),  # type: ignore[arg-type]
        (lambda: Boxes(values=("labels:bool",)), "values must be names with a type"),
        (lambda: Boxes(values=("boxes:int",)), "values must be names with a type"),
        (lambda: Boxes(min_visible=1.1), r"min_visible must be in \[0, 1\], got 1.1"),
        (lambda: Boxes(min_side=-1), "min_side must not be negative, got -1"),
        (lambda: Boxes(max_bytes=0), "max_bytes must be positive, got 0"),
    ],
)
def test_invalid_arguments_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()


def test_boxes_draw_nothing_and_follow_the_crop_of_a_photo() -> None:
    geometry = RandomResizedCrop(32).draw_geometry(100, 200, np.random.default_rng(0))
    made = Boxes("xywh", values=())("[[0, 0, 200, 100]]", geometry)
    np.testing.assert_array_equal(made["boxes"], [[0, 0, 32, 32]])
