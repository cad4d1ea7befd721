"""The metadata of an Arrow file are read as pyarrow reads them, and a damaged file is a `ValueError`."""

import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload.index.arrow_metadata import arrow_metadata

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
def test_metadata_are_those_that_pyarrow_reads(
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
