"""Samples that are the bytes of an array become one tensor per batch, wherever they are stored."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import DTypeLike, NDArray
from torch.utils.data import DataLoader

from mpload import ErrorPolicy, MPDataset, MPLoader, PartialCache, RawArray, SampleError, Topology
from mpload.samples.policy import ErrorAction
from tests.support import decoders

pytestmark = pytest.mark.processes

NUM_SAMPLES = 7
WAYS = ["alone", "one by one", "DataLoader", "0", "2"] if sys.platform == "linux" else ["alone", "DataLoader"]


def rows(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    return np.arange(NUM_SAMPLES * int(np.prod(shape))).reshape(NUM_SAMPLES, *shape).astype(dtype)


def spans_of(values: NDArray[Any], folder: Path, *, header_bytes: int = 0) -> Path:
    """Write the arrays one after another into a file, and an index of their spans with the labels 0, 1, 2..."""
    (folder / "rows.bin").write_bytes(bytes(header_bytes) + values.tobytes())
    size = values[0].nbytes
    lines = [f"{header_bytes + size * place}+{size}@rows.bin\t{place}\n" for place in range(len(values))]
    (folder / "rows.txt").write_text("#mpload 1\n#columns row:span label:int\n" + "".join(lines))
    return folder / "rows.txt"


def files_of(values: NDArray[Any], folder: Path) -> Path:
    """Write each array into a file of its own."""
    for place, value in enumerate(values):
        (folder / f"{place}.bin").write_bytes(value.tobytes())
    lines = [f"{place}.bin\t{place}\n" for place in range(len(values))]
    (folder / "files.txt").write_text("#mpload 1\n#columns row:path label:int\n" + "".join(lines))
    return folder / "files.txt"


def lmdb_of(values: NDArray[Any], folder: Path) -> Path:
    """Write each array as a value of an LMDB file."""
    lmdb = pytest.importorskip("lmdb")
    with (
        lmdb.open(str(folder / "rows.lmdb"), subdir=False, map_size=1 << 24) as environment,
        environment.begin(write=True) as writer,
    ):
        for place, value in enumerate(values):
            writer.put(b"%d" % place, value.tobytes())
    lines = [f"{place}@rows.lmdb\t{place}\n" for place in range(len(values))]
    (folder / "lmdb.txt").write_text("#mpload 1\n#columns row:lmdb label:int\n" + "".join(lines))
    return folder / "lmdb.txt"


def batches(index: Path, how: str, **options: Any) -> tuple[torch.Tensor, list[int]]:
    """Return both columns of an epoch, of all its batches."""
    options = {"batch_size": None if how == "one by one" else 3, "tail": "ragged", "topology": Topology(), **options}
    dataset = MPDataset(index, **options)
    if how == "one by one":
        samples = list(dataset)
        return torch.stack([row for row, _ in samples]), [label for _, label in samples]
    if how == "alone":
        found = list(dataset)
    elif how == "DataLoader":
        found = list(DataLoader(dataset, batch_size=None, num_workers=2))
    else:
        with MPLoader(dataset, num_workers=int(how)) as loader:
            found = [(values.clone(), labels.clone()) for values, labels in loader]
    assert all(isinstance(values, torch.Tensor) for values, _ in found)
    return torch.cat([values for values, _ in found]), torch.cat([labels for _, labels in found]).tolist()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 3), "float32"), ((), "int64"), ((5,), "bool"), ((2, 1), "complex128")]
)
def test_rows_of_a_file_become_one_tensor_per_batch(
    tmp_path: Path, how: str, shape: tuple[int, ...], dtype: str
) -> None:
    values = rows(shape, dtype)
    index = spans_of(values, tmp_path, header_bytes=5)
    found, labels = batches(index, how, decode=RawArray(shape, dtype=dtype), shuffle=True, seed=1)
    assert sorted(labels) == list(range(NUM_SAMPLES)) != labels
    assert found.numpy().dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found.numpy(), values[labels])


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("stored", [files_of, lmdb_of])
def test_whole_files_and_lmdb_values_are_rows_too(
    tmp_path: Path, how: str, stored: Callable[[NDArray[Any], Path], Path]
) -> None:
    values = rows((4,), ">i2")
    found, labels = batches(stored(values, tmp_path), how, decode=RawArray((4,), dtype=">i2"))
    np.testing.assert_array_equal(found.numpy(), values[labels])


@pytest.mark.parametrize("how", WAYS)
def test_rows_that_are_images_appear_channels_first(tmp_path: Path, how: str) -> None:
    values = rows((4, 5, 3), "uint8")
    index = spans_of(values, tmp_path)
    found, _ = batches(index, how, decode=RawArray((4, 5, 3), makes_images=True))
    np.testing.assert_array_equal(found.numpy(), values.transpose(0, 3, 1, 2))
    kept, _ = batches(index, how, decode=RawArray((4, 5, 3)))
    np.testing.assert_array_equal(kept.numpy(), values)


@pytest.mark.parametrize("how", WAYS)
def test_a_transform_may_change_the_rows(tmp_path: Path, how: str) -> None:
    values = rows((2, 3), "int32")
    found, labels = batches(
        spans_of(values, tmp_path), how, decode=RawArray((2, 3), dtype="int32"), transform=decoders.halved
    )
    np.testing.assert_array_equal(found.numpy(), ((values[labels, :1] + 1) / 2).astype(np.float32))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.filterwarnings("ignore:a bad sample")
@pytest.mark.parametrize("action", ["raise", "skip", "substitute"])
def test_a_row_of_the_wrong_length_meets_the_error_policy(tmp_path: Path, how: str, action: str) -> None:
    values = rows((2,), "int16")
    index = spans_of(values, tmp_path)
    index.write_text(index.read_text().replace("8+4@", "8+3@"))
    policy = ErrorPolicy(action=ErrorAction(action), report=tmp_path / "bad.jsonl")
    decode = RawArray((2,), dtype="int16")
    if action == "raise":
        with pytest.raises(SampleError, match=r"8\+3@rows\.bin.*3 bytes, but int16\[2\] has 4: .*Pass the shape"):
            batches(index, how, decode=decode, on_error=policy)
        return
    found, labels = batches(index, how, decode=decode, on_error=policy)
    assert len(labels) == NUM_SAMPLES - (action == "skip")
    assert 2 not in labels or action == "substitute"
    np.testing.assert_array_equal(found.numpy()[:2], values[:2])
    assert "8+3@rows.bin" in (tmp_path / "bad.jsonl").read_text()


@pytest.mark.parametrize("how", ["alone", "2"])
def test_rows_can_be_cached(tmp_path: Path, how: str) -> None:
    values = rows((2, 3), "float64")
    index = spans_of(values, tmp_path)
    for _ in range(2):
        found, labels = batches(
            index,
            how,
            decode=RawArray((2, 3), dtype="float64"),
            cache=PartialCache(tmp_path / "cache", max_bytes=1 << 20),
        )
        np.testing.assert_array_equal(found.numpy(), values[labels])


@pytest.mark.parametrize("how", WAYS)
def test_a_decoder_of_a_user_declares_its_dtype(tmp_path: Path, how: str) -> None:
    values = rows((2,), "int16")
    found, labels = batches(spans_of(values, tmp_path), how, decode=decoders.Doubled())
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), 2 * values[labels])


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    index = files_of(rows((3,), "uint8"), tmp_path)
    os.truncate(tmp_path / "4.bin", 1 << 40)  # it takes no space on the disk
    samples = iter(MPDataset(index, decode=RawArray((3,)), topology=Topology()))
    for _ in range(4):
        next(samples)
    with pytest.raises(SampleError, match=r"4\.bin: is not read: its 1,099,511,627,776 bytes exceed max_bytes"):
        next(samples)
