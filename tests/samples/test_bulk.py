"""Chunks made with a few native calls: the same values, failures and counts as samples made one by one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import ErrorPolicy, MPDataset, NumpyDecoder, PartialCache, RawBytes, Topology
from mpload.errors import IndexFormatError
from mpload.samples.counts import DECODE_NS, READ_NS
from tests.support.chunks import OneWorker
from tests.support.native import needs_native

pytestmark = needs_native

NUM_FILES = 12
PLAIN = {
    "file:path": [f"{number}.bin" for number in range(NUM_FILES)],
    "part:span": ["0+9@11.bin", "3+60@11.bin", "7+64@10.bin", "1+1@1.bin"],
    "label:int": ["0", "17", "-4", "9223372036854775807", "007"],
    "count:int": ["0", "-9223372036854775808"],
    "weight:float": ["0", "1.5", "-2e-300", "inf", "nan", " 3 "],
    "text:str": ["", "a", "ä", "x" * 200, "\udcff", "two words"],
}
ODD = {  # what a text may hold although it is not plain: opening refuses any other
    "file:path": ["missing", "folder", r"\t", "../0.bin", r"a\\b", r"tab\tbin"],
    "part:span": ["0+0@1.bin", "9+90@1.bin", "0+1@missing", "9223372036854775806+1@1.bin"],
    "label:int": [],
    "count:int": [],
    "weight:float": ["٣"],
    "text:str": [r"\t", r"\\", "a\rb"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bulk")
    (folder / "folder").mkdir()
    rng = np.random.default_rng(0)
    for number in range(NUM_FILES):
        (folder / f"{number}.bin").write_bytes(rng.bytes(0 if number == 3 else number * 40))
    (folder / "tab\tbin").write_bytes(b"its name has a TAB")
    return folder


def dataset(folder: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], **options: Any) -> MPDataset:
    lines = ["#mpload 1", "#columns " + " ".join(columns), *map("\t".join, rows), ""]
    text = folder / "index.txt"
    text.unlink(missing_ok=True)
    text.with_name("index.txt.mpx").unlink(missing_ok=True)
    text.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    options = {"decode": RawBytes(), "shuffle": True, "batch_size": len(rows), "tail": "ragged", **options}
    return MPDataset(text, topology=Topology(), **options)


def values(columns: Sequence[Any]) -> list[list[Any]]:
    """Return columns as lists that can be compared, with the form of each array."""

    def plain(value: Any) -> Any:
        return (value.shape, value.dtype, value.tobytes()) if isinstance(value, np.ndarray | np.generic) else value

    return [[plain(value) for value in column] for column in columns]


def described(worker: OneWorker, chunk_samples: int) -> tuple[Any, Any]:
    columns, failures = worker.batch(0, chunk_samples=chunk_samples)
    return values(columns), [(failure.sample, failure.cause, failure.details.get("bad")) for failure in failures]


def rows(cells: dict[str, list[str]], columns: Sequence[str]) -> st.SearchStrategy[list[tuple[str, ...]]]:
    return st.lists(st.tuples(*(st.sampled_from(cells[column]) for column in columns)), min_size=1, max_size=24)


ANY = {name: PLAIN[name] * 4 + ODD[name] for name in PLAIN}
SOURCES = (["file:path"], ["part:span"], ["file:path", "part:span"])


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_chunks_are_the_same_as_samples_made_one_by_one(folder: Path, data: st.DataObject) -> None:
    others = st.lists(st.sampled_from(["count:int", "weight:float", "text:str"]), unique=True)
    columns = [*data.draw(st.sampled_from(SOURCES)), "label:int", *data.draw(others)]
    lines = data.draw(rows(ANY, columns))
    decode = RawBytes(as_array=data.draw(st.booleans()))
    policy = ErrorPolicy(action=data.draw(st.sampled_from(["raise", "skip", "substitute"])))
    try:
        chosen = dataset(folder, columns, lines, decode=decode, on_error=policy)
    except IndexFormatError:  # the scan of the text refuses NUL bytes
        return
    chunk_samples = data.draw(st.integers(1, 24))
    worker = OneWorker(chosen)
    assert worker.work._bulk is not None
    assert described(worker, chunk_samples) == described(OneWorker(chosen).without_bulk(), chunk_samples)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_plain_samples_are_never_made_one_by_one(folder: Path, data: st.DataObject) -> None:
    columns = [*data.draw(st.sampled_from(SOURCES)), *list(PLAIN)[2:]]
    worker = OneWorker(dataset(folder, columns, data.draw(rows(PLAIN, columns))))
    worker.work._fill_one_by_one = None  # type: ignore[method-assign,assignment]
    report = worker.fill(0, 0, worker.source.batch_size)
    assert not report.failures
    assert report.tally.counts[READ_NS] > 0


def test_a_sample_that_another_column_declined_is_made_again_where_room_is_scarce(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All files are as large as the field admits, so that a second copy of one would not fit.
    monkeypatch.setattr("mpload.loader.forms.sample_room_bytes", lambda **_: 440)
    lines = [("11.bin", "0+440@11.bin" if place % 2 else "0+441@11.bin") for place in range(8)]
    chosen = dataset(folder, ["file:path", "part:span"], lines, on_error="skip")
    bulk = described(OneWorker(chosen), 8)
    assert bulk == described(OneWorker(chosen).without_bulk(), 8)
    assert len(bulk[1]) == 4


@pytest.mark.slow
@pytest.mark.processes
def test_npy_files_of_one_form_are_read_as_they_are(folder: Path) -> None:
    arrays: list[Any] = [np.arange(24, dtype=np.float32).reshape(2, 3, 4) + place for place in range(9)]
    arrays[3] = arrays[3].astype(np.float32, order="F")
    arrays[5] = arrays[5][:1]
    arrays[6] = np.full((2, 3, 4), 7, ">f4")
    for place, array in enumerate(arrays):
        np.save(folder / f"{place}.npy", array)
    lines = [(f"{place}.npy", str(place)) for place in range(9)]
    chosen = dataset(folder, ["file:path", "label:int"], lines, decode=NumpyDecoder(), shuffle=False)
    made: list[int] = []
    worker = OneWorker(chosen)
    worker.fill(0, 0, 9, at=made.append)
    assert len(made) == 1 + 3, "the chunk, and those that are not like the others"
    assert described(worker, 9) == described(OneWorker(chosen).without_bulk(), 9)
    columns, _ = worker.batch(0, chunk_samples=9)
    for array, label in zip(*columns, strict=True):
        assert np.array_equal(array, arrays[label])
    assert worker.fill(0, 0, 9).tally.counts[DECODE_NS] > 0


@pytest.mark.slow
@pytest.mark.processes
def test_npy_files_without_dimensions_in_fortran_order_and_damaged_ones(folder: Path) -> None:
    scalars: list[Any] = [np.float32(place) for place in range(4)]
    for arrays in (scalars, [np.ones((3, 2), order="F") for _ in range(4)]):
        for place, array in enumerate(arrays):
            np.save(folder / f"{place}.npy", array)
        (folder / "damaged.npy").write_bytes((folder / "0.npy").read_bytes()[:-1])
        lines = [(f"{place}.npy",) for place in range(4)] + [("damaged.npy",)]
        chosen = dataset(folder, ["file:path"], lines, decode=NumpyDecoder(), on_error="skip")
        assert described(OneWorker(chosen), 5) == described(OneWorker(chosen).without_bulk(), 5)


@pytest.mark.processes
@pytest.mark.parametrize("example", [np.zeros((2, 3), np.int32, "F"), np.zeros((2, 3), ">i4")])
def test_an_example_whose_bytes_do_not_tell_the_order_does_not_mislead(folder: Path, example: Any) -> None:
    arrays = [example] + [example + np.arange(6, dtype=example.dtype).reshape(2, 3) for _ in range(3)]
    for place, array in enumerate(arrays):
        np.save(folder / f"{place}.npy", np.require(array, example.dtype, "F" if example.flags.f_contiguous else "C"))
    chosen = dataset(
        folder, ["file:path"], [(f"{place}.npy",) for place in range(4)], decode=NumpyDecoder(), shuffle=False
    )
    (made,), _ = OneWorker(chosen).batch(0, chunk_samples=4)
    np.testing.assert_array_equal(made, arrays)


@pytest.mark.processes
def test_what_cannot_be_made_in_bulk_is_left_to_the_pipeline(folder: Path, tmp_path: Path) -> None:
    lines = [(f"{number}.bin",) for number in range(NUM_FILES)]
    cases: list[dict[str, Any]] = [
        {"decode": bytes.upper},
        {"decode": RawBytes(as_array=True), "transform": np.abs},
        {"page_cache": "drop"},
        {"cache": PartialCache(tmp_path / "cache", max_bytes=1 << 20)},
    ]
    for options in cases:
        worker = OneWorker(dataset(folder, ["file:path"], lines, **options))
        made: list[int] = []
        assert not worker.fill(0, 0, NUM_FILES, at=made.append).failures
        assert made[-NUM_FILES:] == list(range(NUM_FILES)), options


def test_chunks_are_no_longer_tried_where_most_samples_are_declined_but_again_later(folder: Path) -> None:
    lines = [(r"tab\tbin",)] * 16 + [("1.bin",)] * 16
    worker = OneWorker(dataset(folder, ["file:path"], lines, shuffle=False))
    reached: list[int] = []
    worker.fill(0, 0, 16)
    for _ in range(15):
        worker.fill(0, 16, 32, at=reached.append)
    assert reached == [16, *range(16, 32)] * 15
    reached.clear()
    worker.fill(0, 16, 32, at=reached.append)
    assert reached == [16], "the chunk itself only"
    assert worker.arrays["file"].strings(None, as_text=False)[15:17] == [
        b"its name has a TAB",
        worker.arrays["file"][31].tobytes(),
    ]
