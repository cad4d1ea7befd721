"""Boxes that are read with one call are those that each file gives alone, to the last bit; all others are declined."""

import contextlib
import json
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpload.errors import DecodeError
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.geometry import Geometry
from mpload.images.many_geometries import NUM_GEOMETRY
from mpload.images.mask import Mask
from mpload.samples import bulk_boxes
from mpload.samples.boxes import Boxes, BoxFormat
from mpload.samples.keypoints import Keypoints
from mpload.samples.objects import names_of
from tests.support.geometries import drawn_numbers
from tests.support.hostile import HOSTILE_JSON, JSON_VALUES

pytestmark = pytest.mark.skipif(bulk_boxes.NATIVE is None, reason="the native module of boxes is not built")

CROP = RandomResizedCrop(100, scale=(0.2, 0.9))
GEOMETRY = CROP.draw_geometry(375, 500, np.random.default_rng(1))
VALUES = ("labels:int", "score:float")
PLAIN = '[{"bbox": [1, 2.5, 30, 4e1], "category_id": 3, "score": 0.25, "iscrowd": 0}]'


def scanned(decode: Boxes, texts: list[str], geometry: Geometry) -> list[dict[str, Any] | None]:
    """Read texts with one call, and return for each what `Boxes` returns; None if it was declined."""
    files = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array(list(map(len, files)), np.int64)
    kinds = [value.rpartition(":")[::2] for value in decode.values]
    area, size = np.frombuffer(b"".join(files), np.uint8), int(lengths.sum())
    shown, columns = np.empty((size, 4), np.float32), np.empty((len(kinds), size), np.int64)
    bounds = np.empty((len(files), 2), np.int64)
    native = bulk_boxes.NATIVE
    assert native is not None
    native.scan_many(
        area, np.cumsum(lengths) - lengths, lengths, np.ones(len(files), np.bool_),
        np.array([drawn_numbers(geometry)] * len(files), np.int64),
        tuple((kind == "int", *names_of(name)) for name, kind in kinds), get_args(BoxFormat).index(decode.format),
        decode.min_visible, decode.min_side, np.empty((size, 4)), np.empty((size, len(kinds))), shown, columns, bounds,
    )  # fmt: skip
    dtypes: dict[str, Any] = {"int": np.int64, "float": np.float32}
    values = {name: column.view(dtypes[kind]) for (name, kind), column in zip(kinds, columns, strict=True)}
    found = {"boxes": shown, **values}
    return [
        None if start < 0 else {name: value[start:end] for name, value in found.items()}
        for start, end in bounds.tolist()
    ]


def assert_same(decode: Boxes, text: str, geometry: Geometry, found: dict[str, Any] | None) -> bool:
    """Check what was read of a text, unless it was declined; return whether it was read."""
    if found is None:
        return False
    expected = decode(text.encode("utf-8", "surrogatepass"), geometry)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert (value.dtype, value.shape, value.tobytes()) == (
            found[name].dtype,
            found[name].shape,
            found[name].tobytes(),
        )
    return True


numbers = st.floats(-60, 600).map(lambda number: round(number, 2)) | st.integers(-60, 600) | st.floats(-60, 600)
objects = st.fixed_dictionaries(
    {"bbox": st.lists(numbers, min_size=4, max_size=4), "category_id": st.integers(-(2**53), 2**53), "score": numbers},
    optional={"area": numbers, "name": st.text('ab\\"/\n\x7f', max_size=4), "polygons": st.lists(st.lists(numbers))},
)  # fmt: skip


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.lists(objects, max_size=5), min_size=1, max_size=4), st.sampled_from(get_args(BoxFormat)),
    st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.0, 1.0, 20.0]), st.integers(0, 99), st.sampled_from([None, 1]),
    st.sampled_from([CROP, ResizeCenterCrop((50, 80), resize=90)]),
)  # fmt: skip
def test_boxes_that_are_read_together_are_those_of_each_file(
    files: list[list[Any]], kind: Any, min_visible: float, min_side: float, seed: int, indent: int | None, crop: Any
) -> None:
    decode = Boxes(kind, values=VALUES, min_visible=min_visible, min_side=min_side)
    texts = [json.dumps(sorted_sides(file, kind), indent=indent) for file in files]
    geometry = crop.draw_geometry(375, 500, np.random.default_rng(seed))
    for text, found in zip(texts, scanned(decode, texts, geometry), strict=True):
        assert assert_same(decode, text, geometry, found), "an ordinary file was declined"


def sorted_sides(file: list[Any], kind: str) -> list[Any]:
    """Return the objects with boxes that have no negative side, and that are fractions if `kind` is "yolo"."""
    made = []
    for each in file:
        left, top, right, bottom = each["bbox"]
        box = sorted([left, right]), sorted([top, bottom])
        plain = [box[0][0], box[1][0], box[0][1], box[1][1]]
        found = plain if kind == "xyxy" else [left, top, abs(right), abs(bottom)]
        made.append({**each, "bbox": [number % 1 for number in found] if kind == "yolo" else found})
    return made


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(("number", "is_read"), [(1.01, True), (1.0101, False), (50, False), (-0.0101, False)])
def test_boxes_that_must_be_fractions_are_declined_if_they_are_none(place: int, number: float, is_read: bool) -> None:
    box = [0.5, 0.5, 0.1, 0.1]
    box[place] = number
    text, decode = json.dumps([{"bbox": box, "category_id": 0}]), Boxes("yolo", min_side=0)
    (found,) = scanned(decode, [text], GEOMETRY)
    assert assert_same(decode, text, GEOMETRY, found) == is_read
    if not is_read:
        with pytest.raises(DecodeError, match=r"must be a fraction of the image's|negative width or height"):
            decode(text, GEOMETRY)


@settings(deadline=None)
@given(st.lists(JSON_VALUES.map(json.dumps), min_size=1, max_size=5), st.sampled_from(get_args(BoxFormat)))
@example([PLAIN], "xywh")
def test_any_json_is_declined_or_read_as_boxes_reads_it(texts: list[str], kind: Any) -> None:
    decode = Boxes(kind, values=VALUES)
    for text, found in zip(texts, scanned(decode, texts, GEOMETRY), strict=True):
        assert_same(decode, text, GEOMETRY, found)


@given(
    st.text('[]{}",:0123456789.eE+- \n\ttruefalsnbox_catgidé\\', max_size=12),
    st.integers(0, len(PLAIN)),
    st.integers(0, 6),
)
def test_a_text_with_a_part_replaced_is_declined_or_read_as_boxes_reads_it(part: str, start: int, length: int) -> None:
    text = PLAIN[:start] + part + PLAIN[start + length :]
    (found,) = scanned(Boxes("xywh", values=VALUES), [text], GEOMETRY)
    assert_same(Boxes("xywh", values=VALUES), text, GEOMETRY, found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.5", "02.5"), ("2.5", "2."), ("2.5", ".5"), ("2.5", "+2.5"), ("2.5", "2e"), ("2.5", "- 2"), ("2.5", "1e10"),
        ("2.5", "1e400"), ("2.5", "true"), ("2.5", "null"), ("2.5", '"2"'), ("2.5", "NaN"), ("2.5", "-Infinity"),
        ("2.5", "9" * 400), ("30", "-30"), ("3,", "3.5,"), ("3,", "9007199254740993,"), (", 4e1", ""), ("4e1", "4, 5"),
        ("bbox", "box"), ("bbox", "boxes"), ("category_id", "kind"), ("iscrowd", "bbox"), ("iscrowd", "label"),
        ("iscrowd", "iscr\\u006fwd"), ("iscrowd", "é"), ("0}]", "0}] 1"), ("0}]", "0},]"), ("0}]", "0,}]"),
        ("0}]", "0}"), ("0}]", "0}, {}]"), ("0}]", "0}, 1]"), ("0}]", "1" * 301 + "}]"),
        ("0}]", "[" * 60 + "]" * 60 + "}]"),
    ],
)  # fmt: skip
def test_wrong_and_unusual_texts_are_declined(old: str, new: str) -> None:
    assert PLAIN.count(old) == 1
    decode = Boxes("xywh", values=VALUES)
    declined, plain = scanned(decode, [PLAIN.replace(old, new), PLAIN], GEOMETRY)
    assert declined is None
    assert assert_same(decode, PLAIN, GEOMETRY, plain)


def test_numbers_have_the_value_that_python_reads() -> None:
    rng = np.random.default_rng(0)
    decode = Boxes("xyxy", values=("score:float",), min_side=0)
    whole = Geometry.whole(10**6, 10**6)
    literals = [
        "0.9007199254740993",
        "-0",
        "-0.0",
        "0.1",
        "1e-30",
        "123456.789e-3",
        "1E5",
        "0.30000000000000004",
        "9.5367431640625e-07",
    ]
    literals += [repr(float(number)) for number in rng.random(300) * 10.0 ** rng.integers(-30, 6, 300)]
    for literal in literals:
        text = f'[{{"bbox": [{literal}, 0, 900000, 900000], "score": {literal}}}]'
        (found,) = scanned(decode, [text], whole)
        assert assert_same(decode, text, whole, found), literal


def test_boxes_at_the_limits_of_what_is_visible_are_kept() -> None:
    text = '[{"bbox": [-20, 0, 40, 30], "label": 1}, {"bbox": [-20, 0, 39, 30], "label": 2}]'
    decode, whole = Boxes("xywh", min_side=20, min_visible=0.5), Geometry.whole(100, 100)
    (found,) = scanned(decode, [text], whole)
    assert assert_same(decode, text, whole, found)
    assert found is not None
    assert found["labels"].tolist() == [1]


def test_hostile_json_is_declined() -> None:
    texts = [text for text, _ in HOSTILE_JSON]
    assert scanned(Boxes(), texts, GEOMETRY) == [None] * len(texts)
    for text in texts:
        with contextlib.nullcontext() if text == "null" else pytest.raises(DecodeError):
            Boxes()(text, GEOMETRY)


class OtherBoxes(Boxes):
    """Boxes of a user's own class."""


@pytest.mark.parametrize(
    "decode",
    [
        OtherBoxes(), Boxes(values=("name:str",)), Boxes(values=("masks:mask",)), Boxes(keypoints=Keypoints()),
        Boxes(values=("labels:int", "category:int")), Boxes(values=("labels:int", "labels:float")),
        Boxes(values=("bbox:int",)), Boxes(values=tuple(f"{name}:int" for name in "abcdefghi")), Mask(),
        Boxes(values=("a\0b:int",)), Boxes(values=("\udc80:int",)), Boxes(values=("é:int",)),
    ],
)  # fmt: skip
def test_other_decoders_read_boxes_one_by_one(decode: Any) -> None:
    assert bulk_boxes.boxes_maker(decode, reading=None, arena=np.empty(0, np.uint8)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starts", np.zeros(0, np.int64)),
        ("geometries", np.zeros((1, 12), np.int64)),
        ("values", ((True,),)),
        ("values", ((True, *"abcdefghi"),)),
        ("values", ((True, 1),)),
        ("values", (True,)),
        ("values", ((True, "a"),) * 9),
        ("values", [(True, "a")]),
        ("format", 4),
        ("format", -1),
        ("numbers", np.zeros((0, 1))),
        ("shown", np.zeros((1, 4), np.uint8)),
        ("columns", np.zeros((0, 1), np.int64)),
        ("is_wanted", np.zeros(0, np.bool_)),
        ("bounds", bytes(16)),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any) -> None:
    native = bulk_boxes.NATIVE
    assert native is not None
    number = np.zeros(1, np.int64)
    arguments: dict[str, Any] = {
        "area": b"", "starts": number, "lengths": number, "is_wanted": np.ones(1, np.bool_),
        "geometries": np.zeros((1, NUM_GEOMETRY), np.int64),
        "values": ((True, "a"),), "format": 0, "min_visible": 0.0, "min_side": 0.0, "boxes": np.zeros((1, 4)),
        "numbers": np.zeros((1, 1)), "shown": np.zeros((1, 4), np.float32), "columns": np.zeros((1, 1), np.int64),
        "bounds": np.zeros((1, 2), np.int64),
    }  # fmt: skip
    native.scan_many(*arguments.values())
    assert arguments["bounds"].tolist() == [[-1, -1]]
    with pytest.raises((ValueError, BufferError, TypeError)):
        native.scan_many(*(arguments | {name: value}).values())
