"""Files of COCO as sources: each annotation reaches its image, and hostile files are refused with their place."""

import json
import tracemalloc
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import Boxes, build_index, open_index
from mpload.errors import ArgumentError, DecodeError, MploadError, MploadWarning
from mpload.ingest.coco import open_coco
from mpload.ingest.coco_runs import box_of_runs, compressed, decompressed
from mpload.ingest.json_stream import read_members
from mpload.ingest.sorting import sorted_strings
from tests.support.ingested import JPEG, cells, columns_of, make_files, read_span

CROWD = {"size": [4, 5], "counts": [3, 4, 1, 12]}
DOCUMENT: dict[str, Any] = {
    "info": {"year": 2017},
    "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
    "annotations": [
        {"id": 1, "image_id": 42, "bbox": [1, 2, 3.5, 4], "category_id": 7, "segmentation": [[1, 2, 4.5, 2, 4, 6]]},
        {"id": 2, "image_id": 9, "bbox": [0, 0, 1, 1], "category_id": 3, "area": 0.5, "iscrowd": 0},
        {"id": 3, "image_id": 42, "bbox": [0, 0, 5, 4], "category_id": 3, "iscrowd": 1, "segmentation": CROWD},
    ],
    "images": [
        {"id": 42, "file_name": "b.jpg", "width": 5, "height": 4},
        {"id": 9, "file_name": "a.jpg", "width": 8, "height": 8},
        {"id": 100, "file_name": "c.jpg", "width": 8, "height": 8},
    ],
}


def write(folder: Path, document: Any, name: str = "annotations/instances_val.json") -> Path:
    make_files(folder, "val/a.jpg", "val/b.jpg", "val/c.jpg")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def changed(**members: Any) -> dict[str, Any]:
    return {**DOCUMENT, **members}


def test_the_objects_of_each_image_are_lists_by_name(tmp_path: Path) -> None:
    out = build_index(write(tmp_path, DOCUMENT), tmp_path / "x.txt")
    index = open_index(out)
    assert columns_of(out) == "image:path image_id:str boxes:str"
    assert index.classes == ("cat", "dog")
    assert index.root == str(tmp_path / "val")
    assert [record.cells[:2] for record in index] == [("a.jpg", "9"), ("b.jpg", "42"), ("c.jpg", "100")]
    assert [json.loads(str(record["boxes"])) for record in index] == [
        {
            "width": 8,
            "height": 8,
            "format": "xywh",
            "boxes": [[0, 0, 1, 1]],
            "labels": [0],
            "iscrowd": [0],
            "area": [0.5],
            "segments": [[]],
        },
        {
            "width": 5,
            "height": 4,
            "format": "xywh",
            "boxes": [[1, 2, 3.5, 4], [0, 0, 5, 4]],
            "labels": [1, 0],
            "iscrowd": [0, 1],
            "area": [14, 20],
            "segments": [[[1, 2, 4.5, 2, 4, 6]], {"size": [4, 5], "counts": "3418"}],
        },
        {
            "width": 8,
            "height": 8,
            "format": "xywh",
            "boxes": [],
            "labels": [],
            "iscrowd": [],
            "area": [],
            "segments": [],
        },
    ]


def test_images_without_any_object_have_empty_lists_of_boxes(tmp_path: Path) -> None:
    out = build_index(write(tmp_path, changed(annotations=[])), tmp_path / "x.txt")
    assert columns_of(out) == "image:path image_id:str boxes:str"
    for record in open_index(out):
        assert Boxes("xywh", values=("labels:int", "iscrowd:int"))(str(record["boxes"]))["boxes"].shape == (0, 4)
    unannotated = {name: items for name, items in DOCUMENT.items() if name != "annotations"}
    assert columns_of(build_index(write(tmp_path, unannotated), tmp_path / "y.txt")) == "image:path image_id:str"


def test_boxes_are_read_in_no_other_format_than_theirs(tmp_path: Path) -> None:
    record = open_index(build_index(write(tmp_path, DOCUMENT), tmp_path / "x.txt"))[1]
    assert len(Boxes("xywh")(str(record["boxes"]))["boxes"]) == 2
    with pytest.raises(DecodeError, match=r'the boxes are "xywh", says their JSON: pass Boxes\("xywh"\)'):
        Boxes()(str(record["boxes"]))


def test_objects_without_a_box_have_that_of_their_segmentation_or_are_left_out_with_a_warning(tmp_path: Path) -> None:
    alone = [{name: value for name, value in each.items() if name != "bbox"} for each in DOCUMENT["annotations"]]
    with pytest.warns(
        MploadWarning, match=r"1 objects without a 'bbox' or a segmentation, such as annotation 2 of image 9"
    ):
        out = build_index(write(tmp_path, changed(annotations=alone)), tmp_path / "x.txt")
    objects = [json.loads(str(record["boxes"])) for record in open_index(out)]
    assert [each["boxes"] for each in objects] == [[], [[1, 2, 3.5, 4], [0, 0, 5, 4]], []]
    assert [each["labels"] for each in objects] == [[], [1, 0], []]


@pytest.mark.parametrize(("crowd", "number"), [(None, 0), (0, 0), (1, 1), (False, 0), (True, 1)])
def test_iscrowd_is_a_number_or_a_truth_value(tmp_path: Path, crowd: Any, number: int) -> None:
    annotation = {**DOCUMENT["annotations"][1], "iscrowd": crowd}
    out = build_index(write(tmp_path, changed(annotations=[annotation])), tmp_path / "x.txt")
    assert json.loads(str(open_index(out)[0]["boxes"]))["iscrowd"] == [number]


_MASKS = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda size: st.lists(
        st.lists(st.booleans(), min_size=size[0], max_size=size[0]), min_size=size[1], max_size=size[1]
    )
)


@given(_MASKS)
def test_run_lengths_have_the_box_of_their_pixels(columns: list[list[bool]]) -> None:
    counts = [0]
    for is_inside in chain(*columns):
        if is_inside != (len(counts) % 2 == 0):
            counts.append(0)
        counts[-1] += 1
    assert decompressed(compressed(counts)) == counts
    across = [x for x, column in enumerate(columns) if any(column)]
    down = [y for y, row in enumerate(zip(*columns, strict=True)) if any(row)]
    box = [across[0], down[0], across[-1] - across[0] + 1, down[-1] - down[0] + 1] if across else None
    assert box_of_runs(len(columns[0]), counts) == box


def test_captions_and_keypoints_are_kept(tmp_path: Path) -> None:
    captions = [
        {"id": n, "image_id": 9 if n else 42, "caption": text} for n, text in enumerate(["x", "two\tdogs", "\u72ac"])
    ]
    out = build_index(write(tmp_path, changed(annotations=captions, categories=[])), tmp_path / "x.txt")
    assert columns_of(out) == "image:path image_id:str captions:str"
    assert [json.loads(str(record["captions"])) for record in open_index(out)] == [["two\tdogs", "\u72ac"], ["x"], []]
    points = [{"id": 1, "image_id": 9, "bbox": [0, 0, 1, 1], "category_id": 3, "keypoints": [1, 2, 2, 0, 0, 0]}]
    out = build_index(write(tmp_path, changed(annotations=points)), tmp_path / "x.txt")
    assert json.loads(str(open_index(out)[0]["boxes"]))["keypoints"] == [[1, 2, 2, 0, 0, 0]]


def test_columns_can_be_selected_and_the_root_given(tmp_path: Path) -> None:
    path = write(tmp_path, DOCUMENT)
    out = build_index(path, tmp_path / "x.txt", columns="boxes:str image:path", root="s3://bucket/val2017")
    assert columns_of(out) == "boxes:str image:path"
    assert open_index(out).root == "s3://bucket/val2017"
    path.rename(tmp_path / "annotations" / "other.json")
    with pytest.raises(ArgumentError, match=r"its image b\.jpg was looked for in .*: --root FOLDER"):
        build_index(tmp_path / "annotations" / "other.json", out)


def test_objects_that_are_too_long_for_a_line_go_to_a_file_beside_the_index(tmp_path: Path) -> None:
    polygon = [float(number) for number in range(60_000)]
    long = {"id": 1, "image_id": 9, "bbox": [0, 0, 1, 1], "category_id": 3, "segmentation": [polygon]}
    path = write(tmp_path, changed(annotations=[long]))
    out = build_index(path, tmp_path / "x.txt")
    index = open_index(out)
    assert columns_of(out) == "image:path image_id:str boxes:span"
    assert index.root == str(tmp_path)
    assert [record["image"] for record in index] == ["val/a.jpg", "val/b.jpg", "val/c.jpg"]
    assert json.loads(read_span(tmp_path, index[0]["boxes"]))["segments"] == [[polygon]]
    assert json.loads(read_span(tmp_path, index[2]["boxes"]))["boxes"] == []
    (objects,) = tmp_path.glob("x.txt.*.annotations")
    first = out.read_bytes(), objects.read_bytes()
    build_index(path, out)
    assert (out.read_bytes(), objects.read_bytes()) == first
    with pytest.raises(ArgumentError, match=r"x\.txt\..*\.annotations: holds the column 'boxes', which is too long"):
        build_index(path, out, root="s3://bucket/val2017")
    assert (out.read_bytes(), objects.read_bytes()) == first


def test_a_selection_keeps_its_objects_when_the_source_is_indexed_again(tmp_path: Path) -> None:
    polygon = [float(number) for number in range(60_000)]
    objects = [
        {"id": image, "image_id": image, "bbox": [image, 0, 1, 1], "category_id": 3, "segmentation": [polygon]}
        for image in (9, 42)
    ]
    out = build_index(write(tmp_path, changed(annotations=objects[1:])), tmp_path / "x.txt")
    before = {record["image"]: read_span(tmp_path, record["boxes"]) for record in open_index(out)}
    (selected,) = open_index(out).select(tmp_path / "selected.txt", where="image_id == '42'")
    build_index(write(tmp_path, changed(annotations=objects)), out)
    (record,) = open_index(tmp_path / "selected.txt")
    assert record["boxes"] == selected["boxes"]
    assert read_span(tmp_path, record["boxes"]) == before[record["image"]]


@pytest.mark.parametrize(
    ("counts", "compressed"),
    [
        ([3, 4, 1, 12], "3418"),
        ([0, 20], "0d0"),
        ([1, 1, 1, 1, 16], "1110?"),
        ([100, 3000, 100000, 5, 2, 77, 1], "T3hm2PeQ3]RMR[nLX2O"),
    ],
)
def test_counts_are_compressed_as_pycocotools_does(tmp_path: Path, counts: list[int], compressed: str) -> None:
    segment = {"size": [sum(counts), 1], "counts": counts}
    crowd = {"id": 1, "image_id": 9, "bbox": [0, 0, 1, 1], "category_id": 3, "segmentation": segment}
    out = build_index(write(tmp_path, changed(annotations=[crowd])), tmp_path / "x.txt")
    assert json.loads(str(open_index(out)[0]["boxes"]))["segments"][0]["counts"] == compressed


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"images": []}, "lists no images"),
        ({"images": [{"id": 9}]}, r"'file_name' of image 9 must be a path, got None"),
        ({"images": [{"id": -1, "file_name": "a.jpg"}]}, "'id' of an image must be a positive integer or a text"),
        ({"images": [{"id": 9, "file_name": "\ud800"}]}, "must be a path"),
        ({"images": [{"id": 9, "file_name": "a.jpg", "width": 0, "height": 1}]}, "must be positive integers"),
        ({"images": [3]}, "an item of 'images' must be an object, got 3"),
        ({"images": DOCUMENT["images"][:2] + DOCUMENT["images"][:1]}, "the id '42' belongs to two images"),
        ({"images": DOCUMENT["images"][:1]}, "an annotation belongs to image '9', which is not among the images"),
        ({"categories": []}, "category 3 of an annotation is not among the categories"),
        ({"categories": [{"id": "3", "name": "cat"}]}, "a category must have an integer"),
    ],
)
def test_contradictions_are_errors_that_say_what(tmp_path: Path, members: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"instances_val\.json: .*{message}"):
        build_index(write(tmp_path, changed(**members)), tmp_path / "x.txt", root=tmp_path / "val")
    assert not (tmp_path / "x.txt").exists()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"bbox": [1, 2, 3]}, "'bbox' must be four numbers, got"),
        ({"bbox": [1, 2, 3, 1e400]}, "'bbox' must be four numbers"),
        ({"bbox": [1, 2, 3, 10**400]}, "'bbox' must be four numbers"),
        ({"bbox": [1, 2, 3, True]}, "'bbox' must be four numbers"),
        ({"bbox": [1, 2, 3, -4]}, r"'bbox' is x, y, width and height, but has a negative .*: \[1, 2, 3, -4\]"),
        ({"category_id": "cat"}, "'category_id' must be an integer"),
        ({"iscrowd": "0"}, "'iscrowd' must be 0 or 1, got '0'"),
        ({"iscrowd": 2}, "'iscrowd' must be 0 or 1, got 2"),
        ({"iscrowd": [1]}, "'iscrowd' must be 0 or 1, got"),
        ({"area": "big"}, "'area' must be a number"),
        ({"caption": 3}, "'caption' must be a text"),
        ({"keypoints": [1, 2]}, "'keypoints' must be x, y and visibility"),
        ({"segmentation": [[1, 2, 3]]}, "'segmentation' must be polygons"),
        ({"segmentation": {"counts": [1]}}, "or an encoding with a size"),
        ({"segmentation": {"size": [4, 5], "counts": [1, 2]}}, "must sum to 4 x 5"),
        ({"bbox": None, "segmentation": {"size": [4, 5], "counts": "12"}}, "must sum to 4 x 5, got 3"),
        ({"bbox": None, "segmentation": {"size": [4, 5], "counts": "1~"}}, "are damaged: the text has the letter '~'"),
        ({"bbox": None, "segmentation": {"size": [4, 5], "counts": "1P"}}, "are damaged: the text breaks off"),
    ],
)
def test_an_annotation_of_a_wrong_form_is_named(tmp_path: Path, members: dict[str, Any], message: str) -> None:
    wrong = {"id": 77, "image_id": 9, "bbox": [0, 0, 1, 1], "category_id": 3, **members}
    text = json.dumps(changed(annotations=[wrong])).replace("Infinity", "1e400")
    with pytest.raises(ArgumentError, match=rf"annotation 77 of image 9: .*{message}"):
        build_index(write(tmp_path, text), tmp_path / "x.txt")


def test_a_name_that_no_file_can_have_is_not_found(tmp_path: Path) -> None:
    document = changed(images=[{"id": 9, "file_name": "x" * 300}], annotations=[])
    with pytest.raises(ArgumentError, match="was looked for in"):
        build_index(write(tmp_path, document), tmp_path / "x.txt")


def test_an_image_outside_the_root_is_refused(tmp_path: Path) -> None:
    document = changed(images=[{"id": 9, "file_name": "../../etc/passwd"}], annotations=[])
    with pytest.raises(ArgumentError, match="image '9' leads outside the root"):
        build_index(write(tmp_path, document), tmp_path / "x.txt", root=tmp_path / "val")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from(["images", "annotations", "categories", "info"])


@given(
    document=st.dictionaries(_NAMES, _JSON | st.lists(st.sampled_from(DOCUMENT["images"] + DOCUMENT["annotations"])))
)
@settings(max_examples=60)
def test_hostile_documents_are_indexed_or_refused(document: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("coco")
    path = folder / "x.json"
    path.write_text(json.dumps(document))
    try:
        with open_coco(path, scratch=folder, index=folder / "x", root=folder) as rows:
            assert all(len(row) == len(rows.columns) for row in rows.cells)
    except MploadError as error:
        assert str(path) in str(error)  # noqa: PT017


@given(document=st.dictionaries(st.text(max_size=5), _JSON), size=st.integers(1, 40), cut=st.integers(0, 60))
@settings(max_examples=60)
def test_a_stream_of_json_gives_what_the_whole_gives(
    document: dict[str, Any], size: int, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    text = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpload.ingest.json_stream._READ_BYTES", size)
        found: dict[str, Any] = {}
        try:
            for name, item in read_members(path):
                if isinstance(document[name], list):
                    found.setdefault(name, []).append(item)
                else:
                    found[name] = item
            assert found == {name: [[]] if value == [] else value for name, value in document.items()}
        except ArgumentError:
            assert b"NaN" in text or b"Infinity" in text
        path.write_bytes(text[: max(0, len(text) - 1 - cut)])
        with pytest.raises(ArgumentError, match="is not valid JSON after character"):
            list(read_members(path))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a"', '{"a":1}x', '{"a":[1 2]}', '{"a":' + "[" * 100_000, "\xff{"])
def test_what_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArgumentError, match=r"x\.json: is not valid JSON after character"):
        build_index(tmp_path / "x.json", tmp_path / "x.txt")


@pytest.mark.slow
def test_a_large_file_takes_bounded_memory(tmp_path: Path) -> None:
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 640, "height": 480} for n in range(300)]
    segment = {"size": [480, 640], "counts": "x" * 4000}
    box = {"bbox": [0, 0, 1, 1], "category_id": 3, "segmentation": segment}
    boxes = [{"id": number, "image_id": number % 300, **box} for number in range(6000)]
    path = write(tmp_path, changed(images=images, annotations=boxes))
    (tmp_path / "val" / "0.jpg").write_bytes(JPEG)
    assert path.stat().st_size > 22 << 20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpload.ingest.coco.sorted_strings", partial(sorted_strings, run_bytes=1 << 20))
        tracemalloc.start()
        try:
            with open_coco(path, scratch=tmp_path, index=tmp_path / "x") as rows:
                assert sum(1 for _ in rows.cells) == 300
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak_bytes < 10 << 20
    assert cells(build_index(path, tmp_path / "x.txt"))[0][0] == "0.jpg"
