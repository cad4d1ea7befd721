"""The metadata of an Arrow file is what pyarrow reads, and a damaged file is a `ValueError`."""

import io
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload.index.arrow_metadata import _METADATA, _SCHEMA, _VALUE, _Footer, arrow_metadata

METADATA = st.dictionaries(st.binary(max_size=40), st.binary(max_size=300), max_size=8)
COLUMNS = st.lists(st.sampled_from([pa.int64(), pa.uint64(), pa.string(), pa.list_(pa.float32())]), max_size=4)


def arrow_file(metadata: dict[bytes, bytes] | None, kinds: list[pa.DataType], num_batches: int) -> bytes:
    names = [f"column {number}" for number in range(len(kinds))]
    schema = pa.schema(zip(names, kinds, strict=True), metadata=metadata)  # type: ignore[arg-type]  # invariant
    buffer = io.BytesIO()
    with pa.ipc.new_file(buffer, schema) as writer:
        for number in range(num_batches):
            batch = pa.record_batch([pa.array([None] * 3, kind) for kind in kinds], schema=schema)
            writer.write_batch(batch, custom_metadata={b"number": b"%d" % number})
    return buffer.getvalue()


def read(path: Path, data: bytes) -> dict[bytes, bytes]:
    path.write_bytes(data)
    with path.open("rb") as file:
        return arrow_metadata(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the file is written anew each time
@given(metadata=st.none() | METADATA, kinds=COLUMNS, num_batches=st.integers(0, 3))
def test_metadata_is_what_pyarrow_reads(
    tmp_path: Path, metadata: dict[bytes, bytes] | None, kinds: list[pa.DataType], num_batches: int
) -> None:
    data = arrow_file(metadata, kinds, num_batches)
    assert read(tmp_path / "file", data) == (pa.ipc.open_file(data).schema.metadata or {})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_has_metadata_or_raises_a_value_error(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(arrow_file({b"key": b"value", b"other": bytes(50)}, [pa.int64()], 2))
    for place in data.draw(st.lists(st.integers(10, 350), min_size=1, max_size=4)):
        damaged[-1 - place] = data.draw(st.integers(0, 255))  # in the footer, before its length
    try:
        read(tmp_path / "file", bytes(damaged[: data.draw(st.sampled_from([len(damaged), 9, 0]))]))
    except ValueError:
        return


@pytest.mark.parametrize("data", [b"", b"ARROW1", bytes(100), b"x" * 90 + bytes(4) + b"ARROW1"])
def test_what_is_no_arrow_file_raises_a_value_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Arrow|footer"):
        read(tmp_path / "file", data)


def test_values_that_overlap_take_no_more_memory_than_the_file_has_and_raise_a_value_error(tmp_path: Path) -> None:
    data = bytearray(arrow_file({b"%d" % number: b"x" * 40_000 * (number == 0) for number in range(50)}, [], 0))
    start = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    footer = _Footer(bytes(data[start:-10]))
    items = footer._field(footer._field(footer._target(0), _SCHEMA), _METADATA)
    tables = [footer._target(items + 4 * number) for number in range(1, 51)]
    (large,) = {footer._field(table, _VALUE) for table in tables if len(footer._text(table, _VALUE)) == 40_000}
    assert len(read(tmp_path / "file", bytes(data))) == 50
    for table in tables:
        fields = table - struct.unpack_from("<i", footer._data, table)[0]
        place = table + struct.unpack_from("<H", footer._data, fields + 4 + 2 * _VALUE)[0]
        if place < large:  # offsets point forwards
            struct.pack_into("<I", data, start + place, large - place)
    with pytest.raises(ValueError, match="damaged"):
        read(tmp_path / "file", bytes(data))
