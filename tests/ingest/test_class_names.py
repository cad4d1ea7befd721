"""A column that names classes becomes a column of their numbers."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import MPDataset, RawBytes, Topology, append_to_index, build_index, open_index
from mpload.errors import ArgumentError, StorageError
from mpload.ingest.class_names import with_labels
from mpload.ingest.lists import open_list
from tests.support.ingested import JPEG, columns_of, make_files


def write(folder: Path, text: str) -> Path:
    for name in "abcd":
        (folder / f"{name}.jpg").write_bytes(name.encode())
    path = folder / "list.csv"
    path.write_text(text)
    return path


def test_names_are_numbered_in_alphabetical_order_and_become_the_classes(tmp_path: Path) -> None:
    source = write(tmp_path, "photo,species,weight\nb.jpg,Siamese cat,2\na.jpg,dog,3\nc.jpg,bird,1\nd.jpg,dog,4\n")
    made = build_index(source, tmp_path / "x.txt", classes_from="species")
    assert columns_of(made) == "photo:path label:int weight:int"
    index = open_index(tmp_path / "x.txt")
    assert index.classes == ("Siamese cat", "bird", "dog")
    assert index.labels is not None
    assert index.labels.take(np.arange(4)).tolist() == [0, 2, 1, 2]
    assert list(MPDataset(index, decode=RawBytes(), topology=Topology()))[1] == (b"a", 2, 3)


def test_numbers_with_gaps_are_numbered_without(tmp_path: Path) -> None:
    source = write(tmp_path, "image,category\na.jpg,90\nb.jpg,7\nc.jpg,90\nd.jpg,11\n")
    build_index(source, tmp_path / "x.txt", classes_from="category")
    index = open_index(tmp_path / "x.txt")
    assert index.classes == ("11", "7", "90")
    assert [record["label"] for record in index] == [2, 1, 2, 0]


@settings(max_examples=30)
@given(
    names=st.lists(
        st.from_regex(r"[0-9]{1,3}(\.[0-9])?", fullmatch=True) | st.from_regex(r"[A-Za-z0-9_-]{1,4}", fullmatch=True),
        min_size=1,
        max_size=6,
        unique_by=str.lower,
    )
)
def test_a_list_numbers_its_classes_as_a_folder_of_the_same_classes_does(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("classes")
    for name in names:
        make_files(folder / "train", f"{name}/1.jpg")
    build_index(folder / "train", folder / "folder.txt")
    (folder / "list.csv").write_text("image,species\n" + "".join(f"train/{name}/1.jpg,{name}\n" for name in names))
    build_index(folder / "list.csv", folder / "list.txt", classes_from="species")
    of_folder, of_list = open_index(folder / "folder.txt"), open_index(folder / "list.txt")
    assert of_list.classes == of_folder.classes
    labels = {record["image"]: record["label"] for record in of_folder}
    assert {str(record["image"]).removeprefix("train/"): record["label"] for record in of_list} == labels


def test_the_classes_of_an_index_keep_their_names_and_numbers(tmp_path: Path) -> None:
    source = tmp_path / "old.txt"
    source.write_text("#mpload 1\n#columns image:path label:int\n#classes zebra\tant\na.jpg\t1\nb.jpg\t0\n")
    index = open_index(build_index(source, tmp_path / "new.txt", classes_from="label"))
    assert index.classes == ("zebra", "ant")
    assert [record["label"] for record in index] == [1, 0]


def test_all_parts_of_a_split_have_all_classes(tmp_path: Path) -> None:
    source = write(tmp_path, "a.jpg,x\nb.jpg,y\nc.jpg,z\nd.jpg,x\n")
    parts = build_index(source, tmp_path / "x.txt", classes_from="label", split=[0.5, 0.5])
    assert {open_index(part).classes for part in parts} == {("x", "y", "z")}


def test_a_source_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path, "a.jpg,x\nb.jpg,y\n")
    with (
        open_list(source) as rows,
        pytest.raises(StorageError, match=r"has gained the class 'y' while it was read. Index it"),
    ):
        list(with_labels(rows, "label", ["x"]).cells)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (
            "a.jpg,x\n",
            "species",
            r"classes_from='species': there is no such column of text or integers. Give one of: label",
        ),
        ("a.jpg,x\n", "image", "no such column of text or integers. Give one of: label"),
        ("image,label,species\na.jpg,1,x\n", "species", "there is another column 'label'. Rename it"),
    ],
)
def test_columns_that_cannot_name_classes_are_refused(tmp_path: Path, text: str, column: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build_index(write(tmp_path, text), tmp_path / "x.txt", classes_from=column)
    assert not (tmp_path / "x.txt").exists()


@pytest.mark.parametrize("cell", ["", "  ", '" "'])
def test_an_empty_cell_is_no_class(tmp_path: Path, cell: str) -> None:
    source = write(tmp_path, f"image,species\na.jpg,dog\nb.jpg,cat\nc.jpg,{cell}\nd.jpg,{cell}\n")
    message = r"column 'species' names no class for sample 2 \(counted from 0, c\.jpg\): its cell is empty\. Leave such"
    with pytest.raises(ArgumentError, match=message):
        build_index(source, tmp_path / "x.txt", classes_from="species")
    assert not (tmp_path / "x.txt").exists()


def test_a_missing_value_of_a_table_is_no_class(tmp_path: Path) -> None:
    species = pa.array(["dog", "cat", None, "dog"])
    pq.write_table(pa.table({"image": [JPEG] * 4, "species": species}), tmp_path / "x.parquet")
    with pytest.raises(
        ArgumentError, match=r"'species' names no class for sample 2 \(.*@x\.parquet\): its cell is empty"
    ):
        build_index(tmp_path / "x.parquet", tmp_path / "x.txt", classes_from="species")


@pytest.mark.parametrize("classes", ["cat", "\tcat"])
def test_an_empty_cell_is_not_appended(tmp_path: Path, classes: str) -> None:
    source = write(tmp_path, "image,species\na.jpg,cat\nb.jpg,\n")
    label = classes.count("\t")
    (tmp_path / "x.txt").write_text(f"#mpload 1\n#columns image:path label:int\n#classes {classes}\na.jpg\t{label}\n")
    with pytest.raises(
        ArgumentError, match=r"'species' names no class for sample 1 \(counted from 0, b\.jpg\): its cell"
    ):
        append_to_index(source, tmp_path / "x.txt", classes_from="species")
