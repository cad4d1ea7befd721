"""A column that names classes becomes a column of their numbers."""

from pathlib import Path

import numpy as np
import pytest

from mpload import MPDataset, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, StorageError
from mpload.ingest.class_names import with_labels
from mpload.ingest.lists import open_list
from tests.support.ingested import columns_of


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
    assert index.classes == ("7", "11", "90")
    assert [record["label"] for record in index] == [2, 0, 2, 1]


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
