"""Plain lists: numbers lose nothing of their texts, quotes are those of the csv module, separators are not mistaken."""

import csv
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.columns import ColumnType
from mpload.index.dialects import leaves_quote_open
from tests.support.ingested import cells, columns_of

LIKELY = st.one_of(
    st.from_regex(r"[+-]?[0-9]{1,3}", fullmatch=True),
    st.from_regex(r"[+-]?[0-9]{14,22}", fullmatch=True),
    st.integers(2**53 - 3, 2**53 + 3).map(str),
    st.integers(2**63 - 3, 2**63 + 3).map(str),
    st.sampled_from(["0.5", "1e3", "-0", "00", "x", "inf", "\u0663"]),
)


def is_kept(text: str, kind: ColumnType, value: object) -> bool:
    """Whether a cell still has what its text said."""
    if kind is ColumnType.INT:
        return str(value) == text or text == "-0"
    if kind is ColumnType.FLOAT and re.fullmatch(r"[+-]?\d+", text):
        return Decimal(float(str(value))) == Decimal(text)
    return kind is ColumnType.FLOAT or value == text


def fault_of(path: Path) -> str:
    """Return the error of opening a list, or ''."""
    try:
        open_index(path)
    except IndexFormatError as error:
        return str(error)
    return ""


@given(texts=st.lists(LIKELY, min_size=1, max_size=5), ending=st.sampled_from(["csv", "tsv"]))
def test_numbers_of_a_list_lose_nothing_or_an_error_names_the_line_and_the_column(
    texts: list[str], ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    path = folder / f"list.{ending}"
    separator = {"csv": ",", "tsv": "\t"}[ending]
    lines = [f"{number}.jpg{separator}{text}\n" for number, text in enumerate(texts)]
    path.write_text("".join([f"image{separator}id\n", *lines]))
    fault = fault_of(path)
    if fault:
        assert re.search(rf"list\.{ending}:[0-9]+: id '.*' (is not|would) .*or declare id:(str|float) ", fault)
        with pytest.raises(IndexFormatError, match=re.escape(fault)):
            build_index(path, folder / "made.txt")
        columns = re.findall(r'--columns "(.*?)"', fault)[0]
        if columns.endswith(":str"):
            found = cells(build_index(path, folder / "made.txt", columns=columns))
            assert [each for _, each in found] == texts
        return
    index = open_index(path)
    if len(index.columns) == 2:
        kind = index.columns[1].type
        assert all(is_kept(text, kind, record["id"]) for text, record in zip(texts, index, strict=True))
        assert str(cells(build_index(path, folder / "made.txt"))) == str(cells(path))  # NaN differs from itself


@pytest.mark.parametrize(
    ("first", "later", "fault"),
    [
        ("1", "0123", "would lose its leading zeros as an integer"),
        ("1", "-01", "would lose its leading zeros as an integer"),
        ("1", "+5", "would lose its plus sign as an integer"),
        ("1", str(2**63), "is not an integer of 64 bits"),
        ("0.5", str(2**53 + 1), "would be rounded as a float"),
    ],
)
def test_the_error_of_a_number_that_would_lose_something_says_what_and_how_to_keep_it(
    tmp_path: Path, first: str, later: str, fault: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"image,patient,label\na.jpg,{first},0\nb.jpg,{later},1\n")
    message = (
        rf"x\.csv:3: patient '{re.escape(later)}' {fault} \(column patient:\w+\)\. Fix the line, or declare "
        r'patient:str when you make an index: mpload index FILE --columns "image:path patient:str label:int"'
    )
    with pytest.raises(IndexFormatError, match=message):
        open_index(path)
    with pytest.raises(IndexFormatError, match=message):
        build_index(path, tmp_path / "made.txt")
    made = build_index(path, tmp_path / "made.txt", columns="image:path patient:str label:int")
    assert cells(made) == [("a.jpg", first, 0), ("b.jpg", later, 1)]


@pytest.mark.parametrize("list_of", ["{0} {1}\n", "{0}\t{1}\n"])
@pytest.mark.parametrize("labels", [["00", "01", "10"], ["12", "01", "007"], ["0", "0", "1"]])
def test_labels_are_numbers_and_may_have_leading_zeros(tmp_path: Path, list_of: str, labels: list[str]) -> None:
    path = tmp_path / "list.txt"
    path.write_text("".join(list_of.format(f"{number}.jpg", label) for number, label in enumerate(labels)))
    assert list(open_index(path).labels) == [int(label) for label in labels]
    assert [record["label"] for record in open_index(path)] == [int(label) for label in labels]
    made = open_index(build_index(path, tmp_path / "made.txt"))
    assert list(made.labels) == [int(label) for label in labels]


def test_ids_that_are_no_integers_of_64_bits_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"image,zip,hash\na.jpg,00123,{2**64 - 1}\nb.jpg,123,{2**64 - 2}\n")
    assert columns_of(path) == "image:path zip:str hash:str"
    assert cells(path) == [("a.jpg", "00123", str(2**64 - 1)), ("b.jpg", "123", str(2**64 - 2))]


def test_columns_that_the_user_declares_as_integers_are_read_as_integers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("image,n\na.jpg,007\nb.jpg,7\n")
    assert cells(build_index(path, tmp_path / "x.txt", columns="image:path n:int")) == [("a.jpg", 7), ("b.jpg", 7)]


@given(text=st.text('a", ', max_size=16), start=st.booleans())
def test_a_quoted_cell_is_open_at_the_end_of_a_line_if_the_csv_module_says_so(text: str, start: bool) -> None:
    lines = [*(['"x\n'] if start else []), text + "\n", "z\n"]
    rows = list(csv.reader(lines, skipinitialspace=True))
    is_open = "\n" in "".join(rows[-1]) and rows[-1][-1].endswith("z\n")
    assert leaves_quote_open(text.encode(), is_open=start) == is_open


@pytest.mark.parametrize(
    "cell", ['5" disk', 'the 3" and 5" pipe', 'a "q" b', 'x""y', 'ends 5"', '"5"" disk"', '""', '"a, 5"" b"']
)
def test_a_quote_within_a_cell_is_text(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f'image,c,d\na.jpg,{cell},z\nb.jpg,"two\nlines",5"\n')
    expected = [tuple(row) for row in csv.reader(path.read_text().splitlines(keepends=True))][1:]
    assert cells(build_index(path, tmp_path / "x.txt")) == expected
    path.write_text(f"image,c,d\na.jpg,{cell},z\n")
    assert cells(path) == expected[:1]


OTHER_SEPARATORS = [
    ("x.csv", "image;label;caption\n0.png;0;a\n", "names of columns separated by semicolons.*with commas: pandas"),
    ("x.csv", "photo;species\n0.png;cat\n", "names of columns separated by semicolons, but cells of a .csv file are"),
    ("x.csv", "image\tlabel\n0.png\t0\n", "separated by tabs.*Give the file a name that does not end in .csv"),
    ("x.txt", "image,label\n0.png,0\n", "separated by commas.*Give the file a name that ends in .csv"),
    ("x.txt", "image;label\n0.png;0\n", "separated by semicolons, but a line without tabs is a path, or a path and an"),
    ("x.txt", "image label\n0.png 0\n", "separated by spaces.*Separate the cells by tabs, or by commas in a file"),
    (
        "x.csv",
        "0.png;0\n1.png;1\n",
        "no file '0.png;0', but there is '0.png'. The line seems to have cells separated by",
    ),
    ("x.txt", "# a list\n0.png 0 0.5\n1.png 3 0.7\n", "x.txt:2: there is no file '0.png 0 0.5'.*separated by spaces"),
    ("x.txt", "missing.png 0 0.5\n1.png 3 0.7\n", "x.txt:2: there is no file '1.png 3 0.7', but there is '1.png'"),
    ("x.txt", "0.png cat\n1.png dog\n", "no file '0.png cat', but there is '0.png'"),
    ("x.txt", "0.png,0\n1.png,1\n", "separated by commas.*Give the file a name that ends in .csv"),
]


@pytest.mark.parametrize(("name", "text", "message"), OTHER_SEPARATORS)
def test_cells_that_are_separated_in_another_way_are_not_taken_for_paths(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(b"x")
    (tmp_path / name).write_text(text)
    with pytest.raises(IndexFormatError, match=message):
        open_index(tmp_path / name)
    with pytest.raises(IndexFormatError, match=message):
        build_index(tmp_path / name, tmp_path / "made.txt")
    assert not (tmp_path / "made.txt").exists()
    assert not (tmp_path / f"{name}.mpx").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.txt", "0 a.png\n1 b.png\n"),
        ("x.txt", "0;a.png\n1;b.png\n"),
        ("x.txt", "holiday photo\nmy image\n"),
        ("x.txt", "image a\nimage b\n"),
        ("x.csv", "0;a.png\n1;b.png\n"),
        ("x.csv", "image\n0;a.png\n1;b.png\n"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_names_with_blanks_and_semicolons_are_still_names(tmp_path: Path, name: str, text: str, exists: bool) -> None:
    names = [line for line in text.splitlines() if line != "image"]
    if exists:
        (tmp_path / names[1]).write_bytes(b"x")
        (tmp_path / "0").write_bytes(b"x")
    (tmp_path / name).write_text(text)
    assert cells(tmp_path / name) == [(each,) for each in names]
    assert cells(build_index(tmp_path / name, tmp_path / "made.txt")) == [(each,) for each in names]


NAMED = "path,label,n\na.jpg,1,x\nb.jpg,0,y\n"
"""A list with a header. Its last column cannot be read as numbers."""


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt"])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("path:path n:str label:int", [("a.jpg", "x", 1), ("b.jpg", "y", 0)]),
        ("label:int path:path", [(1, "a.jpg"), (0, "b.jpg")]),
        ("path:path", [("a.jpg",), ("b.jpg",)]),
        ("path:path label:str n:str", [("a.jpg", "1", "x"), ("b.jpg", "0", "y")]),
    ],
)
def test_columns_select_those_of_a_header_by_name(
    tmp_path: Path, name: str, columns: str, expected: list[tuple[object, ...]]
) -> None:
    path, made = tmp_path / name, tmp_path / "made.txt"
    text = NAMED if name == "x.csv" else NAMED.replace(",", "\t")
    if name == "x.txt":
        text = text.replace("path\tlabel\tn", "#mpload 1\n#columns path:path label:int n:str\n#classes dog\tcat")
    path.write_text(text)
    assert cells(build_index(path, made, columns=columns)) == expected
    assert columns_of(made) == columns
    assert open_index(made).classes == (("dog", "cat") if name == "x.txt" and "label:int" in columns else ())


def test_classes_stay_with_the_column_that_they_name(tmp_path: Path) -> None:
    path, made = tmp_path / "x.txt", tmp_path / "made.txt"
    path.write_text("#mpload 1\n#columns path:path label:int n:int\n#classes dog\tcat\na.jpg\t1\t7\n")
    assert cells(build_index(path, made, columns="n:int path:path")) == [(7, "a.jpg")]
    assert open_index(made).classes == ()
    assert cells(build_index(path, made, columns="n:int label:int path:path")) == [(7, 1, "a.jpg")]
    assert open_index(made).classes == ("dog", "cat")


def test_all_columns_of_a_header_may_be_renamed_in_their_order(tmp_path: Path) -> None:
    path, made = tmp_path / "x.csv", tmp_path / "made.txt"
    path.write_text(NAMED)
    assert cells(build_index(path, made, columns="photo:path label:int word:str"))[0] == ("a.jpg", 1, "x")
    assert columns_of(made) == "photo:path label:int word:str"


@pytest.mark.parametrize(
    "columns", ["photo:path label:int", "photo:path n:str label:int", "path:path n:str x:int y:int"]
)
def test_columns_that_neither_select_nor_rename_are_refused(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(NAMED)
    message = f"x.csv: columns '{columns}' do not fit its own, 'path:path label:int n:str'. Select some of these by"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        build_index(path, tmp_path / "made.txt", columns=columns)
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.parametrize("columns", ["label:int image:path", "a:str b:path"])
def test_columns_of_a_list_without_names_are_named_by_place(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text("7,a.jpg\n8,b.jpg\n")
    build_index(path, tmp_path / "made.txt", columns=columns)
    assert columns_of(tmp_path / "made.txt") == columns


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,caption,label\na.jpg,1\n",
            "2: has 2 cells (a.jpg, 1), but the line of names has 3 (path, caption, label)",
        ),
        ("# made\npath,label\n0,a.jpg,1\n", "3: has 3 cells (0, a.jpg, 1), but the line of names has 2 (path, label)"),
    ],
)
def test_a_header_with_more_or_fewer_names_than_cells_is_an_error(
    tmp_path: Path, ending: str, text: str, message: str
) -> None:
    path = tmp_path / f"x.{ending}"
    path.write_text(text if ending == "csv" else text.replace(",", "\t"))
    message = re.escape(f"x.{ending}:{message}. Give every cell a name, and every name a cell")
    with pytest.raises(IndexFormatError, match=message):
        open_index(path)
    with pytest.raises(IndexFormatError, match=message):
        build_index(path, tmp_path / "made.txt")


def test_a_blank_line_below_a_header_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("path,label\n\na.jpg,1\n")
    with pytest.raises(IndexFormatError, match=r"x\.csv:2: is blank"):
        open_index(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("x.csv", "0,im/a.jpg\n1,im/b.jpg\n", "label:int image:path"),
        ("x.csv", "0,im/a.jpg,3\n1,im/b.jpg,4\n", "number:str image:path column3:int"),
        ("x.lst", "7\t3.5\tim/a.jpg\n8\t4.5\tim/b.jpg\n", "number:str column2:float image:path"),
    ],
)
def test_a_number_is_not_taken_for_a_path_if_another_cell_is_one(
    tmp_path: Path, name: str, text: str, columns: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    message = rf"{name}:1: the first cell, '{text[0]}', is no path, but 'im/a.jpg' looks .* --columns \"{columns}\""
    with pytest.raises(IndexFormatError, match=message):
        open_index(path)
    with pytest.raises(IndexFormatError, match=message):
        build_index(path, tmp_path / "made.txt")
    assert cells(build_index(path, tmp_path / "made.txt", columns=columns))[0][columns.split().index("image:path")] == (
        "im/a.jpg"
    )
    (tmp_path / text[0]).write_bytes(b"x")
    assert cells(path)[0][0] == text[0]


def test_a_comma_at_the_end_of_the_names_alone_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,label,\na.jpg,1\nb.jpg,0\n")
    index = open_index(tmp_path / "l.csv")
    assert [record.cells for record in index] == [("a.jpg", 1), ("b.jpg", 0)]


@pytest.mark.parametrize("name", ["x.jsonl", "x.NDJSON"])
def test_json_lines_are_not_taken_for_paths(tmp_path: Path, name: str) -> None:
    rows = [{"image": "0.png", "label": 0}, {"image": "1.png", "label": 1}]
    source = tmp_path / name
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for work in (open_index, lambda path: build_index(path, tmp_path / "out.txt")):
        with pytest.raises(IndexFormatError, match=rf"{name}:1: is JSON, not .*pandas\.read_json.*columns='line:str'"):
            work(source)
    index = open_index(build_index(source, tmp_path / "out.txt", columns="line:str"))
    assert [json.loads(str(record["line"])) for record in index] == rows
    source.write_text('{"image":\t"0.png"}\n')
    with pytest.raises(IndexFormatError, match=rf"{name}:1: is JSON"):
        open_index(source)
    source.write_text("0.png 0\n1.png 1\n")
    assert [record.cells for record in open_index(source)] == [("0.png", 0), ("1.png", 1)]
