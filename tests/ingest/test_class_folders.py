"""Subfolders that are no classes, class folders that would be missing, and links that could not be read are refused."""

import re
from pathlib import Path

import pytest

from mpload import FolderOptions, build_index, open_index
from mpload.errors import ArgumentError, MploadWarning
from mpload.storage.local import LocalStorage
from mpload.storage.ranges import ByteRange
from tests.support.ingested import cells, make_files

FOLLOW = FolderOptions(follow_links=True)


def test_a_class_folder_that_is_a_link_is_an_error_unless_links_are_followed(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "cat/1.jpg", "fox/1.jpg", "fox/inner/2.jpg")
    (tree / "dog").symlink_to("fox/inner")
    with pytest.raises(ArgumentError, match=r"symbolic links, which are not followed: dog\. .*--follow-links"):
        build_index(tree, tmp_path / "x.txt")
    assert not (tmp_path / "x.txt").exists()
    index = open_index(build_index(tree, tmp_path / "x.txt", folder=FOLLOW))
    assert index.classes == ("cat", "dog", "fox")
    assert [record["image"] for record in index][1] == "dog/2.jpg"


def test_a_link_beside_the_images_of_a_flat_folder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    flat = make_files(tmp_path / "flat", "1.jpg")
    (flat / "more").symlink_to(tmp_path)
    with pytest.warns(MploadWarning, match="1 symbolic links"):
        assert cells(build_index(flat, tmp_path / "x.txt")) == [("1.jpg",)]


def test_links_to_nothing_are_no_classes(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "cat/1.jpg")
    (tree / "itself").symlink_to("itself")
    (tree / "gone").symlink_to("nowhere")
    with pytest.warns(MploadWarning, match="2 symbolic links"):
        assert cells(build_index(tree, tmp_path / "x.txt")) == [("cat/1.jpg", 0)]


@pytest.mark.parametrize("link", ["cat/far.jpg", "far"])
def test_a_followed_link_out_of_the_root_is_an_error_that_names_a_root_that_works(tmp_path: Path, link: str) -> None:
    tree = make_files(tmp_path / "data" / "tree", "cat/1.jpg")
    make_files(tmp_path / "data", "other/dog/1.jpg")
    (tree / link).symlink_to(tmp_path / "data" / "other" / ("dog/1.jpg" if link.endswith("jpg") else "dog"))
    with pytest.raises(ArgumentError, match=rf"{link}: is a link to .*/other/dog.*, which lies outside") as caught:
        build_index(tree, tmp_path / "x.txt", folder=FOLLOW)
    root = re.search(r"root=\.\.\.\): (.*)\. Or", str(caught.value))
    assert root is not None
    assert root[1] == str(tmp_path / "data")
    index = open_index(build_index(tree, tmp_path / "x.txt", folder=FOLLOW, root=root[1]))
    with LocalStorage(Path(index.root)) as storage:
        assert all(storage.read([ByteRange(str(record["image"])) for record in index]))


def test_links_inside_the_root_and_those_of_a_copy_at_a_url_are_followed(tmp_path: Path) -> None:
    real = make_files(tmp_path / "real", "cat/1.jpg")
    (real / "cat" / "2.jpg").symlink_to(real / "cat" / "1.jpg")
    (tmp_path / "tree").symlink_to(real)
    assert len(cells(build_index(tmp_path / "tree", tmp_path / "x.txt", folder=FOLLOW))) == 2
    make_files(tmp_path, "far.jpg")
    (real / "cat" / "3.jpg").symlink_to(tmp_path / "far.jpg")
    out = build_index(tmp_path / "tree", tmp_path / "x.txt", folder=FOLLOW, root="s3://bucket/x")
    assert len(cells(out)) == 3


def test_links_of_a_folder_in_the_layout_of_yolo_may_lead_anywhere_below_its_root(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "images/1.jpg", ".photos/2.jpg")
    (tree / "labels").mkdir()
    (tree / "labels" / "1.txt").write_text("0 .5 .5 .1 .1\n")
    (tree / "images" / "2.jpg").symlink_to("../.photos/2.jpg")
    assert len(cells(build_index(tree, tmp_path / "x.txt", folder=FOLLOW))) == 2
    make_files(tmp_path, "3.jpg")
    (tree / "images" / "3.jpg").symlink_to("../../3.jpg")
    assert len(cells(build_index(tree, tmp_path / "x.txt", folder=FOLLOW, root=tmp_path))) == 3
    with pytest.raises(ArgumentError, match="outside of the root"):
        build_index(tree, tmp_path / "x.txt", folder=FOLLOW)


def test_a_folder_with_more_images_beside_its_subfolders_than_in_them_is_refused(tmp_path: Path) -> None:
    flat = make_files(tmp_path / "flat", "1.jpg", "2.jpg", "thumbs/1.jpg")
    with pytest.raises(ArgumentError, match=r"2 images lie directly in it, but only 1 .* classes: thumbs\."):
        build_index(flat, tmp_path / "x.txt")
    assert not (tmp_path / "x.txt").exists()
    assert len(cells(build_index(flat, tmp_path / "x.txt", columns="image:path"))) == 3
    make_files(flat, "thumbs/2.jpg")
    with pytest.warns(MploadWarning, match="2 images beside the class folders"):
        assert len(cells(build_index(flat, tmp_path / "x.txt"))) == 2


@pytest.mark.parametrize("splits", [("train",), ("train", "val"), ("Training", "test", "extra")])
def test_folders_named_as_splits_are_no_classes(tmp_path: Path, splits: tuple[str, ...]) -> None:
    tree = make_files(tmp_path / "tree", *(f"{split}/{name}/1.jpg" for split in splits for name in ("cat", "dog")))
    with pytest.raises(
        ArgumentError, match=rf"have the names of splits, so they .*: {splits[0]}.* mpload index .*/{splits[0]} -o "
    ):
        build_index(tree, tmp_path / "x.txt")
    assert open_index(build_index(tree / splits[0], tmp_path / "x.txt")).classes == ("cat", "dog")
    assert open_index(build_index(tree, tmp_path / "x.txt", columns="image:path label:int")).classes == tuple(
        sorted(splits)
    )


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "bus/1.jpg", "train/1.jpg")
    assert open_index(build_index(tree, tmp_path / "x.txt")).classes == ("bus", "train")


def test_splits_of_yolo_are_no_classes(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "train/images/1.jpg", "valid/images/2.jpg", "test/images/3.jpg")
    for split in ("train", "valid"):
        (tree / split / "labels").mkdir()
    (tree / "train" / "labels" / "1.txt").write_text("0 .5 .5 .1 .1\n")
    (tree / "data.yaml").write_text("names: [cat]\n")
    with pytest.raises(
        ArgumentError, match=r"layout do, .*: train, valid\. .*: mpload index .*/tree/train -o train\.t"
    ):
        build_index(tree, tmp_path / "x.txt")
    assert cells(build_index(tree / "train", tmp_path / "x.txt"))[0][0] == "images/1.jpg"
    (tree / "train" / "labels" / "1.txt").unlink()
    (tree / "data.yaml").unlink()
    assert open_index(build_index(tree, tmp_path / "x.txt", columns="image:path label:int")).classes[0] == "test"
    assert len(cells(build_index(tree, tmp_path / "x.txt", columns="image:path"))) == 3
