"""The text format: what is written reads back unchanged, and errors name the broken line."""

import csv
import io
import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import build_index, open_index
from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.columns import Column, ColumnType, format_columns, parse_columns
from mpload.index.scan import Scan, _scan_fast
from mpload.index.text import MAX_LINE_BYTES, Dialect, Header, format_header, format_line, parse_line, read_header
from mpload.ingest.checking import check_lines
from mpload.storage.ranges import LmdbValue, RowValue, Span

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
raw = st.binary(max_size=12).map(lambda b: b.replace(b"\0", b"?").decode("utf-8", "surrogateescape"))
paths = (texts | raw).filter(bool)
cells_of = {
    ColumnType.PATH: paths,
    ColumnType.SPAN: st.builds(Span, paths, st.integers(0, 2**40), st.integers(0, 2**40)),
    ColumnType.LMDB: st.builds(LmdbValue, paths, st.binary(min_size=1, max_size=10)),
    ColumnType.ROW: st.builds(RowValue, paths, st.integers(0, 99), st.integers(0, 10**9), st.text(min_size=1)),
    ColumnType.INT: st.integers(-(2**63), 2**63 - 1),
    ColumnType.FLOAT: st.floats(allow_nan=False),
    ColumnType.STR: texts | raw,
}
column_types = st.lists(st.sampled_from(list(ColumnType)), min_size=0, max_size=4).map(lambda t: [ColumnType.PATH, *t])


def is_nan(cell: object) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


def columns_of(types: list[ColumnType]) -> tuple[Column, ...]:
    return tuple(Column(name=f"c{number}", type=kind) for number, kind in enumerate(types))


def write(path: Path, body: bytes, columns: str = "image:path label:int") -> Path:
    path.write_bytes(format_header(columns=parse_columns(columns)) + body)
    return path


def scan(path: Path) -> tuple[list[int], list[int]]:
    labels: list[int] = []
    offsets: list[int] = []
    for block in Scan(path=path, header=read_header(path)):
        offsets += block.offsets.tolist()
        labels += [] if block.labels is None else block.labels.tolist()
    return offsets, labels


@given(st.data(), column_types)
def test_a_line_parses_back_to_the_cells_it_was_written_from(data: st.DataObject, types: list[ColumnType]) -> None:
    columns = columns_of(types)
    cells: list[Any] = [data.draw(cells_of[kind]) for kind in types]
    line = format_line(cells)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert not line.startswith(b"#")
    assert parse_line(Header(columns=columns), line[:-1]) == cells


@given(st.binary(max_size=60), column_types)
def test_any_line_of_bytes_parses_to_cells_or_raises_value_error(line: bytes, types: list[ColumnType]) -> None:
    header = Header(columns=columns_of(types))
    try:
        cells = parse_line(header, line.replace(b"\n", b""))
    except ValueError:
        return
    assert parse_line(header, format_line(cells)[:-1]) == cells or any(map(is_nan, cells))


@given(root=paths.filter(lambda p: "\0" not in p), classes=st.lists(texts.filter(bool), max_size=5), types=column_types)
def test_a_header_reads_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, root: str, classes: list[str], types: list[ColumnType]
) -> None:
    path = tmp_path_factory.getbasetemp() / "header.txt"
    head = format_header(columns=columns_of(types), root=root, classes=classes)
    path.write_bytes(head + b"x\n")
    header = read_header(path)
    assert (header.root, header.classes, header.columns) == (root, tuple(classes), columns_of(types))
    assert (header.body_bytes, header.num_lines) == (len(head), head.count(b"\n"))


@given(
    lines=st.lists(st.binary(max_size=12), min_size=1, max_size=8),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    suffix=st.sampled_from(["txt", "csv"]),
    native=st.booleans(),
    columns=st.sampled_from(
        [
            "a:path",
            "a:path label:int",
            "a:span label:int b:str",
            "a:path b:float",
            "a:path b:str c:int",
            "a:lmdb",
            "a:row",
        ]
    ),
)
def test_the_fast_scan_finds_the_same_as_parsing_line_by_line(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ending: bytes,
    suffix: str,
    native: bool,
    columns: str,
) -> None:
    path = tmp_path_factory.getbasetemp() / f"scan.{suffix}"
    body = ending.join(line.replace(b"x", b"\t").replace(b"y", b" 1").replace(b"z", b",2") for line in lines)
    path.write_bytes((format_header(columns=parse_columns(columns)) if native else b"") + body)
    try:
        header = read_header(path)
    except IndexFormatError:
        return
    fast: object
    try:
        fast = scan(path)
    except IndexFormatError as error:
        fast = str(error)
    slowly = Scan(path=path, header=header)
    text = path.read_bytes()[header.body_bytes :]
    try:
        starts, labels = slowly._scan_slowly(text.removesuffix(b"\n") + b"\n")
        if not len(starts):
            raise IndexFormatError(f"{path}: holds no samples. Make an index: mpload index FOLDER -o train.txt")
        slow: object = ((starts + header.body_bytes).tolist(), [] if labels is None else labels.tolist())
    except IndexFormatError as error:
        slow = str(error)
    if text.endswith(b"\n\n") and header.dialect is Dialect.NATIVE:
        return  # removing the last newline above also removed an empty line
    assert fast == slow


@pytest.mark.parametrize("blank", ["", " ", "\t \v", "\f"])
def test_a_csv_path_of_only_blanks_counts_as_empty(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(f"label,path\n0,a.jpg\n1,{blank}\n".encode())
    with pytest.raises(IndexFormatError, match=r"train\.csv:3: cell path:path is empty"):
        open_index(path)


@pytest.mark.parametrize("name", ["\u3000", "\xa0a.jpg", "\x85", "a\u2028"])
def test_non_ascii_blanks_are_part_of_a_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(f"label,path\n0, {name} \n".encode())
    assert open_index(path)[0].cells == (0, name)


def test_the_fast_scan_handles_a_blank_before_a_name() -> None:
    header = Header(columns=parse_columns("label:int path:path"), dialect=Dialect.COMMA)
    buffer = bytearray(b"0, a.jpg\n1,b.jpg\n")
    assert _scan_fast(np.frombuffer(buffer, np.uint8), header, buffer) is not None


LIKELY = {
    ColumnType.FLOAT: st.text("0123456789+-.eE_ ni", max_size=6) | st.floats().map(str),
    ColumnType.LMDB: st.text("0a%@:\xe9", max_size=5),
    ColumnType.ROW: st.text("01:@a%", max_size=9) | st.from_regex(r"[0-9]{1,10}:[0-9]{1,19}:a@b", fullmatch=True),
    ColumnType.SPAN: st.text("01+@a", max_size=7),
}


@settings(max_examples=600)
@given(st.data(), st.sampled_from(sorted(LIKELY)), st.integers(1, 3))
def test_the_fast_scan_accepts_no_invalid_cell(data: st.DataObject, kind: ColumnType, num_lines: int) -> None:
    header = Header(columns=columns_of([kind, ColumnType.INT]))
    lines = [f"{data.draw(LIKELY[kind])}\t{number}".encode("latin-1") for number in range(num_lines)]
    buffer = bytearray(b"".join(line + b"\n" for line in lines))
    if _scan_fast(np.frombuffer(buffer, np.uint8), header, buffer) is not None:
        assert [parse_line(header, line)[1] for line in lines] == list(range(num_lines))


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        ("a:path b:float", [["x", 0.5], ["y", -1e-300], ["z", 3.0], ["u", 12345678.25], ["v", 1e22]]),
        ("a:lmdb b:int", [[LmdbValue("d/train.lmdb", b"0001"), 1], [LmdbValue("t", b"a@:\xff"), 2]]),
        ("a:row b:int", [[RowValue("a.parquet", 0, 17, "image.bytes"), 1], [RowValue("@", 9**9, 10**17, "\xe9"), 2]]),
        ("a:span b:float c:str", [[Span("a.tar", 512, 10**17), 0.0, "text"], [Span("\xe9", 0, 0), 1.5, "\xe9"]]),
    ],
)
def test_the_fast_scan_handles_all_types(columns: str, cells: list[list[Any]]) -> None:
    """Parsing line by line would take thirty times as long."""
    header = Header(columns=parse_columns(columns))
    buffer = bytearray(b"".join(map(format_line, cells)))
    found = _scan_fast(np.frombuffer(buffer, np.uint8), header, buffer)
    assert found is not None
    starts = found[0].tolist()
    lines = [buffer[start:end].rstrip(b"\n") for start, end in itertools.pairwise([*starts, len(buffer)])]
    assert [parse_line(header, bytes(line)) for line in lines] == cells


PLAIN = [
    ("list.txt", b"a.jpg 0\nb c.jpg 12\n", [["a.jpg", 0], ["b c.jpg", 12]]),
    ("list.txt", b"a.jpg   0\r\nb.jpg\t \t-1\r\n", None),
    ("blank.txt", b"a.jpg   0\r\nb.jpg  -1\r\n\r\n\n", [["a.jpg", 0], ["b.jpg", -1]]),
    ("tabs.txt", b"a b.jpg\t0\nc.jpg\t1", [["a b.jpg", 0], ["c.jpg", 1]]),
    ("paths.txt", b"a.jpg\nb c.jpg\n", [["a.jpg"], ["b c.jpg"]]),
    ("comment.txt", b"# made by hand\n#x.jpg 0\nb.jpg 1\n", [["#x.jpg", 0], ["b.jpg", 1]]),
    ("bom.csv", b"\xef\xbb\xbfa.jpg,0\nb.jpg,1\n", [["a.jpg", 0], ["b.jpg", 1]]),
    ("head.csv", b'path,label\r\n"a, b.jpg",3\r\n"c""d.jpg",4\r\n', [["a, b.jpg", 3], ['c"d.jpg', 4]]),
    ("wide.csv", b"label,width,image\n3,1.5,a.jpg\n", [[3, 1.5, "a.jpg"]]),
    ("names.csv", b"file,class\na.jpg,cat\n", [["a.jpg", "cat"]]),
    ("kaggle.csv", b"image_name,species\na.jpg,1\nb.jpg,0\n", [["a.jpg", 1], ["b.jpg", 0]]),
    ("last.csv", b"species,photo file\ncat,a.jpg\ndog,b.jpg\n", [["cat", "a.jpg"], ["dog", "b.jpg"]]),
    ("known.csv", b"label,photo file\n3,a.jpg\n", [[3, "a.jpg"]]),
    ("numbers.tsv", b"0.25\t1.5\n0.75\t2.5\n", [["0.25", 1.5], ["0.75", 2.5]]),
    ("spaces.csv", b"a.jpg, 1\nb.jpg, 2\n", [["a.jpg", 1], ["b.jpg", 2]]),
]


@pytest.mark.parametrize(("name", "text", "cells"), PLAIN)
def test_plain_lists_just_work(tmp_path: Path, name: str, text: bytes, cells: list[list[object]] | None) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    if cells is None:  # one line has blanks and another tabs, so only the first is defined
        assert open_index(path)[0].cells == ("a.jpg", 0)
        return
    assert [list(record.cells) for record in open_index(path)] == cells


def test_a_header_without_a_known_name_tells_which_column_has_the_files(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("species,photo file,weight\ncat,a.jpg,2.5\n")
    index = open_index(tmp_path / "x.csv")
    assert format_columns(index.columns) == "species:str photo_file:path weight:float"
    (tmp_path / "bare.csv").write_text("a.jpg,cat\nb.jpg,dog\n")
    assert format_columns(open_index(tmp_path / "bare.csv").columns) == "image:path label:str"


def test_a_csv_of_ten_thousand_odd_names_reads_as_by_the_csv_module(tmp_path: Path) -> None:
    rows = [[f'dir, {i}/"{i}".jpg' if i % 7 == 0 else f"d/{i}.jpg", i] for i in range(10_000)]
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    (tmp_path / "odd.csv").write_text(out.getvalue(), newline="")
    index = open_index(tmp_path / "odd.csv")
    assert [list(record.cells) for record in index] == rows
    assert index.labels[:].tolist() == list(range(10_000))


BROKEN = [
    (b"a.jpg\tcat\n", r":3: label 'cat' is not an integer \(column label:int\)\. Fix the line, or declare label:str"),
    (b"a.jpg\t1\nb.jpg\n", r":4: has 1 cell, where columns 'image:path label:int' require 2"),
    (b"a.jpg\t1\t2\n", r":3: has 3 cells"),
    (b"a.jpg\t1\r\n", r":3: ends with CRLF"),
    (b"a\0.jpg\t1\n", r":3: contains a NUL byte"),
    (b"a.jpg\t1\n\nb.jpg\t2\n", r":4: has 1 cell"),
    (b"a\\x.jpg\t1\n", r":3: '\\\\x' is not an escape"),
    (b"\t1\n", r":3: cell image:path is empty"),
    (b"a.jpg\t99999999999999999999\n", r":3: label '99999999999999999999' is not an integer"),
    (b"a.jpg\t1_0\n", r":3: label '1_0' is not an integer.*label:str in #columns"),
    (b"a.jpg\t1\nb.jpg\t0.5\n", r":4: label '0.5' is not an integer.*or declare label:float in #columns$"),
    (b"x" * 2**20 + b"\t1\n", r":3: is longer than 262144 bytes"),
    (b"a.jpg\t1\n" + b"x" * 2**20, r":4: is longer than 262144 bytes"),
    (b"a.jpg\t1\nb.jpg\t2\n", r":5: label 2 is beyond the 2 names in #classes\. Fix the line, or name every class"),
    (
        b"a\\\\b.jpg\t1\nb.jpg\t2\n",
        r":5: label 2 is beyond the 2 names in #classes",
    ),  # found by the parser, not by the fast scan
    (b"", r"holds no samples\. Make an index: mpload index"),
]


@pytest.mark.parametrize(("body", "message"), BROKEN)
def test_the_error_of_a_broken_line_gives_its_number_and_the_rule(tmp_path: Path, body: bytes, message: str) -> None:
    path = write(tmp_path / "train.txt", body)
    if "#classes" in message:
        path.write_bytes(format_header(columns=parse_columns("image:path label:int"), classes=["cat", "dog"]) + body)
        assert [re.search(message, str(finding)) is not None for finding in check_lines(path)] == [True]
    with pytest.raises(IndexFormatError, match=message):
        open_index(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "text", "declared", "columns"),
    [
        ("a.csv", "image,score\na.jpg,1\nb.jpg,0.5\n", "score:float", "image:path score:float"),
        ("a.csv", "image,label,x\na.jpg,1,2\nb.jpg,cat,3\n", "label:str", "image:path label:str x:int"),
        ("a.csv", "image,x\na.jpg,0.5\nb.jpg,cat\n", "x:str", "image:path x:str"),
        ("a.csv", f"image,x\na.jpg,1\nb.jpg,{2**64}\n", "x:str", "image:path x:str"),  # a float would round it
        ("a.tsv", "a.jpg\t1\nb.jpg\t1e3\n", "label:float", "image:path label:float"),
        ("a.txt", "a.jpg 1\nb.jpg nan\n", "label:float", "image:path label:float"),
    ],
)
def test_the_error_of_a_list_declares_the_type_that_fits_in_the_way_that_works_for_lists(
    tmp_path: Path, name: str, text: str, declared: str, columns: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(IndexFormatError, match=f'or declare {declared} when .* --columns "{columns}"'):
        open_index(path)
    with pytest.raises(IndexFormatError, match=f'or declare {declared} when .* --columns "{columns}"'):
        build_index(path, tmp_path / "made.txt")
    assert len(open_index(build_index(path, tmp_path / "made.txt", columns=columns))) == 2


def test_a_negative_label_needs_no_class(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"#mpload 1\n#columns image:path label:int\n#classes cat\tdog\na.jpg\t-100\nb.jpg\t1\n")
    assert open_index(path).labels[:].tolist() == [-100, 1]


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.txt", b"a.jpg\t1\nb.jpg\t2\n")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    index, marked = open_index(plain), open_index(tmp_path / "marked.txt")
    assert [record.cells for record in marked] == [record.cells for record in index] == [("a.jpg", 1), ("b.jpg", 2)]
    assert (marked.fingerprint, marked.columns, marked.root) == (index.fingerprint, index.columns, index.root)


def test_the_line_number_is_right_deep_in_a_long_file(tmp_path: Path) -> None:
    lines = [b"some/folder/%d.jpg\t%d\n" % (i, i) for i in range(200_000)]
    lines[150_000] = b"some/folder/x.jpg\tcat\n"
    with pytest.raises(IndexFormatError, match=r"train.txt:150003: label 'cat'"):
        open_index(write(tmp_path / "train.txt", b"".join(lines)))


HEADERS = [
    (b"#mpload 1\n#colums image:path\na\n", r":2: directive '#colums' is unknown; the known ones are"),
    (b"#mpload 1\n#root a\n#root b\n", r":3: directive '#root' occurs twice"),
    (b"#mpload 2\n#columns image:path\na\n", r"index format '2' is not 1, .* Update mpload"),
    (b"#mpload 1\na\n", r"no '#columns' directive"),
    (b"#mpload 1\n#columns image\na\n", r"column 'image' is not NAME:TYPE"),
    (b"#mpload 1\n#columns \na\n", r"contain no column\. Add one, such as image:path or text:str"),
    (b"#mpload 1\n#columns text:str\na\n\nb\n", r":4: is blank\. Delete it, or add a second column"),
    (b"#mpload 1\r\n#columns image:path\r\na\r\n", r":1: ends with CRLF"),
    (b"#mpload 1\n#root a\0b\n#columns image:path\na\n", r":2: contains a NUL byte"),
    (
        b"# mine\n\n#mpload 1\n#columns image:path\na\n",
        r":3: '#mpload' comes after other lines\. Delete the lines above",
    ),
    (b"\xef\xbb\xbf\n#mpload 1\n#columns image:path\na\n", r":2: '#mpload' comes after other lines"),
    (b"", r"holds no sample"),
    (b"\n\n", r"holds no sample"),
    (b"path,label\n", r"holds no sample"),
]


@pytest.mark.parametrize(("text", "message"), HEADERS)
def test_the_error_of_a_broken_header_gives_its_line_and_the_rule(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / ("list.csv" if b"," in text else "list.txt")
    path.write_bytes(text)
    with pytest.raises(IndexFormatError, match=message):
        open_index(path)


def test_a_last_line_without_a_newline_is_read(tmp_path: Path) -> None:
    index = open_index(write(tmp_path / "train.txt", b"a.jpg\t1\nb.jpg\t2"))
    assert [record["image"] for record in index] == ["a.jpg", "b.jpg"]


def test_writing_a_line_that_is_too_long_or_empty_is_refused() -> None:
    with pytest.raises(ArgumentError, match="more than the limit of 262144"):
        format_line(["x" * (MAX_LINE_BYTES + 1)])
    line = format_line(["x" * MAX_LINE_BYTES])  # the newline does not count, as for readers
    assert parse_line(Header(columns=(Column(name="text", type=ColumnType.STR),)), line.removesuffix(b"\n"))
    with pytest.raises(ArgumentError, match="A sample needs a value"):
        format_line([""])
    with pytest.raises(ArgumentError, match="NUL"):
        format_line(["a\0b"])


def test_columns_are_checked() -> None:
    assert format_columns(parse_columns("a:path b:int")) == "a:path b:int"
    for text, message in [("a:path a:int", "occurs twice"), ("1a:path", "not an identifier"), ("a:image", "NAME:TYPE")]:
        with pytest.raises(ArgumentError, match=message):
            parse_columns(text)
