"""Shards and folders that are replaced while a job reads them: a new worker reads no other files than the old ones."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpload import MPDataset, MPLoader, PackOptions, RawBytes, build_index, pack_index
from mpload.errors import IndexChangedError

pytestmark = pytest.mark.processes


def samples_in(loader: MPLoader) -> list[bytes]:
    return [bytes(data) for batch in loader for data in batch[0]]


def replace_worker(loader: MPLoader) -> None:
    os.kill(loader.pids["mpload-worker-0"], signal.SIGKILL)


def shards_of(kind: str, photos: Path, folder: Path) -> tuple[Path, list[Path]]:
    """Return an index of the photos in shards, and the shards."""
    if kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        data = [path.read_bytes() for path in sorted(photos.parent.rglob("*.JPEG"))]
        folder.mkdir()
        pq.write_table(pa.table({"image": data, "label": [0] * len(data)}), folder / "a.parquet")
        index = build_index(folder / "a.parquet", folder / "i.txt")
    else:
        index = pack_index(photos, folder, PackOptions(format=kind))  # type: ignore[arg-type]
    return index, [path for path in folder.iterdir() if path.suffix in {".tar", ".lmdb", ".parquet"}]


@pytest.fixture
def loader(request: pytest.FixtureRequest, photos: Path, tmp_path: Path) -> Iterator[tuple[MPLoader, list[Path]]]:
    index, shards = shards_of(request.param, photos, tmp_path / "shards")
    assert shards
    dataset: MPDataset[Any] = MPDataset(index, decode=RawBytes(), batch_size=4, on_error="skip")
    with MPLoader(dataset, num_workers=1) as loader:
        yield loader, shards


@pytest.mark.parametrize("loader", ["tar", "lmdb", "parquet"], indirect=True)
def test_a_worker_that_takes_the_place_of_another_refuses_a_shard_that_was_replaced(
    loader: tuple[MPLoader, list[Path]],
) -> None:
    batches, shards = loader
    samples = samples_in(batches)
    assert len(samples) == 24
    for shard in shards:
        shutil.copyfile(shard, shard.with_name("new"))
        shard.with_name("new").replace(shard)
    assert samples_in(batches) == samples, "the old shard is still open"
    replace_worker(batches)
    with pytest.raises(IndexChangedError, match=r"was replaced while it was in use"):
        samples_in(batches)


@pytest.mark.parametrize("loader", ["tar"], indirect=True)
def test_a_shard_that_was_touched_is_read_on(loader: tuple[MPLoader, list[Path]]) -> None:
    batches, shards = loader
    samples = samples_in(batches)
    os.utime(shards[0])
    replace_worker(batches)
    assert samples_in(batches) == samples


def test_a_worker_that_takes_the_place_of_another_reads_the_folder_that_the_others_read(
    photo_tree: Path, tmp_path: Path
) -> None:
    root = tmp_path / "train"
    shutil.copytree(photo_tree, root)
    index = build_index(root, tmp_path / "i.txt")
    with MPLoader(MPDataset(index, decode=RawBytes(), batch_size=4), num_workers=1) as loader:
        samples = samples_in(loader)
        root.rename(tmp_path / "old")
        for path in (tmp_path / "old").rglob("*.JPEG"):
            new = root / path.relative_to(tmp_path / "old")
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(b"other")
        replace_worker(loader)
        assert samples_in(loader) == samples
