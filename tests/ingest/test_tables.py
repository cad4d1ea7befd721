"""Columns of Parquet and Arrow files beside the images: none is lost, and each value is what it was."""

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, MploadWarning, StorageError
from mpload.ingest.table_cells import cell_type, cells_of
from tests.support.ingested import JPEG, cells, columns_of

BOXES = [[[1.0, 2.5, 3.0, 4.0]], [], [[0.0, 0.0, 1.0, 1.0], [5.0, 5.0, 2.0, 2.0]]]
TEXTS = ['a dog,\n"sitting"', "", "\u72ac\tund \\ Katze"]


def make_table(**others: Any) -> pa.Table:
    images = pa.array(
        [{"bytes": JPEG, "path": "x.jpg"}] * 3, pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )
    return pa.table({"image": images, "label": [2, 0, 1], **others})


def write(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_texts_numbers_and_lists_are_kept_as_they_are(tmp_path: Path, name: str) -> None:
    source = write(make_table(text=TEXTS, boxes=BOXES, width=[1, 2, 3], score=[0.5, None, 1.5]), tmp_path / name)
    index = open_index(build_index(source, tmp_path / "x.txt"))
    image = "row" if name == "x.parquet" else "span"
    assert columns_of(tmp_path / "x.txt") == f"image:{image} label:int text:str boxes:str width:int score:float"
    assert [record["text"] for record in index] == TEXTS
    assert [json.loads(str(record["boxes"])) for record in index] == BOXES
    assert [record["width"] for record in index] == [1, 2, 3]
    assert [record["label"] for record in index] == [2, 0, 1]
    assert math.isnan(float(str(index[1]["score"])))


def test_a_folder_of_parquet_files_is_one_index_in_the_order_of_the_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in (1, 0):
        table = make_table(text=[f"{number}{row}" for row in range(3)])
        write(table, tmp_path / "data" / f"train-0000{number}-of-00002.parquet")
    (tmp_path / "data" / "README.md").write_text("a card")
    index = open_index(build_index(tmp_path / "data", tmp_path / "x.txt"))
    assert [record["text"] for record in index] == ["00", "01", "02", "10", "11", "12"]
    assert index.root == str(tmp_path / "data")
    write(make_table(), tmp_path / "data" / "more.arrow")
    with pytest.raises(
        ArgumentError, match=r"train-00000-of-00002\.parquet and .*more\.arrow: are tables of two kinds"
    ):
        build_index(tmp_path / "data", tmp_path / "x.txt")


def test_a_table_beside_class_folders_is_still_ignored(tmp_path: Path) -> None:
    (tmp_path / "tree" / "cat").mkdir(parents=True)
    (tmp_path / "tree" / "cat" / "0.jpg").write_bytes(JPEG)
    write(make_table(), tmp_path / "tree" / "x.parquet")
    assert cells(build_index(tmp_path / "tree", tmp_path / "x.txt")) == [("cat/0.jpg", 0)]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_some_of_the_columns_can_be_selected(tmp_path: Path, name: str) -> None:
    source = write(make_table(text=TEXTS, holes=[1, None, 3]), tmp_path / name)
    with pytest.raises(ArgumentError, match=r"row 1 has no value in column 'holes'.*columns='image:row'"):
        build_index(source, tmp_path / "x.txt")
    image = "image:row" if name == "x.parquet" else "image:span"
    index = open_index(build_index(source, tmp_path / "x.txt", columns=f"text:str {image}"))
    assert columns_of(tmp_path / "x.txt") == f"text:str {image}"
    assert [record["text"] for record in index] == TEXTS


def test_columns_get_names_of_their_own(tmp_path: Path) -> None:
    strange = {"a b": [1, 2, 3], "a_b": [4, 5, 6], "2": [7, 8, 9], "image ": ["x", "y", "z"], "\u72ac": ["x", "y", "z"]}
    build_index(write(make_table(**strange), tmp_path / "x.parquet"), tmp_path / "x.txt")
    assert columns_of(tmp_path / "x.txt") == "image:row label:int a_b:int a_b_2:int _2:int image_:str _:str"


def test_a_label_that_is_a_text_is_kept(tmp_path: Path) -> None:
    table = make_table().drop_columns(["label"]).append_column("label", pa.array(["cat", "dog", "cat"]))
    build_index(write(table, tmp_path / "x.parquet"), tmp_path / "x.txt")
    assert columns_of(tmp_path / "x.txt") == "image:row label:str"


def test_a_column_that_cannot_be_text_is_named_in_a_warning(tmp_path: Path) -> None:
    source = write(make_table(views=[[JPEG], [], None]), tmp_path / "x.parquet")
    with pytest.warns(MploadWarning, match="1 columns of a type that cannot be written as text, such as views"):
        build_index(source, tmp_path / "x.txt")
    assert columns_of(tmp_path / "x.txt") == "image:row label:int"


def test_a_text_that_is_too_long_for_a_line_is_an_error_that_names_its_row(tmp_path: Path) -> None:
    source = write(make_table(text=["a", "b" * 300_000, "c"]), tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match=r"0:1:image\.bytes@x\.parquet.* has 300\d+ bytes, more than the limit"):
        build_index(source, tmp_path / "x.txt")
    assert not (tmp_path / "x.txt").exists()


def test_text_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    damaged = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    source = write(make_table(text=damaged), tmp_path / "x.parquet")
    with pytest.raises(StorageError, match=r"x\.parquet: cannot be read"):
        build_index(source, tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([True, False]), [1, 0]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([dt.date(2024, 5, 1), None]), ["2024-05-01", ""]),
        (pa.array([Decimal("1.50")]), ["1.50"]),
        (pa.array([{"a": [1, None], "b": "\u00e9"}]), ['{"a":[1,null],"b":"\u00e9"}']),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), ['[["k",1]]']),
        (pa.array([[dt.date(2024, 5, 1)]]), ['["2024-05-01"]']),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001"]),
    ],
)
def test_values_of_each_type_become_cells(values: "pa.Array[Any]", expected: list[Any]) -> None:
    type_ = cell_type(values.type)
    assert type_ is not None
    assert cells_of(values, type_) == expected


_LEAVES = st.integers(-(2**63), 2**63 - 1) | st.none()


@given(st.lists(st.lists(st.lists(_LEAVES, max_size=3) | st.none(), max_size=3) | st.none(), min_size=1, max_size=5))
def test_nested_lists_are_json_that_gives_them_back(values: list[Any]) -> None:
    array = pa.array(values, pa.list_(pa.list_(pa.int64())))
    type_ = cell_type(array.type)
    assert type_ is not None
    assert [json.loads(str(cell)) for cell in cells_of(array, type_)] == values
