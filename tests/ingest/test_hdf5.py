"""HDF5 files as sources: spans contain exactly the rows."""

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import build_index, open_index
from mpload.errors import ArgumentError, MploadError, MploadWarning
from tests.support.ingested import columns_of, read_span

h5py = pytest.importorskip("h5py")

ARRAYS = np.random.default_rng(0).integers(0, 255, (7, 4, 5, 3), dtype=np.uint8)
POSES = np.arange(14, dtype=">f4").reshape(7, 2)
TEXTS = ["a dog", "", "\u72ac\n", "x", "y", "z", "w"]


def write(path: Path, *, options: dict[str, Any] | None = None) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=ARRAYS, **(options or {}))
        file.create_dataset("state/pose", data=POSES)
        file.create_dataset("labels", data=np.arange(7) * 3)
        file.create_dataset("score", data=np.linspace(0, 1, 7))
        file.create_dataset("caption", data=TEXTS)
    return path


@pytest.mark.parametrize("options", [{}, {"chunks": (1, 4, 5, 3)}])
def test_rows_are_spans_and_numbers_and_texts_are_cells(tmp_path: Path, options: dict[str, Any]) -> None:
    index = open_index(build_index(write(tmp_path / "x.h5", options=options), tmp_path / "x.txt"))
    assert columns_of(tmp_path / "x.txt") == "images:span state_pose:span caption:str labels:int score:float"
    for row, record in enumerate(index):
        assert read_span(tmp_path, record["images"]) == ARRAYS[row].tobytes()
        assert read_span(tmp_path, record["state_pose"]) == POSES[row].tobytes()
        assert (record["caption"], record["labels"]) == (TEXTS[row], 3 * row)
    assert len(index) == 7


def test_several_files_are_one_index_and_columns_can_be_selected(tmp_path: Path) -> None:
    files = [write(tmp_path / name) for name in ("b.hdf5", "a.hdf5")]
    out = build_index(files, tmp_path / "x.txt", columns="labels:int images:span")
    assert columns_of(out) == "labels:int images:span"
    assert [record["labels"] for record in open_index(out)] == [0, 3, 6, 9, 12, 15, 18] * 2


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"chunks": (2, 4, 5, 3)}, {"chunks": (1, 4, 5, 1)}])
def test_rows_that_are_not_stored_verbatim_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"x\.h5: the rows of '/images' are compressed, or stored in pieces"):
        build_index(write(tmp_path / "x.h5", options=options), tmp_path / "x.txt")


def test_datasets_that_do_not_fit_together_are_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file.create_dataset("more", data=np.arange(3))
    with pytest.raises(ArgumentError, match=r"different numbers of rows: .*'more': 3"):
        build_index(path, tmp_path / "x.txt")
    with pytest.raises(ArgumentError, match=r"has other datasets than .*x\.h5"):
        build_index([path, write(tmp_path / "y.h5")], tmp_path / "x.txt", columns="images:span")
    with h5py.File(tmp_path / "z.h5", "w") as file:
        file.create_dataset("labels", data=np.arange(3))
    with pytest.raises(ArgumentError, match="has no dataset of arrays"):
        build_index(tmp_path / "z.h5", tmp_path / "x.txt")


def test_a_dataset_that_cannot_be_text_is_named_in_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        file.create_dataset("complex", data=np.zeros(7, np.complex64))
    with pytest.warns(MploadWarning, match="such as complex"):
        build_index(path, tmp_path / "x.txt")


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "w.h5").read_bytes()
    generator = random.Random(0)
    path = tmp_path / "x.h5"
    for size in range(8, len(whole), 997):
        path.write_bytes(whole[:size])
        with pytest.raises(MploadError, match=r"x\.h5"):
            build_index(path, tmp_path / "x.txt")
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(4):
            data[generator.randrange(8, 2000)] = generator.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(MploadError):
            build_index(path, tmp_path / "x.txt")
