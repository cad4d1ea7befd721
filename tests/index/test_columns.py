"""What the cells of sources are: the ranges that a storage is asked for."""

import pickle

import pytest

from mpload.index.columns import range_of
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue, Span


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (Span("a.tar", 512, 7), "Span(path='a.tar', offset_bytes=512, length_bytes=7)"),
        (LmdbValue("a.lmdb", b"k"), "LmdbValue(path='a.lmdb', key=b'k')"),
        (RowValue("a.parquet", 0, 17, "x"), "RowValue(path='a.parquet', row_group=0, row=17, column='x')"),
    ],
)
def test_the_cell_of_a_source_is_the_range_to_read(cell: Span | LmdbValue | RowValue, shown: str) -> None:
    assert range_of(cell) is cell
    assert isinstance(cell, ByteRange)
    assert repr(cell) == shown
    assert pickle.loads(pickle.dumps(cell)) == cell
    assert len({cell, type(cell).parse(str(cell))}) == 1


def test_the_cell_of_a_file_is_its_path() -> None:
    assert range_of("a/b.jpg") == ByteRange("a/b.jpg")
