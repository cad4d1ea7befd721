"""Folders of Pascal VOC and of YOLO as sources."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, MploadError, MploadWarning
from tests.support.ingested import cells, columns_of, make_files

DOG = "<object><name>dog</name>{}<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4.5</ymax></bndbox></object>"
CAT = DOG.replace("dog", "cat")


def make_voc(folder: Path, **objects: str) -> Path:
    for stem, inside in objects.items():
        make_files(folder, f"JPEGImages/{stem}.jpg", f"SegmentationClass/{stem}.png")
        (folder / "Annotations").mkdir(exist_ok=True)
        size = "<size><width>9</width><height>8</height></size>"
        (folder / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{size}{inside}</annotation>")
    for name in ("Main", "Segmentation"):
        (folder / "ImageSets" / name).mkdir(parents=True, exist_ok=True)
        (folder / "ImageSets" / name / "train.txt").write_text("b  1\na -1\n\n")
    return folder


def make_yolo(folder: Path) -> Path:
    make_files(folder, "images/train/b.jpg", "images/train/a.png", "images/val/c.jpg")
    (folder / "labels" / "train").mkdir(parents=True)
    (folder / "labels" / "train" / "a.txt").write_text("0 0.5 0.5 0.2 0.4\n\n1 0.1 0.1 0.1 0.1\r\n")
    return folder


def test_a_folder_of_voc_has_boxes_from_0_and_the_names_of_all_objects(tmp_path: Path) -> None:
    voc = make_voc(tmp_path / "voc", b=DOG.format("<difficult>1</difficult>") + CAT.format(""), a=DOG.format(""), c="")
    out = build_index(voc, tmp_path / "x.txt")
    assert columns_of(out) == "image:path boxes:str"
    index = open_index(out)
    assert index.classes == ("cat", "dog")
    assert [record["image"] for record in index] == [f"JPEGImages/{stem}.jpg" for stem in "abc"]
    found = [json.loads(str(record["boxes"])) for record in index]
    size = {"width": 9, "height": 8}
    box = [0, 1, 3, 3.5]
    assert found == [
        {**size, "format": "xywh", "boxes": [box], "labels": [1], "difficult": [0]},
        {**size, "format": "xywh", "boxes": [box, box], "labels": [1, 0], "difficult": [1, 0]},
        {**size, "format": "xywh", "boxes": [], "labels": [], "difficult": []},
    ]


def test_a_set_of_voc_has_its_images_in_its_order_and_the_classes_of_all(tmp_path: Path) -> None:
    voc = make_voc(tmp_path / "voc", a=DOG.format(""), b=DOG.format(""), c=CAT.format(""))
    out = build_index(voc / "ImageSets" / "Main" / "train.txt", tmp_path / "x.txt", root=tmp_path)
    index = open_index(out)
    assert [record["image"] for record in index] == ["voc/JPEGImages/b.jpg", "voc/JPEGImages/a.jpg"]
    assert index.classes == ("cat", "dog")
    out = build_index(voc / "ImageSets" / "Segmentation" / "train.txt", tmp_path / "x.txt")
    assert columns_of(out) == "image:path mask:path"
    assert cells(out)[0] == ("JPEGImages/b.jpg", "SegmentationClass/b.png")
    (voc / "JPEGImages" / "b.jpg").unlink()
    with pytest.raises(ArgumentError, match=r"JPEGImages/b\.jpg: is missing"):
        build_index(voc, tmp_path / "x.txt")


def test_a_warning_counts_images_of_voc_without_xml(tmp_path: Path) -> None:
    voc = make_voc(tmp_path / "voc", a=DOG.format(""), b="")
    make_files(voc, "JPEGImages/z.jpg", "JPEGImages/c.PNG", "JPEGImages/.c.jpg", "JPEGImages/c.md")
    with pytest.warns(MploadWarning, match=r": 2 images with no XML file .*, such as JPEGImages/c\.PNG$"):
        out = build_index(voc, tmp_path / "x.txt")
    assert len(open_index(out)) == 2
    assert len(open_index(build_index(voc / "ImageSets" / "Main" / "train.txt", tmp_path / "x.txt"))) == 2


def test_the_namespace_of_xml_makes_no_difference(tmp_path: Path) -> None:
    voc = make_voc(tmp_path / "voc", a=DOG.format(""))
    out = build_index(voc, tmp_path / "x.txt")
    expected = cells(out)
    xml = voc / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace("<annotation>", '<annotation xmlns="https://example.com/voc">'))
    assert cells(build_index(voc, out)) == expected
    assert open_index(out).classes == ("dog",)


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a\0b", "x" * 300])
def test_a_set_with_a_name_that_is_no_image_is_refused(tmp_path: Path, name: str) -> None:
    voc = make_voc(tmp_path / "voc", a="")
    (voc / "ImageSets" / "Main" / "train.txt").write_text(f"{name}\n")
    with pytest.raises(ArgumentError, match=r"is not the name of an image|is missing"):
        build_index(voc / "ImageSets" / "Main" / "train.txt", tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not XML"),
        ("<a>", "is not XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "declares a document type"),
        (f"<a>{DOG.format('')}</a>".replace("<xmin>1", "<xmin>left"), "xmin must be a number, got 'left'"),
        (f"<a>{DOG.format('')}</a>".replace("<xmin>1", "<xmin>inf"), "xmin must be a number, got 'inf'"),
        (f"<a>{DOG.format('')}</a>".replace("<ymin>2</ymin>", ""), "ymin must be a number, got None"),
        (f"<a>{DOG.format('')}</a>".replace("dog", ""), "the name of an object is ''"),
        (f"<a>{DOG.format('')}</a>".replace("<xmax>3", "<xmax>-1"), r"must not be below its xmin .* \[1, 2, -1, 4.5\]"),
        ("<a>" + " " * (5 << 20) + "</a>", "is larger than 4194304 bytes"),
        ('<?xml version="1.0" encoding="x"?><a/>', "is not XML"),
    ],
)
def test_broken_xml_is_an_error_that_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    voc = make_voc(tmp_path / "voc", a="")
    (voc / "Annotations" / "a.xml").write_text(text)
    with pytest.raises(ArgumentError, match=rf"Annotations/a\.xml: .*{message}"):
        build_index(voc, tmp_path / "x.txt")


@given(data=st.binary(max_size=60) | st.text("<>/&;objectnamebndbox![]\"' ", max_size=60).map(str.encode))
@settings(max_examples=60)
def test_hostile_xml_is_read_or_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("voc")
    voc = make_voc(folder / "voc", a="")
    (voc / "Annotations" / "a.xml").write_bytes(data)
    try:
        assert len(open_index(build_index(voc, folder / "x.txt"))) == 1
    except MploadError as error:
        assert "a.xml" in str(error)  # noqa: PT017


def test_a_folder_of_yolo_has_the_texts_of_its_images(tmp_path: Path) -> None:
    out = build_index(make_yolo(tmp_path / "yolo"), tmp_path / "x.txt")
    assert columns_of(out) == "image:path boxes:str"
    assert cells(out) == [
        ("images/train/a.png", "0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.1 0.1"),
        ("images/train/b.jpg", ""),
        ("images/val/c.jpg", ""),
    ]
    assert open_index(out).root == str(tmp_path / "yolo")
    assert open_index(out).classes == ()


def test_a_warning_counts_labels_of_yolo_without_an_image(tmp_path: Path) -> None:
    yolo = make_yolo(tmp_path / "yolo")
    make_files(
        yolo, "images/val/d.JPEG", "labels/train/z.txt", "labels/classes.txt", "labels/val/.c.txt", "labels/x.md"
    )
    (yolo / "labels" / "val" / "d.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    with pytest.warns(MploadWarning, match=r": 2 texts of labels with no image .*, such as labels/classes\.txt$"):
        out = build_index(yolo, tmp_path / "x.txt")
    assert len(open_index(out)) == 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("classes.txt", "person\nred car\n"),
        ("data.yaml", "train: images/train\nnames: [person, red car]\n"),
        ("data.yaml", "names:\n  0: person\n  1: red car\n"),
    ],
)
def test_a_folder_of_yolo_has_named_classes(tmp_path: Path, name: str, text: str) -> None:
    pytest.importorskip("yaml")
    (make_yolo(tmp_path / "yolo") / name).write_text(text)
    assert open_index(build_index(tmp_path / "yolo", tmp_path / "x.txt")).classes == ("person", "red car")


@pytest.mark.parametrize("text", ["names: {0: a, 2: b}", "names: 3", "a: [", "names: [1]", "[]", 'names: ["\\t"]'])
def test_a_data_yaml_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    pytest.importorskip("yaml")
    (make_yolo(tmp_path / "yolo") / "data.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=r"data\.yaml: "):
        build_index(tmp_path / "yolo", tmp_path / "x.txt")


@given(data=st.binary(max_size=60))
@settings(max_examples=40)
def test_hostile_texts_of_yolo_are_kept_or_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("yolo")
    make_yolo(folder / "yolo")
    (folder / "yolo" / "labels" / "train" / "b.txt").write_bytes(data)
    try:
        assert len(open_index(build_index(folder / "yolo", folder / "x.txt"))) == 3
    except MploadError as error:
        assert "b.txt" in str(error)  # noqa: PT017


def test_folders_named_like_those_of_other_layouts_can_still_be_classes(tmp_path: Path) -> None:
    make_files(tmp_path / "tree", "images/1.jpg", "labels/1.png")
    assert cells(build_index(tmp_path / "tree", tmp_path / "x.txt")) == [("images/1.jpg", 0), ("labels/1.png", 1)]
    make_files(tmp_path / "davis", "JPEGImages/a/1.jpg", "Annotations/a/1.png")
    assert len(cells(build_index(tmp_path / "davis", tmp_path / "x.txt"))) == 2
