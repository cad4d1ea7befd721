"""The cells of source columns are the byte ranges that a storage reads."""

import pickle

import pytest

from mpload.index.columns import range_of
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue, Span


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Span("a.tar", 512, 7), "Span(path='a.tar', offset_bytes=512, length_bytes=7)"),
        (LmdbValue("a.lmdb", b"k"), "LmdbValue(path='a.lmdb', key=b'k')"),
        (RowValue("a.parquet", 0, 17, "x"), "RowValue(path='a.parquet', row_group=0, row=17, column='x')"),
    ],
)
def test_a_source_cell_is_the_range_to_read(cell: Span | LmdbValue | RowValue, text: str) -> None:
    assert range_of(cell) is cell
    assert isinstance(cell, ByteRange)
    assert repr(cell) == text
    assert pickle.loads(pickle.dumps(cell)) == cell
    assert len({cell, type(cell).parse(str(cell))}) == 1


def test_a_path_cell_is_the_range_of_the_whole_file() -> None:
    assert range_of("a/b.jpg") == ByteRange("a/b.jpg")
