"""Columns of Parquet and Arrow files beside the images: none is lost, and each value is what it was."""

import csv
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

from mpload import MPDataset, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, IndexFormatError, MploadWarning, StorageError
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


FINE, COARSE = ("apple", "bear", "rose"), ("fruit", "animal")


def of_hugging_face(path: Path, classes: dict[str, tuple[str, ...]], **values: list[int]) -> Path:
    """Write a table whose metadata declares these columns as class labels, in this order."""
    features = {name: {"names": list(names), "_type": "ClassLabel"} for name, names in classes.items()}
    table = make_table(**values).drop_columns([] if "label" in classes else ["label"])
    metadata = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}, **features}}})}
    return write(table.replace_schema_metadata(metadata), path)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_the_first_of_several_columns_of_class_labels_names_the_classes_and_none_is_renamed(
    tmp_path: Path, name: str
) -> None:
    declared = {"fine_label": FINE, "coarse_label": COARSE}
    source = of_hugging_face(tmp_path / name, declared, coarse_label=[0, 1, 0], fine_label=[0, 1, 2])
    image = "row" if name == "x.parquet" else "span"
    message = "column 'fine_label' names the classes. --classes-from NAME, or .*, chooses another: 'coarse_label'"
    with pytest.warns(MploadWarning, match=message):
        index = open_index(build_index(source, tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == f"image:{image} fine_label:int coarse_label:int"
    assert index.classes == FINE
    assert index.labels is not None
    assert index.labels[:].tolist() == [0, 1, 2]
    index = open_index(build_index(source, tmp_path / "y.txt", classes_from="coarse_label"))
    assert columns_of(tmp_path / "y.txt") == f"image:{image} fine_label:int label:int"
    assert index.classes == COARSE
    assert index.labels is not None
    assert index.labels[:].tolist() == [0, 1, 0]
    assert open_index(build_index(source, tmp_path / "z.txt", classes_from="fine_label")).classes == FINE
    index = open_index(build_index(source, tmp_path / "c.txt", columns=f"image:{image} coarse_label:int"))
    assert index.classes == COARSE


def test_of_several_columns_of_class_labels_the_one_called_label_names_the_classes(tmp_path: Path) -> None:
    source = of_hugging_face(tmp_path / "x.parquet", {"kind": COARSE, "label": FINE}, kind=[0, 1, 0])
    with pytest.warns(MploadWarning, match="column 'label' names the classes"):
        index = open_index(build_index(source, tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == "image:row label:int kind:int"
    assert index.classes == FINE


def test_a_single_column_of_class_labels_is_the_label_without_a_notice(tmp_path: Path) -> None:
    source = of_hugging_face(tmp_path / "x.parquet", {"species": FINE}, id=[7, 8, 9], species=[0, 1, 2])
    index = open_index(build_index(source, tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == "image:row label:int id:int"
    assert index.classes == FINE


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_columns_of_the_same_name_are_refused(tmp_path: Path, name: str) -> None:
    table = make_table()
    source = write(pa.Table.from_arrays([*table.columns, table["label"]], ["image", "label", "label"]), tmp_path / name)
    with pytest.raises(
        ArgumentError, match=r"x\.\w+: has 2 columns called 'label'\. Write the table with a name of its"
    ):
        build_index(source, tmp_path / "x.txt")


@pytest.mark.parametrize("column", ["u", "label"])
def test_integers_above_64_bits_can_be_kept_as_text_as_the_error_says(tmp_path: Path, column: str) -> None:
    values = pa.array([2**64 - 1 - number for number in range(3)], pa.uint64())
    table = make_table(u=[1, 2, 3])
    table = table.set_column(table.schema.get_field_index(column), column, values)
    source = write(table, tmp_path / "x.parquet")
    columns = "image:row label:int u:int".replace(f"{column}:int", f"{column}:str")
    message = rf'row 0 has {2**64 - 1} in column \'{column}\', which does not fit .*--columns "{columns}"'
    with pytest.raises(ArgumentError, match=message):
        build_index(source, tmp_path / "x.txt")
    assert not (tmp_path / "x.txt").exists()
    index = open_index(build_index(source, tmp_path / "x.txt", columns=columns))
    assert [record[column] for record in index] == [str(2**64 - 1 - number) for number in range(3)]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
@pytest.mark.parametrize("kind", ["dictionary", "large", "fixed", "struct"])
def test_bytes_of_every_kind_are_images_and_are_read_again(tmp_path: Path, name: str, kind: str) -> None:
    values = [JPEG, JPEG[::-1], JPEG]
    arrays: dict[str, pa.Array[Any]] = {
        "dictionary": pa.array(values).dictionary_encode(),
        "large": pa.array(values, pa.large_binary()),
        "fixed": pa.array(values, pa.binary(len(JPEG))),
        "struct": pa.StructArray.from_arrays([pa.array(values).dictionary_encode()], ["bytes"]),
    }
    source = write(pa.table({"image": arrays[kind], "label": [0, 1, 2]}), tmp_path / name)
    build_index(source, tmp_path / "x.txt")
    found = list(MPDataset(tmp_path / "x.txt", decode=RawBytes(), topology=Topology()))
    assert found == [(value, label) for label, value in enumerate(values)]


def test_hashes_beside_images_are_no_images(tmp_path: Path) -> None:
    source = write(make_table(sha1=pa.array([b"x" * 20] * 3, pa.binary(20))), tmp_path / "x.parquet")
    with pytest.warns(MploadWarning, match="cannot be written as text, such as sha1"):
        build_index(source, tmp_path / "x.txt")
    assert columns_of(tmp_path / "x.txt") == "image:row label:int"


def test_the_error_of_a_table_without_images_names_the_types(tmp_path: Path) -> None:
    source = write(pa.table({"image": ["a.jpg"], "label": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match=r"no column of images, but 'image' \(string\), 'label' \(int64\)"):
        build_index(source, tmp_path / "x.txt")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_a_table_of_texts_alone_can_be_indexed_as_csv_as_the_error_says(tmp_path: Path, name: str) -> None:
    rows = [("a dog, and\na cat", 1), ('"quoted"', 0)]
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    with pytest.raises(ArgumentError, match=r"as a CSV file, .* --columns 'text:str label:int'$") as caught:
        build_index(write(table, tmp_path / name), tmp_path / "x.txt")
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    columns = str(caught.value).split("'")[-2]
    assert cells(build_index(tmp_path / "x.csv", tmp_path / "x.txt", columns=columns)) == rows


def test_a_label_that_is_missing_can_be_left_out_as_the_error_says(tmp_path: Path) -> None:
    table = make_table().set_column(1, "label", pa.array([1, None, 2]))
    source = write(table, tmp_path / "x.parquet")
    with pytest.raises(ArgumentError, match=r"row 1 has no value in column 'label'.*columns='image:row'"):
        build_index(source, tmp_path / "x.txt")
    assert len(open_index(build_index(source, tmp_path / "x.txt", columns="image:row"))) == 3


def test_a_label_without_a_name_replaces_no_index(tmp_path: Path) -> None:
    source = of_hugging_face(tmp_path / "x.parquet", {"label": ("a", "b")}, label=[0, 1, 1])
    index = build_index(source, tmp_path / "x.txt")
    before = index.read_bytes()
    of_hugging_face(source, {"label": ("a", "b")}, label=[0, 1, 7])
    with pytest.raises(IndexFormatError, match=r"x\.txt: is not written, as it would be broken in line \d: label 7"):
        build_index(source, index)
    assert index.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.parquet", "x.txt", "x.txt.mpx"]
