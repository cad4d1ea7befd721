"""Batches are the same, bit for bit, from files, tar, LMDB, TFRecord, Arrow, Parquet and S3."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import MPDataset, MPLoader, PartialCache, RandomResizedCrop, RawBytes, Topology, build_index
from mpload.tools.pack.packing import PackOptions, pack_index
from tests.support.s3 import S3
from tests.support.sources import make_photos, make_source, make_tar

pytestmark = pytest.mark.processes

STORES = ["files", "tar", "packed", "lmdb", "tfrecord", "arrow", "parquet", "s3", "s3-tar"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    make_photos(folder)
    return folder


@pytest.fixture(scope="module")
def s3(s3: S3, folder: Path) -> S3:
    make_tar(folder)
    s3.put_folder(folder / "photos", "data/photos")
    s3.put_folder(folder / "tars", "data/tars")
    return s3


def batches(index: Path, cache: PartialCache | None, *, num_epochs: int, num_workers: int = 2) -> list[list[Any]]:
    """Return the bytes of all batches, epoch by epoch."""
    dataset = MPDataset(
        index, decode=RandomResizedCrop(48), batch_size=5, seed=7, tail="ragged", cache=cache, topology=Topology()
    )
    with MPLoader(dataset, num_workers=num_workers) as loader:
        return [
            [(np.asarray(images).tobytes(), labels.tolist()) for images, labels in loader] for _ in range(num_epochs)
        ]


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[Any]]:
    """Return the batches of two epochs, read from files without a cache."""
    return batches(folder / "files.txt", None, num_epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_batches_are_the_same_from_every_store_cached_or_not_cold_and_warm(
    kind: str, folder: Path, wanted: list[list[Any]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind.startswith("s3"):
        request.getfixturevalue("s3")
    if kind == "packed":
        index = pack_index(folder / "files.txt", tmp_path / "pack", PackOptions(shard_bytes=100_000))
    else:
        root = "s3://photos/data/tars" if kind == "s3-tar" else None
        made = build_index(make_source(kind, folder), tmp_path / f"{kind}.txt", root=root)
        assert isinstance(made, Path)
        index = made
    assert len(wanted[0]) == 6
    assert wanted[0] != wanted[1]
    assert batches(index, None, num_epochs=1) == wanted[:1]
    cache = PartialCache(tmp_path / "cache", max_bytes="100MiB", fraction=0.6)
    assert batches(index, cache, num_epochs=2) == wanted  # cold in the first epoch, warm in the second
    assert batches(index, cache, num_epochs=1, num_workers=0) == wanted[:1]  # a second run on the warm cache


@pytest.mark.parametrize("kind", ["files", "tar"])
@pytest.mark.parametrize("is_cached", [False, True])
def test_raw_bytes_are_the_same_as_arrays_and_as_bytes(
    kind: str, is_cached: bool, folder: Path, tmp_path: Path
) -> None:
    index = build_index(make_source(kind, folder), tmp_path / "index.txt")

    def dataset(*, as_array: bool) -> MPDataset:
        cache = PartialCache(tmp_path / "cache", fraction=0.5) if is_cached else None
        decode = RawBytes(as_array=as_array)
        return MPDataset(index, decode=decode, batch_size=5, tail="ragged", cache=cache, topology=Topology())

    wanted = [data for images, _ in dataset(as_array=False) for data in images]
    for num_workers in (0, 2):
        with MPLoader(dataset(as_array=True), num_workers=num_workers) as loader:
            for _ in range(2):
                loader.set_epoch(0)
                assert [image.numpy().tobytes() for images, _ in loader for image in images] == wanted
