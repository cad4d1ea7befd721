"""Rows that are read straight into the batch: the same arrays and failures as rows made one by one."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import ErrorPolicy, MPDataset, MPLoader, RawArray, Topology
from tests.support.chunks import OneWorker
from tests.support.native import needs_native

pytestmark = needs_native

FORMS = [RawArray((2, 3), dtype="float32"), RawArray((), dtype="int64"), RawArray((5,), dtype="bool")]
WRONG = ["0+{less}@rows.bin", "3+{more}@rows.bin", "990+{size}@rows.bin", "0+{size}@none.bin", "0+0@rows.bin"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows.bin").write_bytes(np.random.default_rng(0).integers(2, size=1000, dtype=np.uint8).tobytes())
    return folder


def dataset(folder: Path, decode: RawArray, cells: list[str], **options: Any) -> MPDataset:
    size = decode.sample_bytes
    lines = [f"{cell.format(size=size, less=size - 1, more=size + 1)}\t{label}\n" for label, cell in enumerate(cells)]
    text = folder / "rows.txt"
    text.unlink(missing_ok=True)
    text.with_name("rows.txt.mpx").unlink(missing_ok=True)
    text.write_text("#mpload 1\n#columns row:span label:int\n" + "".join(lines))
    options = {"batch_size": len(cells), "shuffle": True, "tail": "ragged", "topology": Topology(), **options}
    return MPDataset(text, decode=decode, **options)


def made(worker: OneWorker, chunk_samples: int) -> tuple[list[Any], list[Any]]:
    columns, failures = worker.batch(0, chunk_samples=chunk_samples)
    return (
        [(column.shape, column.dtype, column.tobytes()) for column in columns],
        [(failure.sample, failure.cause, failure.details.get("bad")) for failure in failures],
    )


right = st.integers(0, 900).map(lambda offset: f"{offset}+{{size}}@rows.bin")


@pytest.mark.slow
@settings(max_examples=80)
@given(
    st.sampled_from(FORMS),
    st.lists(right | st.sampled_from(WRONG), min_size=1, max_size=20),
    st.sampled_from(["raise", "skip", "substitute"]),
    st.integers(1, 20),
)
def test_rows_are_the_same_as_rows_made_one_by_one(
    folder: Path, decode: RawArray, cells: list[str], action: Any, chunk_samples: int
) -> None:
    chosen = dataset(folder, decode, cells, on_error=ErrorPolicy(action=action))
    worker = OneWorker(chosen)
    assert worker.work._bulk is not None
    one_by_one = made(OneWorker(chosen).without_bulk(), chunk_samples)
    assert made(worker, chunk_samples) == one_by_one
    assert made(OneWorker(chosen, is_far=True), chunk_samples) == one_by_one


@settings(max_examples=30)
@given(st.sampled_from(FORMS), st.lists(right, min_size=1, max_size=20))
def test_rows_of_the_right_length_are_never_made_one_by_one(folder: Path, decode: RawArray, cells: list[str]) -> None:
    worker = OneWorker(dataset(folder, decode, cells, shuffle=False))
    worker.work._fill_one_by_one = None  # type: ignore[method-assign,assignment]
    (rows, labels), failures = worker.batch(0, chunk_samples=7)
    assert not failures
    data = (folder / "rows.bin").read_bytes()
    for cell, row, label in zip(cells, rows, labels.tolist(), strict=True):
        start = int(cells[label].partition("+")[0])
        assert cell == cells[label]
        assert row.tobytes() == data[start : start + decode.sample_bytes]


def test_rows_in_the_other_byte_order_are_made_one_by_one(folder: Path) -> None:
    decode = RawArray((2,), dtype=np.dtype("i2").newbyteorder("S"))
    chosen = dataset(folder, decode, ["0+{size}@rows.bin", "1+{size}@rows.bin"], shuffle=False)
    worker = OneWorker(chosen)
    assert worker.work._bulk is None
    (rows, _), _ = worker.batch(0, chunk_samples=2)
    data = (folder / "rows.bin").read_bytes()
    np.testing.assert_array_equal(rows, [np.frombuffer(data, decode.dtype, 2, offset) for offset in (0, 1)])


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:a bad sample")
def test_rows_that_vanish_from_a_mapped_shard_are_bad_samples_and_all_others_arrive(tmp_path: Path) -> None:
    num_rows, row = 4096, RawArray((512,), dtype="int64")
    rows = np.broadcast_to(np.arange(num_rows)[:, np.newaxis], (num_rows, 512))
    shard = tmp_path / "rows.bin"
    rows.tofile(shard)
    lines = "".join(f"{number * 4096}+4096@rows.bin\n" for number in range(num_rows))
    (tmp_path / "rows.txt").write_text("#mpload 1\n#columns row:span\n" + lines)
    policy = ErrorPolicy(action="skip", max_error_fraction=1.0, report=tmp_path / "errors.jsonl")
    chosen = MPDataset(
        tmp_path / "rows.txt", decode=row, batch_size=64, shuffle=True, on_error=policy, topology=Topology()
    )
    seen: list[int] = []
    with MPLoader(chosen, num_workers=2) as loader:
        for number, batch in enumerate(loader):
            assert (batch == batch[:, :1]).all()
            seen += batch[:, 0].tolist()
            if number == 1:
                os.truncate(shard, shard.stat().st_size // 2)
    bad = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert all("ends at byte" in each["cause"] for each in bad)
    gone = {each["sample_id"] for each in bad}
    assert gone <= set(range(num_rows // 2, num_rows))
    assert sorted([*seen, *gone]) == list(range(num_rows))
    assert len(gone) > num_rows // 4
