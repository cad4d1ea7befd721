"""Every storage passes the tests in tests/support/storage_contract.py."""

import os
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mpload.errors import StorageError
from mpload.storage import local
from mpload.storage.lmdb import LmdbStorage
from mpload.storage.local import LocalStorage, PageCache
from mpload.storage.native import NATIVE
from mpload.storage.opening import open_storage
from mpload.storage.parquet import ParquetStorage
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue, Span
from mpload.storage.read_ahead import ReadAhead
from mpload.storage.remote import RemoteObjects
from tests.support.children import check_in_a_child
from tests.support.s3 import S3
from tests.support.storage_contract import StorageContract, Stored

NAMES = ["a/one.bin", "a b/é ü.bin", "100%/x.bin", "a%20b/x.bin", "q?x=1/y.bin", "h#z+y.bin"]


def fill(root: Path) -> dict[ByteRange, bytes]:
    """Write files and a shard below `root`, a file `secret` beside `root`, and a link below `root` to `secret`."""
    found: dict[ByteRange, bytes] = {}
    for name in [*NAMES, os.fsdecode(b"caf\xe9\xff.bin")]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(os.fsencode(name) * 10)
        found[ByteRange(name)] = os.fsencode(name) * 10
    (root / "large.bin").write_bytes(b"x" * 1000)
    found[ByteRange("large.bin")] = b"x" * 1000
    shard = np.random.default_rng(0).bytes(5000)
    (root / "shard.tar").write_bytes(shard)
    for offset, length in ((0, 0), (0, 10), (5, 10), (4000, 1000), (17, 400)):
        found[Span("shard.tar", offset, length)] = shard[offset : offset + length]
    (root.parent / "secret").write_bytes(b"secret")
    (root / "link").symlink_to("../secret")
    return found


def outside(root: Path) -> dict[ByteRange, bytes]:
    return {ByteRange(path): b"secret" for path in ("../secret", f"{root.parent}/secret", "a/../../secret", "link")}


MISSING: list[tuple[ByteRange, str]] = [
    (ByteRange("none.bin"), "none.bin: No such file"),
    (ByteRange("a"), "a: Is a directory"),
    (ByteRange("a\0"), "is not a valid path"),
    (Span("none.tar", 0, 1), "none.tar: No such file"),
    (Span("shard.tar", 4500, 501), "ends at byte 5,001, but the shard has 5,000"),
]


class TestLocalStorage(StorageContract):
    @pytest.fixture(params=["native", "plain"])
    def module(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param == "plain":
            monkeypatch.setattr(local, "NATIVE", None)
        elif NATIVE is None:
            pytest.skip("the native module is not built")

    @pytest.fixture(params=PageCache)
    def stored(self, request: pytest.FixtureRequest, module: None, tmp_path: Path) -> Stored:
        root = tmp_path / "root"
        make = partial(LocalStorage, root, page_cache=request.param, max_open_files=1)
        return Stored(make=make, data=fill(root), missing=MISSING, outside=outside(root))


class TestLocalOrRemote(StorageContract):
    """Local files in an index that may also name URLs. No path is outside the root."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        make = partial(open_storage, str(tmp_path / "root"), {ByteRange}, allow_outside_root=True)
        return Stored(make=make, data=fill(tmp_path / "root"), missing=MISSING)


def fill_lmdb(path: Path) -> dict[ByteRange, bytes]:
    lmdb = pytest.importorskip("lmdb")
    path.parent.mkdir(exist_ok=True)
    values = {str(number).encode(): number.to_bytes(4, "little") * number for number in range(1, 50)}
    with lmdb.open(str(path), subdir=False, map_size=1 << 24) as environment, environment.begin(write=True) as writer:
        for key, value in values.items():
            writer.put(key, value)
    return {LmdbValue(path.name, key): value for key, value in values.items()}


class TestLmdbStorage(StorageContract):
    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        root = tmp_path / "root"
        data = fill_lmdb(root / "a.lmdb")
        fill_lmdb(tmp_path / "secret")
        (root / "link").symlink_to("../secret")
        (root / "folder").mkdir()
        return Stored(
            make=partial(LmdbStorage, root, max_open_files=1),
            data=data,
            missing=[
                (LmdbValue("a.lmdb", b"none"), "has no key b'none'"),
                (LmdbValue("a.lmdb", b""), "cannot be read"),
                (LmdbValue("a.lmdb", b"x" * 2000), "cannot be read|has no key"),
                (LmdbValue("b", b"1"), "b: No such file"),
                (LmdbValue("folder", b"1"), r"Name the data file in it: .*/data\.mdb"),
                (LmdbValue("a\0", b"1"), "is not a valid path"),
            ],
            outside={LmdbValue(path, b"2"): b"\2\0\0\0" * 2 for path in ("../secret", f"{root.parent}/secret", "link")},
        )


def fill_parquet(path: Path) -> dict[ByteRange, bytes]:
    path.parent.mkdir(exist_ok=True)
    values = [number.to_bytes(4, "little") * number for number in range(50)]
    images = pa.array([{"bytes": value} for value in values], pa.struct([("bytes", pa.binary())]))
    pq.write_table(pa.table({"image": images, "label": range(50)}), path, row_group_size=20)
    return {RowValue(path.name, n // 20, n % 20, "image.bytes"): value for n, value in enumerate(values)}


class TestParquetStorage(StorageContract):
    @pytest.fixture(params=[1, 1 << 30], ids=["keeps one row group", "keeps all row groups"])
    def stored(self, request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
        root = tmp_path / "root"
        data = fill_parquet(root / "a.parquet")
        fill_parquet(tmp_path / "b.parquet")
        (root / "link").symlink_to("../b.parquet")
        return Stored(
            make=partial(ParquetStorage, root, kept_bytes=request.param),
            data=data,
            missing=[
                (RowValue("a.parquet", 3, 0, "image.bytes"), "row 0 of row group 3 does not exist"),
                (RowValue("a.parquet", 2, 10, "image.bytes"), "row 10 of row group 2 does not exist"),
                (RowValue("a.parquet", 0, 0, "nothing"), "has no column 'nothing'"),
                (RowValue("a.parquet", 0, 0, "label"), "column 'label' holds int64, not bytes"),
                (RowValue("c.parquet", 0, 0, "image.bytes"), r"c\.parquet: row 0 of row group 0: cannot be read"),
                (RowValue("a\0", 0, 0, "image.bytes"), "is not a valid path"),
            ],
            outside={
                RowValue(path, 0, 2, "image.bytes"): b"\2\0\0\0" * 2
                for path in ("../b.parquet", f"{root.parent}/b.parquet", "link")
            },
        )


class TestSeveralStorages(StorageContract):
    """Columns of several types in one index."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        root = tmp_path / "root"
        data = {**fill(root), **fill_lmdb(root / "a.lmdb"), **fill_parquet(root / "a.parquet")}
        make = partial(open_storage, str(root), {ByteRange, LmdbValue, RowValue})
        missing = [*MISSING, (LmdbValue("a.lmdb", b"none"), "has no key"), (RowValue("a.parquet", 3, 0, "x"), "exist")]
        return Stored(make=make, data=data, missing=missing, outside=outside(root))


@pytest.fixture(scope="module")
def s3(s3: S3) -> S3:
    s3.put({f"bin/{name}": name.encode() * 10 for name in NAMES} | {"secret": b"secret"})
    return s3


@pytest.mark.processes
class TestRemoteStorage(StorageContract):
    @pytest.fixture
    def stored(self, s3: S3) -> Stored:
        data: dict[ByteRange, bytes] = {ByteRange(name): name.encode() * 10 for name in NAMES}
        one = data[ByteRange(NAMES[0])]
        data |= {Span(NAMES[0], start, length): one[start : start + length] for start, length in ((3, 5), (0, 0))}
        return Stored(
            make=partial(RemoteObjects, "s3://photos/bin/"),
            data=data,
            missing=[
                (ByteRange("none.bin"), r"s3://photos/bin/none\.bin: no such object"),
                (Span("a/one.bin", 85, 10), r"span 85\+10 ends at byte 95, past the end of the object"),
                (Span("a/one.bin", 900, 10), "past the end of the object"),
                (ByteRange("a//one.bin"), "has an empty part"),
                (ByteRange(""), "is not a URL"),
            ],
            outside={ByteRange("s3://photos/secret"): b"secret"},
        )

    @pytest.mark.processes
    def test_a_forked_process_reads_the_same(self, stored: Stored) -> None:
        """After a read in the parent it cannot, but raises an error and does not hang."""
        storage, item = stored.make(), next(iter(stored.data))
        storage.read([item])

        def is_refused() -> bool:
            try:
                storage.read([item])
            except StorageError as error:
                return "was forked from one that had already read URLs" in str(error)
            return False

        check_in_a_child(is_refused)

    def test_a_missing_bucket_is_an_error(self, s3: S3) -> None:
        with pytest.raises(StorageError, match="no such bucket"):
            RemoteObjects("s3://nobucket").read([ByteRange("x")])


class AheadOfEachRead:
    """A storage that reads everything through a `ReadAhead` that takes it for slow."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        now, waits = count(step=1_000_000), count()
        self._ahead = ReadAhead(storage, monotonic_ns=lambda: next(now), count_waits=lambda: next(waits))

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        while not self._ahead.is_active:
            self._ahead.measured(lambda: None)
        self._ahead.plan({number: [item] for number, item in enumerate(ranges)})
        return [self._ahead.read(number, [item])[0] for number, item in enumerate(ranges)]

    def __reduce__(self) -> tuple[object, ...]:
        return AheadOfEachRead, (self._storage,)


class TestReadAhead(StorageContract):
    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        root = tmp_path / "root"

        def make(**options: Any) -> Storage:
            return AheadOfEachRead(LocalStorage(root, **options))

        return Stored(make=make, data=fill(root), missing=MISSING, outside=outside(root))
