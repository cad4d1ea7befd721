"""Parquet files at URLs: read as on a local disk, with few requests, and with the errors of a server."""

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mpload import BlockShuffle, MPDataset, MPLoader, RawBytes, Topology, build_index, open_index
from mpload.errors import OutageError, OutsideRootError, SampleError, StorageError
from mpload.storage.opening import open_storage
from mpload.storage.parquet import ParquetStorage
from mpload.storage.ranges import LmdbValue, RowValue
from mpload.storage.remote import RemoteObjects, RemoteStorage
from tests.support.s3 import S3
from tests.support.web_faults import web_server

NUM_ROWS, GROUP_ROWS = 230, 100
LIMITS = RemoteStorage(request_timeout_seconds=0.8, retry_seconds=2.5)


def image(number: int) -> bytes:
    return random.Random(number).randbytes(number % 50 * 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of three row groups, and one whose row group of 20 MB takes several requests."""
    folder = tmp_path_factory.mktemp("tables")
    columns = {"image": [image(n) for n in range(NUM_ROWS)], "label": list(range(NUM_ROWS))}
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=GROUP_ROWS)
    pq.write_table(
        pa.table({"image": [random.Random(n).randbytes(10 << 20) for n in range(2)]}), folder / "big.parquet"
    )
    return folder


@pytest.fixture(scope="module")
def s3(s3: S3, folder: Path) -> S3:
    s3.put_folder(folder, "tables")
    return s3


def at(number: int) -> RowValue:
    return RowValue("a.parquet", row_group=number // GROUP_ROWS, row=number % GROUP_ROWS, column="image")


@pytest.mark.processes
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_an_epoch_over_parquet_at_a_url_equals_one_over_the_local_file(
    s3: S3, folder: Path, tmp_path: Path, scheme: str
) -> None:
    def batches(index: Path) -> list[tuple[list[bytes], list[int]]]:
        order = BlockShuffle(block_samples=50, window_blocks=2)
        dataset = MPDataset(index, decode=RawBytes(), batch_size=23, shuffle=order, topology=Topology())
        with MPLoader(dataset, num_workers=2) as loader:
            return [(list(images), labels.tolist()) for images, labels in loader]

    with web_server(folder, "none", bad="") as server:
        url = "s3://photos/tables" if scheme == "s3" else server.url
        build_index(folder / "a.parquet", tmp_path / "local.txt")
        build_index(folder / "a.parquet", tmp_path / "remote.txt", root=url)
        assert open_index(tmp_path / "remote.txt").root == url
        assert batches(tmp_path / "remote.txt") == batches(tmp_path / "local.txt")


@pytest.mark.processes
def test_a_row_group_takes_one_request_and_a_file_is_opened_once(folder: Path) -> None:
    with web_server(folder, "none", bad="") as server:
        storage = ParquetStorage(RemoteObjects(server.url))
        numbers = random.Random(0).choices(range(NUM_ROWS), k=100)
        assert storage.read([at(n) for n in numbers]) == [image(n) for n in numbers]
        big = storage.read([RowValue("big.parquet", row_group=0, row=1, column="image")])
        assert big == [random.Random(1).randbytes(10 << 20)]
    counts = Counter(request.path for request in server.requests)
    assert counts == {"/a.parquet": 2 + 3, "/big.parquet": 2 + 3}


@pytest.mark.slow
@pytest.mark.processes
def test_faults_of_a_server_are_survived_or_named_while_parquet_is_read(folder: Path) -> None:
    with web_server(folder, "reset once", bad="a.parquet") as server:
        assert ParquetStorage(RemoteObjects(server.url)).read([at(3)]) == [image(3)]
    with web_server(folder, "stall in the body", bad="a.parquet") as server:
        storage = ParquetStorage(RemoteObjects(server.url, limits=LIMITS))
        with pytest.raises(StorageError, match=r"a\.parquet: answer stalled after .*retry_seconds=2\.5"):
            storage.read([at(3)])
        with pytest.raises(StorageError, match=r"missing\.parquet: no such object"):
            storage.read([RowValue("missing.parquet", row_group=0, row=0, column="image")])
        with pytest.raises(OutsideRootError):
            storage.read([RowValue("../a.parquet", row_group=0, row=0, column="image")])
    with pytest.raises(OutageError, match="connection refused"):
        storage.read([at(3)])


@pytest.mark.processes
def test_an_outage_while_a_row_group_is_read_is_no_bad_sample(folder: Path, tmp_path: Path) -> None:
    with web_server(folder, "none", bad="") as server:
        build_index(folder / "a.parquet", tmp_path / "x.txt", root=server.url)
        dataset = MPDataset(tmp_path / "x.txt", decode=RawBytes(), on_error="skip", storage=LIMITS, topology=Topology())
        samples = iter(dataset)
        assert next(samples) == (image(0), 0)
        server.stop()
        with pytest.raises(SampleError, match="connection refused") as caught:
            list(samples)
    assert isinstance(caught.value.__cause__, OutageError)


@pytest.mark.parametrize(
    ("root", "command"),
    [
        ("s3://bucket/train", "aws s3 sync s3://bucket/train /data/lmdb"),
        ("gs://bucket/train", "gcloud storage rsync --recursive gs://bucket/train /data/lmdb"),
        ("az://box/train", "az storage blob download-batch --source box --pattern 'train*' --destination /data/lmdb"),
        ("https://host/train", "curl --create-dirs --output /data/lmdb/FILE https://host/train/FILE"),
    ],
)
def test_the_error_about_lmdb_at_a_url_has_the_command_that_copies_it(root: str, command: str) -> None:
    with pytest.raises(StorageError) as caught:
        open_storage(root, {LmdbValue})
    assert f"({command})" in str(caught.value)
