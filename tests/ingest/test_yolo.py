"""Folders in YOLO's layout: what describes the labels, keypoints, and labels that are refused with their line."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from mpload import Boxes, Keypoints, build_index, open_index
from mpload.errors import ArgumentError, MploadWarning
from mpload.images.geometry import Geometry
from tests.support.ingested import cells, make_files

pytest.importorskip("yaml")

LINE = "0 0.5 0.5 0.2 0.2"
CATS = "names: [cat, dog]\n"


def make_yolo(folder: Path, label: str, **files: str) -> Path:
    """Write one image with labels, and files such as `data_yaml` beside the folders."""
    make_files(folder, "images/a.jpg")
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "labels" / "a.txt").write_text(label)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def classes_of(folder: Path) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_index(build_index(folder, folder.parent / "x.txt")).classes


@pytest.mark.parametrize(
    ("shape", "line", "points"),
    [
        ("[2, 3]", "1 0.5 0.5 0.2 0.4 0.45 0.4 2 0.55 0.6 1", [[45, 20, 2], [55, 30, 1]]),
        ("[2, 2]", "1 0.5 0.5 0.2 0.4 0.45 0.4 0 0", [[45, 20, 2], [0, 0, 0]]),
    ],
)
def test_labels_of_poses_have_their_boxes_and_keypoints(
    tmp_path: Path, shape: str, line: str, points: list[list[int]]
) -> None:
    yolo = make_yolo(tmp_path / "yolo", f"\n{line}\n", data_yaml=f"kpt_shape: {shape}\n{CATS}")
    make_files(yolo, "images/b.jpg")
    out = build_index(yolo, tmp_path / "x.txt")
    assert open_index(out).classes == ("cat", "dog")
    (_, cell), (_, empty) = cells(out)
    decode = Boxes("yolo", keypoints=Keypoints())
    made = decode(str(cell), Geometry.whole(50, 100))
    assert made["labels"].tolist() == [1]
    np.testing.assert_allclose(made["boxes"], [[40, 15, 60, 35]], atol=1e-4)
    np.testing.assert_allclose(made["keypoints"], [points], atol=1e-4)
    assert decode(str(empty), Geometry.whole(50, 100))["boxes"].shape == (0, 4)
    with pytest.raises(ValueError, match=r'the boxes are "yolo", says their JSON: pass Boxes\("yolo"\)'):
        Boxes("xywh")(str(cell))


def test_keypoints_are_also_described_one_folder_higher(tmp_path: Path) -> None:
    make_yolo(tmp_path / "set" / "train", f"{LINE} 0.4 0.4 2")
    (tmp_path / "set" / "data.yaml").write_text(f"{CATS}nc: 2\nkpt_shape: [1, 3]\n")
    ((_, cell),) = cells(build_index(tmp_path / "set" / "train", tmp_path / "x.txt"))
    assert json.loads(str(cell)) == {
        "format": "yolo",
        "boxes": [[0.5, 0.5, 0.2, 0.2]],
        "labels": [0],
        "keypoints": [[0.4, 0.4, 2]],
    }
    (tmp_path / "set" / "data.yaml").write_text("stages: {train: 1}\n")  # of another program
    (tmp_path / "set" / "train" / "labels" / "a.txt").write_text(LINE)
    assert classes_of(tmp_path / "set" / "train") == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "0 50 50 20 20",
            "has centre x 50, which must be a fraction of the image's width, from 0 to 1: '0 50 50 20 20'",
        ),
        ("0 0.5 0.5 0.2 1.02", "has height 1.02, which must be a fraction of the image's height"),
        ("0 0.5 0.5 0.2 -0.2", "has a negative width or height"),
        ("0 10 10 20 10 20 20", "has a polygon with centre x 15, .* a data.yaml that names their kpt_shape"),
        ("-1 0.5 0.5 0.2 0.2", "has class -1, but classes are whole numbers from 0"),
        ("2 0.5 0.5 0.2 0.2", r"has class 2, but .*data\.yaml names only classes 0 to 1: '2 0.5 0.5 0.2 0.2'"),
        ("dog 0.5 0.5 0.2 0.2", "must be a class, then centre x"),
    ],
)
def test_a_label_that_training_would_misread_is_an_error_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    yolo = make_yolo(tmp_path / "yolo", f"{LINE}\n\n{line}\n", data_yaml=CATS)
    with pytest.raises(ArgumentError, match=rf"labels/a\.txt:3: {message}.*Correct the line"):
        build_index(yolo, tmp_path / "x.txt")
    assert cells(build_index(yolo, tmp_path / "x.txt", columns="image:path")) == [("images/a.jpg",)]


def test_labels_that_ultralytics_accepts_are_kept_as_they_are(tmp_path: Path) -> None:
    lines = "0 1.01 -0.01 0.1 0.1\n1 0 1 0.5 0.5\n1 -0.2 0.5 0.5 0.5 0.5 1.1"
    assert cells(build_index(make_yolo(tmp_path / "yolo", lines, data_yaml=CATS), tmp_path / "x.txt")) == [
        ("images/a.jpg", lines)
    ]


def test_any_class_number_is_kept_if_the_names_are_not_known(tmp_path: Path) -> None:
    assert cells(build_index(make_yolo(tmp_path / "yolo", f"7{LINE[1:]}"), tmp_path / "x.txt"))[0][1] == f"7{LINE[1:]}"


def test_lines_without_the_keypoints_of_the_shape_are_refused(tmp_path: Path) -> None:
    yolo = make_yolo(tmp_path / "yolo", LINE, data_yaml=f"{CATS}kpt_shape: [17, 3]\n")
    with pytest.raises(ArgumentError, match=r"a\.txt:1: must have 56 numbers, .* or kpt_shape in .*data\.yaml"):
        build_index(yolo, tmp_path / "x.txt")


def test_the_names_of_data_yaml_win_against_classes_txt_with_a_warning(tmp_path: Path) -> None:
    yolo = make_yolo(tmp_path / "yolo", LINE, data_yaml=CATS, classes_txt="person\n")
    with pytest.warns(
        MploadWarning, match=r"yolo/classes\.txt has other classes than .*yolo/data\.yaml, whose names are"
    ):
        assert open_index(build_index(yolo, tmp_path / "x.txt")).classes == ("cat", "dog")
    (yolo / "classes.txt").write_text("cat\n\ndog\n")
    assert classes_of(yolo) == ("cat", "dog")
    (yolo / "data.yaml").write_text("\n")
    (yolo / "classes.txt").write_text("person\n")
    assert classes_of(yolo) == ("person",)


def test_another_yaml_file_with_names_describes_the_labels_if_it_is_the_only_one(tmp_path: Path) -> None:
    yolo = make_yolo(tmp_path / "yolo", LINE, coco_yaml=CATS, hyp_yaml="lr0: 0.01\n", big_yaml="names: 1\n" * (1 << 17))
    assert classes_of(yolo) == ("cat", "dog")
    (yolo / "same.yml").write_text("names: {0: cat, 1: dog}\n")
    assert classes_of(yolo) == ("cat", "dog")
    (yolo / "other.yaml").write_text("names: [dog, cat]\n")
    with pytest.raises(ArgumentError, match=r"other\.yaml: says something else of the classes .* than .*coco\.yaml"):
        build_index(yolo, tmp_path / "x.txt")
    (yolo / "data.yaml").write_text(CATS)
    assert classes_of(yolo) == ("cat", "dog")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nc: 3\n", "'nc' is 3, but 'names' lists 2 classes"),
        (
            "kpt_shape: 17\n",
            "'kpt_shape' must be the number of keypoints, then how many numbers each has, 2 or 3, got 17",
        ),
        ("kpt_shape: [17, 4]\n", r"'kpt_shape' must be .* got \[17, 4\]"),
        ("kpt_shape: [0, 3]\n", "'kpt_shape' must be"),
        ("kpt_shape: [a, 3]\n", "'kpt_shape' must be"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(tmp_path: Path, text: str, message: str) -> None:
    yolo = make_yolo(tmp_path / "yolo", LINE, data_yaml=CATS + text)
    with pytest.raises(ArgumentError, match=rf"data\.yaml: {message}"):
        build_index(yolo, tmp_path / "x.txt")
