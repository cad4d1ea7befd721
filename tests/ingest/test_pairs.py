"""Folders of images with their masks, captions and other files."""

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import FolderOptions, build_index, open_index
from mpload.errors import ArgumentError, MploadWarning
from mpload.ingest.pairs import Beside, belongs_to_image
from tests.support.ingested import cells, columns_of, make_files


def test_folders_of_images_and_masks_are_pairs(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "images/b/1.jpg", "images/0.JPG", "masks/b/1.png", "masks/0.png")
    out = build_index(tree, tmp_path / "x.txt")
    assert columns_of(out) == "image:path mask:path"
    assert cells(out) == [("images/0.JPG", "masks/0.png"), ("images/b/1.jpg", "masks/b/1.png")]
    assert open_index(out).root == str(tree)
    build_index(tree, out, columns="photo:path ids:path")
    assert columns_of(out) == "photo:path ids:path"


def test_folders_of_images_and_masks_can_still_be_classes(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "images/1.jpg", "masks/1.png")
    out = build_index(tree, tmp_path / "x.txt", columns="image:path label:int")
    assert cells(out) == [("images/1.jpg", 0), ("masks/1.png", 1)]
    assert open_index(out).classes == ("images", "masks")


@pytest.mark.parametrize("columns", [None, "photo:path ids:path"])
def test_a_url_as_root_of_images_and_masks_is_that_of_the_folder_of_both(tmp_path: Path, columns: str | None) -> None:
    tree = make_files(tmp_path / "tree", "images/b/1.jpg", "masks/b/1.png")
    out = build_index(tree, tmp_path / "x.txt", root="s3://bucket/tree", columns=columns)
    assert open_index(out).root == "s3://bucket/tree"
    assert cells(out) == [("images/b/1.jpg", "masks/b/1.png")]
    beside = FolderOptions(beside={"mask": "../masks/{}.png"})
    with pytest.raises(ArgumentError, match="root s3://bucket/tree does not contain the files beside"):
        build_index(tree / "images", tmp_path / "x.txt", root="s3://bucket/tree", folder=beside)


@pytest.mark.parametrize("more", ["depth/1.png", "masks2/1.png", "0.jpg"])
def test_images_and_masks_beside_other_images_are_not_taken_for_classes(tmp_path: Path, more: str) -> None:
    tree = make_files(tmp_path / "tree", "images/1.jpg", "masks/1.png", more)
    name = more.partition("/")[0]
    with pytest.raises(ArgumentError, match=rf"has images/ and masks/, but also {name}.*beside=.*columns=") as caught:
        build_index(tree, tmp_path / "x.txt")
    assert not (tmp_path / "x.txt").exists()
    assert "{'mask': '../masks/{}.png'}" in str(caught.value)
    out = build_index(tree / "images", tmp_path / "x.txt", folder=FolderOptions(beside={"mask": "../masks/{}.png"}))
    assert columns_of(out) == "image:path mask:path"
    build_index(tree, tmp_path / "x.txt", columns="image:path mask:path")
    assert cells(tmp_path / "x.txt") == [("images/1.jpg", "masks/1.png")]


def test_other_names_of_images_and_masks_are_not_taken_for_classes(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "img/1.jpg", "mask/1.png")
    with pytest.raises(ArgumentError, match=r"has img/ and mask/. If masks belong to images, index .*/img with"):
        build_index(tree, tmp_path / "x.txt")
    faces = make_files(tmp_path / "faces", "mask/1.jpg", "no_mask/1.jpg")
    assert cells(build_index(faces, tmp_path / "y.txt")) == [("mask/1.jpg", 0), ("no_mask/1.jpg", 1)]


def test_texts_beside_images_and_masks_do_not_matter(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "images/1.jpg", "masks/1.png", "README.md", "classes.txt")
    out = build_index(tree, tmp_path / "x.txt")
    assert cells(out) == [("images/1.jpg", "masks/1.png")]


def test_an_image_without_a_mask_is_an_error_that_names_both(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "images/1.jpg", "images/2.jpg", "masks/1.png")
    with pytest.raises(ArgumentError, match=r"image 2\.jpg has no file .*/masks/2\.png \(column mask\)\. Add the mask"):
        build_index(tree, tmp_path / "x.txt")
    assert not (tmp_path / "x.txt").exists()


def test_a_warning_counts_masks_without_an_image(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "images/b/1.JPG", "masks/b/1.png", "masks/b/2.npy", "masks/b/3.txt")
    make_files(tree, "masks/1.png", "masks/.3.png")
    with pytest.warns(MploadWarning, match=r": 2 masks with no image of the same name, such as masks/1\.png$"):
        out = build_index(tree, tmp_path / "x.txt")
    assert cells(out) == [("images/b/1.JPG", "masks/b/1.png")]


def test_a_flat_folder_with_a_text_for_each_image_has_captions(tmp_path: Path) -> None:
    flat = make_files(tmp_path / "flat", "b.jpg", "b.txt", "a.webp", "a.txt", ".hidden.txt")
    out = build_index(flat, tmp_path / "x.txt")
    assert columns_of(out) == "image:path caption:path"
    assert cells(out) == [("a.webp", "a.txt"), ("b.jpg", "b.txt")]


def test_texts_that_are_not_captions_are_left_out_as_before(tmp_path: Path) -> None:
    flat = make_files(tmp_path / "flat", "a.jpg", "b.jpg", "a.md", "README.txt", "b.TXT")
    with pytest.warns(MploadWarning, match="3 files with other extensions"):
        out = build_index(flat, tmp_path / "x.txt")
    assert cells(out) == [("a.jpg",), ("b.jpg",)]


def test_texts_of_no_image_are_left_out_beside_captions_and_counted(tmp_path: Path) -> None:
    flat = make_files(tmp_path / "flat", "a.jpg", "a.PNG", "a.txt", "b.jpg", "b.txt", "README.txt", "zz.txt")
    with pytest.warns(MploadWarning, match=r": 2 texts with no image of the same name .*such as README\.txt$"):
        out = build_index(flat, tmp_path / "x.txt")
    assert cells(out) == [("a.PNG", "a.txt"), ("a.jpg", "a.txt"), ("b.jpg", "b.txt")]


def test_an_image_without_a_caption_is_an_error_if_another_image_has_one(tmp_path: Path) -> None:
    flat = make_files(tmp_path / "flat", "a.jpg", "b.jpg", "c.jpg", "c.txt")
    with pytest.raises(ArgumentError, match=r"image a\.jpg has no file .*a\.txt .*give columns='image:path'"):
        build_index(flat, tmp_path / "x.txt")
    with pytest.warns(MploadWarning):
        assert len(cells(build_index(flat, tmp_path / "x.txt", columns="image:path"))) == 3


_STEMS = st.sets(st.sampled_from(["a", "a.b", "a-b", "B", "\u00fc", "README"]), max_size=6)


@given(images=_STEMS.filter(bool), texts=_STEMS)
def test_captions_are_a_column_exactly_if_an_image_has_one(
    images: set[str], texts: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("captions")
    make_files(place / "flat", *(f"{stem}.jpg" for stem in images), *(f"{stem}.txt" for stem in texts))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if images & texts and images - texts:
            with pytest.raises(ArgumentError, match="has no file"):
                build_index(place / "flat", place / "x.txt")
            return
        found = cells(build_index(place / "flat", place / "x.txt"))
    names = sorted(f"{stem}.jpg" for stem in images)
    assert found == [(name, f"{name[:-4]}.txt") if images & texts else (name,) for name in names]
    assert [str(each.message).split(": ")[1].split()[0] for each in warned] == [str(len(texts - images))] * bool(
        texts - images
    )


def test_patterns_add_the_files_of_each_image_in_class_folders(tmp_path: Path) -> None:
    make_files(tmp_path, "data/photos/cat/1.jpg", "data/photos/dog/2.jpg", "data/photos/cat/1.txt")
    make_files(tmp_path, "data/photos/dog/2.txt", "data/depth/cat/1_d.png", "data/depth/dog/2_d.png")
    options = FolderOptions(beside={"depth": "../depth/{}_d.png", "caption": "{}.txt"})
    out = build_index(tmp_path / "data" / "photos", tmp_path / "x.txt", folder=options)
    assert columns_of(out) == "image:path label:int depth:path caption:path"
    assert cells(out) == [
        ("photos/cat/1.jpg", 0, "depth/cat/1_d.png", "photos/cat/1.txt"),
        ("photos/dog/2.jpg", 1, "depth/dog/2_d.png", "photos/dog/2.txt"),
    ]
    assert open_index(out).root == str(tmp_path / "data")
    out = build_index(
        tmp_path / "data" / "photos", out, folder=options, columns="photo:path z:path words:path", root=tmp_path
    )
    assert cells(out)[0] == ("data/photos/cat/1.jpg", "data/depth/cat/1_d.png", "data/photos/cat/1.txt")


def test_files_beside_images_are_not_images_themselves(tmp_path: Path) -> None:
    make_files(tmp_path / "flat", "1.jpg", "1_mask.png", "2.png", "2_mask.png")
    out = build_index(tmp_path / "flat", tmp_path / "x.txt", folder=FolderOptions(beside={"mask": "{}_mask.png"}))
    assert cells(out) == [("1.jpg", "1_mask.png"), ("2.png", "2_mask.png")]


def test_a_root_that_lacks_the_files_beside_the_images_is_refused(tmp_path: Path) -> None:
    make_files(tmp_path, "photos/1.jpg", "masks/1.png")
    options = FolderOptions(beside={"mask": "../masks/{}.png"})
    with pytest.raises(ArgumentError, match=rf"does not contain the files beside.*such as {tmp_path}"):
        build_index(tmp_path / "photos", tmp_path / "x.txt", folder=options, root=tmp_path / "photos")


def test_a_pattern_must_name_the_image_and_a_local_folder() -> None:
    with pytest.raises(ArgumentError, match=r"the pattern 'mask\.png' of 'mask' lacks {}"):
        FolderOptions(beside={"mask": "mask.png"})
    with pytest.raises(ArgumentError, match="local folders only"):
        build_index("s3://bucket/x", "x.txt", folder=FolderOptions(beside={"mask": "{}.png"}))


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)


@given(image=_NAMES, folder=_NAMES)
def test_any_name_of_an_image_leads_to_its_own_file(
    image: str, folder: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("pairs")
    inner = top / "images" / f"{folder}_"
    inner.mkdir(parents=True)
    (top / "masks" / f"{folder}_").mkdir(parents=True)
    expected = top / "masks" / f"{folder}_" / f"a{image}.png"
    expected.touch()
    beside = Beside(folder=str(top / "images"), patterns={"mask": "../masks/{}.png"})
    (found,) = beside.paths(f"{folder}_/a{image}.jpg", str(top))
    assert (top / found).samefile(expected)
    matches = belongs_to_image({"mask": "{}_m.png", "elsewhere": "../masks/{}.png"})
    assert matches is not None
    assert matches.fullmatch(f"{folder}_/a{image}_m.png")
    assert not matches.fullmatch(f"{folder}_/a{image}.jpg")
