"""Lines of YOLO's label files: what Ultralytics accepts is read, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import DecodeError
from mpload.index.label_lines import KeypointShape, is_label_line, read_label_line

FRACTIONS = st.floats(-0.01, 1.01).map(lambda number: round(number, 4))
SIDES = st.floats(0, 1.01).map(lambda number: round(number, 4))
POINTS = st.tuples(FRACTIONS, FRACTIONS)


@given(st.integers(0, 99), FRACTIONS, FRACTIONS, SIDES, SIDES)
def test_a_box_of_fractions_is_read_as_it_is(label: int, x: float, y: float, width: float, height: float) -> None:
    found = read_label_line(f"{label} {x} {y}\t{width}  {height}\r")
    assert (found.label, list(found.box), found.polygon, found.keypoints) == (label, [x, y, width, height], (), ())


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=9))
def test_more_numbers_are_a_polygon_and_its_box_surrounds_it(corners: list[tuple[float, float]]) -> None:
    found = read_label_line("0 " + " ".join(f"{x} {y}" for x, y in corners))
    assert list(found.polygon) == [number for corner in corners for number in corner]
    x, y, width, height = found.box
    for axis, (middle, side) in enumerate(((x, width), (y, height))):
        values = [corner[axis] for corner in corners]
        assert (middle - side / 2, middle + side / 2) == pytest.approx((min(values), max(values)))


@given(st.lists(POINTS, min_size=1, max_size=9), st.booleans())
def test_numbers_after_the_box_are_keypoints_if_their_shape_is_known(
    points: list[tuple[float, float]],
    has_visibility: bool,
) -> None:
    written = [(*point, number % 3) if has_visibility else point for number, point in enumerate(points)]
    line = "0 0.5 0.5 0.25 0.25 " + " ".join(str(number) for point in written for number in point)
    shape = KeypointShape(num_points=len(points), numbers_per_point=3 if has_visibility else 2)
    found = read_label_line(line, shape)
    assert (list(found.box), found.polygon) == ([0.5, 0.5, 0.25, 0.25], ())
    expected = [
        (x, y, number % 3 if has_visibility else 0 if x == y == 0 else 2) for number, (x, y) in enumerate(points)
    ]
    assert list(found.keypoints) == [value for point in expected for value in point]


@pytest.mark.parametrize("place", range(1, 5))
@pytest.mark.parametrize("value", ["1.011", "-0.011", "640", "1e10", "nan", "inf", "0_1", "x", "٣"])
def test_a_number_that_is_no_fraction_is_refused(place: int, value: str) -> None:
    words = ["0", "0.5", "0.5", "0.2", "0.2"]
    words[place] = value
    with pytest.raises(DecodeError, match=r"must be a fraction|negative width|must be a class|beyond"):
        read_label_line(" ".join(words))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-1 0.5 0.5 0.2 0.2", "^has class -1, but classes are whole numbers from 0: '-1 0.5 0.5 0.2 0.2'$"),
        ("1.5 0.5 0.5 0.2 0.2", "^has class 1.5, but classes are whole numbers"),
        ("0 0.5 0.5 0.2", "^must be a class, then centre x, centre y, width and height, got '0 0.5 0.5 0.2'$"),
        ("0 0.5 0.5 0.2 0.2 0.9", "^must be a class"),
        ("0,0.5,0.5,0.2,0.2", "^must be a class"),
        (
            "0 50 50 20 20",
            "^has centre x 50, which must be a fraction of the image's width, from 0 to 1: '0 50 50 20 20'$",
        ),
        (
            "0 0.1 0.1 0.5 0.9 2 0.5",
            "^has a polygon with centre x 1.05, .* index the folder with a data.yaml that names",
        ),
    ],
)
def test_a_broken_line_is_an_error_that_says_why(line: str, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        read_label_line(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.2 0.2", "^must have 11 numbers, .* 2 keypoints of 3 numbers, as kpt_shape says, but has 5"),
        ("0 0.5 0.5 0.2 0.2 0.1 0.1 2 0.1 0.1 2 0.1 0.1 2", "^must have 11 numbers, .* but has 14"),
        (
            "0 0.5 0.5 0.2 0.2 40 40 2 0.1 0.1 2",
            r"^has the keypoint \[40.0, 40.0, 2.0\], whose x and y must be fractions",
        ),
        ("0 0.5 0.5 0.2 0.2 0.4 0.4 -1 0.1 0.1 2", "whose visibility must be 0, 1 or 2"),
    ],
)
def test_keypoints_of_another_shape_are_refused(line: str, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        read_label_line(line, KeypointShape(num_points=2, numbers_per_point=3))


@pytest.mark.parametrize("shape", [(0, 3), (-1, 2), (5, 1), (5, 4)])
def test_keypoints_have_two_or_three_numbers_each(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="keypoints must be at least one, of 2 or 3 numbers each"):
        KeypointShape(num_points=shape[0], numbers_per_point=shape[1])


@given(st.text("0123456789.-+eE _naif٣", max_size=40))
def test_any_line_is_read_or_refused(line: str) -> None:
    try:
        found = read_label_line(line)
    except DecodeError:
        return
    assert is_label_line(line)
    assert found.label >= 0
    assert len(found.box) == 4
