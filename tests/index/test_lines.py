"""Lines of whole chunks: they, their cells, integers and spans are those of the records, or are left to the records."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload import Index, open_index
from mpload.errors import IndexChangedError, IndexFormatError, MploadError
from mpload.index import index as index_module
from mpload.index import lines as lines_module
from mpload.index.columns import Cell, ColumnType, parse_columns
from mpload.index.index import lines_of, map_lines, sidecar_of
from mpload.index.lines import Lines, cells_of
from mpload.index.lookup import BATCH_ROWS
from mpload.index.text import Dialect, Header
from mpload.storage.ranges import Span
from mpload.units import KIB
from tests.support.index_texts import HEAD, expected, make_text
from tests.support.native import needs_native_lines

TYPES = ColumnType.PATH, ColumnType.STR, ColumnType.INT, ColumnType.SPAN
HOSTILE = [  # for one type at least
    *(
        "",
        "-",
        "-0",
        "007",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "9" * 20,
        "+1",
        "1_0",
    ),
    *(" 1", "1 ", "\u0661", "²", "0x1", "1.0", "a\\tb", "\\", "\0", "a\rb", "\r", "\udcff", "é", "\x0b", "#a"),
    *("1+2@a", "1+2@", "+2@a", "1+@a", "1+2", "1+2@a@b", "-1+2@a", "1+9223372036854775806@a", "1+2@é", "1+2@\udcff"),
    *("1+9223372036854775807@a", f"{'0' * 18}1+1@a", f"{'0' * 19}1+1@a", "\u0661+2@a"),
]
cells = st.sampled_from(HOSTILE) | st.integers(-(1 << 64), 1 << 64).map(str) | st.text(max_size=5)
spans = st.builds("{}+{}@{}".format, st.integers(0, 1 << 64), st.integers(0, 1 << 64), st.text(max_size=5))


def lines_from(lines: list[bytes], header: Header) -> Lines:
    ends = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    data, bounds = b"".join(lines), np.stack([ends[:-1], ends[1:]], axis=1)
    cells, ids = cells_of(data, bounds, header), np.arange(len(lines), dtype=np.int64)
    return Lines(
        sample_ids=ids,
        rows=ids,
        data=data,
        bounds=bounds,
        cells=cells,
        header=header,
        where=lambda row: f"train.txt:{header.num_lines + row + 1}",
    )


def without_record(lines: Lines) -> list[list[Cell | None]]:
    """Return the cells of each line as found without `Lines.record`; None where that is needed."""
    found: list[list[Cell | None]] = [[] for _ in range(len(lines))]
    for number, column in enumerate(lines.header.columns):
        values, is_parsed = lines.integers(number)
        runs = lines.spans(number)
        for place, row in enumerate(found):
            start, end = (runs.paths if column.type.is_source else lines.cells[:, number])[place].tolist()
            text = lines.data[start:end].decode("utf-8", "surrogateescape")
            if column.type is ColumnType.INT:
                row.append(int(values[place]) if is_parsed[place] else None)
            elif start < 0:
                row.append(None)
            elif column.type is ColumnType.SPAN:
                row.append(Span(text, int(runs.offsets[place]), int(runs.lengths[place])))
            else:
                row.append(text)
    return found


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=50)
@given(st.lists(st.lists(cells | spans, min_size=1, max_size=3)))
def test_what_is_found_without_a_record_equals_the_record(
    kind: ColumnType, dialect: Dialect, rows: list[list[str]]
) -> None:
    header = Header(columns=parse_columns(f"c:{kind} p:path"), dialect=dialect)
    texts = ["\t".join(row) for row in (*([cell, "p"] for cell in HOSTILE), *(["p", cell] for cell in HOSTILE), *rows)]
    lines = lines_from([text.replace("\n", "").encode("utf-8", "surrogateescape") for text in texts], header)
    for place, row in enumerate(without_record(lines)):
        if None not in row:
            assert lines.record(place).cells == tuple(row)


@needs_native_lines
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[^\t\n\r\\\0]+", fullmatch=True),
            st.from_regex(r"[^\t\n\r\\\0]*", fullmatch=True),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.builds(Span, st.from_regex(r"[^\t\n\r\\\0]+", fullmatch=True), *[st.integers(0, 1 << 61)] * 2),
        )
    )
)
def test_plain_cells_need_no_record(rows: list[tuple[Cell, ...]]) -> None:
    header = Header(columns=parse_columns("a:path b:str c:int d:span"))
    lines = lines_from(["\t".join(map(str, row)).encode() for row in rows], header)
    assert [tuple(row) for row in without_record(lines)] == rows


def test_lines_of_more_columns_than_the_native_module_takes_are_left_to_the_record() -> None:
    header = Header(columns=parse_columns("a:int") * ((1 << 16) + 1))
    lines = lines_from([b"\t".join([b"7"] * len(header.columns))], header)
    assert set(lines.record(0).cells) == {7}
    assert (lines.cells == -1).all()


def test_the_first_broken_line_of_a_chunk_is_named() -> None:
    header = Header(columns=parse_columns("image:path label:int"), num_lines=2)
    lines = lines_from([b"a\t1", b"b\tx", b"c\ty"], header)
    assert lines.record(0).cells == ("a", 1)
    with pytest.raises(IndexFormatError, match=r"train.txt:4: label 'x' is not an integer"):
        lines.records()
    with pytest.raises(IndexFormatError, match=r"train.txt:5: label 'y' is not an integer"):
        lines.record(2)


@pytest.fixture(params=["native", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        read_in_python(monkeypatch)
    elif lines_module.NATIVE is None:
        pytest.skip("the native module is not built")
    return str(request.param)


def read_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "NATIVE", None)
    monkeypatch.setattr(lines_module, "NATIVE", None)


def texts_of(lines: Lines) -> list[bytes]:
    return [lines.data[start:end] for start, end in lines.bounds.tolist()]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_lines_of_any_ids_are_those_of_the_text(large: Index, way: str, data: st.DataObject) -> None:
    near = st.integers(0, len(large) - 300).flatmap(
        lambda first: st.lists(st.integers(first, first + 299), max_size=100)
    )
    edges = st.sampled_from([0, BATCH_ROWS - 1, BATCH_ROWS, 2 * BATCH_ROWS - 1, 2 * BATCH_ROWS, len(large) - 1])
    ids = data.draw(near | st.lists(st.integers(0, len(large) - 1) | edges, max_size=100))
    lines = lines_of(large, ids)
    assert texts_of(lines) == [b"%s\t%d" % (path.encode(), label) for path, label in map(expected, ids)]
    assert lines.sample_ids.tolist() == ids


def test_long_lines_blank_lines_and_a_missing_newline_are_read(tmp_path: Path, way: str) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(b"a,1\nb,2\n%s,3\nd,4\r\ne,5" % (b"c" * 200 * KIB))
    assert texts_of(lines_of(open_index(path), [4, 3, 2, 1, 0, 2])) == [
        b"e,5", b"d,4\r", b"%s,3" % (b"c" * 200 * KIB), b"b,2", b"a,1", b"%s,3" % (b"c" * 200 * KIB),
    ]  # fmt: skip
    path.write_bytes(b"a,1\nb,2\n" + b" \n" * 200 * KIB)
    assert texts_of(lines_of(open_index(path), [1, 0])) == [b"b,2", b"a,1"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return open_index(make_text(tmp_path_factory.mktemp("small") / "train.txt", 300))


@needs_native_lines
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_offsets_lead_to_the_same_lines_or_error_as_without_the_native_module(
    small: Index, data: st.DataObject
) -> None:
    sidecar = sidecar_of(small)
    good = sidecar.path.read_bytes()
    start = sidecar.columns["offset"].last_bytes
    rows = np.frombuffer(good, np.uint64, len(small), start).copy()
    text = small.path.read_bytes()
    newlines = [0, *(place + 1 for place in range(len(text)) if text[place] == 10)]
    near = st.integers(-3, 3)
    values = st.sampled_from(newlines) | st.integers(0, len(text) + 2) | st.integers(0, (1 << 64) - 1)
    places = data.draw(st.lists(st.integers(0, len(small) - 1), min_size=1, max_size=4))
    for place in places:
        rows[place] = data.draw(values | near.map(lambda step, row=int(rows[place]): max(row + step, 0)))  # type: ignore[misc]
    ids = data.draw(st.lists(st.sampled_from(places) | st.integers(0, len(small) - 1), min_size=1, max_size=20))
    bad = good[:start] + rows.tobytes() + good[start + rows.nbytes :]
    cut = data.draw(st.just(len(bad)) | st.integers(0, len(bad)))
    mapped = mapped_copy(small)
    try:
        sidecar.path.write_bytes(bad[:cut])
        native = outcome(small, np.array(ids, np.int64))
        assert native == outcome(mapped, np.array(ids, np.int64))
        with pytest.MonkeyPatch.context() as patch:
            read_in_python(patch)
            assert native == outcome(small, np.array(ids, np.int64))
    finally:
        sidecar.path.write_bytes(good)


def mapped_copy(index: Index) -> Index:
    copy: Index = pickle.loads(pickle.dumps(index))
    map_lines(copy)
    assert copy._maps is not None
    return copy


@needs_native_lines
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 299), max_size=100))
def test_lines_that_are_copied_from_a_map_are_those_that_are_read(small: Index, ids: list[int]) -> None:
    read, copied = lines_of(small, ids), lines_of(mapped_copy(small), ids)
    assert texts_of(copied) == texts_of(read)
    assert copied.sample_ids.tolist() == ids
    assert [record.cells for record in copied.records()] == [record.cells for record in read.records()]


def test_a_large_index_is_not_mapped(large: Index) -> None:
    copy: Index = pickle.loads(pickle.dumps(large))
    map_lines(copy)
    assert copy._maps is None


@needs_native_lines
@pytest.mark.parametrize("num_bytes", [0, 100])
def test_a_mapped_text_that_is_truncated_is_an_error_and_does_not_end_the_process(
    tmp_path: Path, num_bytes: int
) -> None:
    index = mapped_copy(open_index(make_text(tmp_path / "train.txt", 300)))
    os.truncate(index.path, num_bytes)
    with pytest.raises(IndexChangedError, match="changed after it was opened"):
        lines_of(index, range(300))


@needs_native_lines
def test_a_mapped_sidecar_that_is_truncated_is_an_error_and_does_not_end_the_process(tmp_path: Path) -> None:
    index = mapped_copy(open_index(make_text(tmp_path / "train.txt", 300)))
    os.truncate(sidecar_of(index).path, 0)
    with pytest.raises(MploadError, match="truncated"):
        lines_of(index, range(300))


def outcome(index: Index, ids: NDArray[np.int64]) -> list[bytes] | tuple[type, str]:
    try:
        return texts_of(lines_of(index, ids))
    except MploadError as error:
        return type(error), str(error)


@pytest.mark.parametrize("step", [-3, -1])
def test_a_line_that_ends_without_a_newline_is_never_cut_short(tmp_path: Path, way: str, step: int) -> None:
    index = open_index(make_text(tmp_path / "train.txt", 300))
    sidecar = sidecar_of(index)
    bad = bytearray(sidecar.path.read_bytes())
    rows = np.frombuffer(bad, np.int64, len(index), sidecar.columns["offset"].last_bytes)
    rows[200] += step
    sidecar.path.write_bytes(bad)
    assert texts_of(lines_of(index, [198, 201])) == [
        b"%s\t%d" % (expected(place)[0].encode(), expected(place)[1]) for place in (198, 201)
    ]
    for ids in ([199], range(100, 200)):
        with pytest.raises(IndexChangedError, match=r"its sidecar .* does not match it"):
            lines_of(index, ids)


def test_the_longest_line_may_end_with_cr(tmp_path: Path, way: str) -> None:
    path = tmp_path / "train.tsv"
    longest = b"c" * (256 * KIB - 2) + b"\t3"
    path.write_bytes(b"a\t1\r\n%s\r\nd\t4\r\n" % longest)
    index = open_index(path)
    assert texts_of(lines_of(index, [0, 1, 2])) == [b"a\t1\r", longest + b"\r", b"d\t4\r"]


@needs_native_lines
def test_a_changed_text_is_not_read_natively(tmp_path: Path) -> None:
    index = open_index(make_text(tmp_path / "train.txt", 300))
    assert is_read_natively(index)
    facts = index.path.stat()
    os.utime(index.path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert not is_read_natively(index)


@pytest.mark.parametrize("seconds", [-5, 1 << 32, 10**10, 15 * 10**9])
def test_a_text_may_be_of_any_time(tmp_path: Path, way: str, seconds: int) -> None:
    text = make_text(tmp_path / "train.txt", 300)
    os.utime(text, (seconds, seconds))
    index = open_index(text)
    assert index[7].cells == expected(7)
    assert way == "plain" or is_read_natively(index)


@needs_native_lines
def test_an_index_of_any_size_and_order_is_read_natively(large: Index) -> None:
    for ids in ([0], [len(large) - 1, 0], range(5000), [BATCH_ROWS, BATCH_ROWS - 1], []):
        assert is_read_natively(large, np.array(ids, np.int64))


def is_read_natively(index: Index, ids: NDArray[np.int64] | None = None) -> bool:
    assert lines_module.NATIVE is not None
    ids = np.arange(10) if ids is None else ids
    return lines_module.NATIVE.read(index._files(), index._maps, ids, np.empty((len(ids), 2), np.int64)) is not None


def test_an_empty_first_cell_is_left_to_the_record(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(HEAD + b"a\t1\n")
    lines = lines_from([b"\t1"], Header(columns=open_index(path).columns))
    assert lines.spans(0).paths.tolist() == [[-1, -1]]
