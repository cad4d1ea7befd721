"""Objects dropped without `close()` leave nothing open: no descriptor, thread, map or process.

The garbage collector is off, so that reference cycles show up as leaks too.
"""

import gc
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from mpload import (
    BlockShuffle,
    ErrorAction,
    ErrorPolicy,
    MPDataset,
    MPLoader,
    PartialCache,
    RandomResizedCrop,
    RawBytes,
    Topology,
    build_index,
)
from mpload.device.prefetcher import DevicePrefetcher
from mpload.errors import SampleError
from mpload.samples.cache.entries import HEAD_BYTES
from tests.support.batches import numbers
from tests.support.storages import SlowFiles
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("dropped.txt"))


def open_now() -> Counter[str]:
    """Count the descriptors, shared maps, threads and children of this process, by name."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that lists the folder
            found[f"{link.name} {link.readlink()}"] += 1
    maps = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    found.update(fields[5] for fields in maps if len(fields) == 6 and fields[5].startswith("/") and fields[1][3] == "s")
    found.update(f"thread {thread.name}" for thread in threading.enumerate())
    found.update(f"child {pid}" for pid in Path("/proc/thread-self/children").read_text().split())
    return found


@pytest.fixture
def leaves_nothing_open() -> Iterator[Callable[[Callable[[], object]], None]]:
    def check(use: Callable[[], object]) -> None:
        use()  # opens what stays open for the life of the process
        gc.collect()
        gc.disable()
        before = open_now()
        use()
        assert wait_until(lambda: not open_now() - before, 5.0), open_now() - before

    yield check
    gc.enable()


Check = Callable[[Callable[[], object]], None]


def raw(index: Path, **options: Any) -> MPDataset:
    options = {"decode": RawBytes(), "batch_size": 4, "shuffle": True, "topology": Topology(), **options}
    return MPDataset(index, **options)


def test_a_filled_cache_leaves_nothing_open(photos: Path, tmp_path: Path, leaves_nothing_open: Check) -> None:
    def use() -> None:
        for _ in range(2):
            list(raw(photos, cache=PartialCache(tmp_path / "cache", fraction=1.0)))
        list(pickle.loads(pickle.dumps(raw(photos, cache=PartialCache(tmp_path / "other", fraction=1.0)))))

    leaves_nothing_open(use)
    folder = next((tmp_path / "cache").iterdir())
    kept_bytes = sum(path.stat().st_size + HEAD_BYTES for path in photos.with_name("train").rglob("*.*"))
    # Space that was reserved but not used has been returned.
    assert sum(path.stat().st_size for path in folder.glob("segment-*")) == kept_bytes


@pytest.mark.parametrize("options", [{}, {"decode": RandomResizedCrop(32)}, {"batch_size": None}])
def test_a_partly_read_dataset_leaves_nothing_open(
    photos: Path, options: dict[str, Any], leaves_nothing_open: Check
) -> None:
    leaves_nothing_open(lambda: list(islice(raw(photos, **options), 2)))


def test_reading_shards_block_by_block_leaves_nothing_open(tmp_path: Path, leaves_nothing_open: Check) -> None:
    def use() -> None:
        dataset = numbers(tmp_path, 400, shuffle=BlockShuffle(block_samples=32, window_blocks=2), page_cache="drop")
        list(islice(dataset, 20))

    leaves_nothing_open(use)


def test_reading_ahead_leaves_nothing_open(photos: Path, leaves_nothing_open: Check) -> None:
    storage = SlowFiles(photos.with_name("train"))
    leaves_nothing_open(lambda: list(islice(raw(photos, storage=storage), 2)))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:a bad sample")
@pytest.mark.parametrize(
    ("num_workers", "on_error"),
    [*((number, action) for number in (None, 0) for action in ("raise", "skip", "substitute")), (2, "raise")],
)
def test_an_iteration_that_ends_in_an_error_leaves_nothing_open(
    tmp_path: Path, on_error: str, num_workers: int | None, leaves_nothing_open: Check
) -> None:
    (tmp_path / "bad.txt").write_text("#mpload 1\n#columns image:path\n" + "missing.jpg\n" * 8)
    policy = ErrorPolicy(action=ErrorAction(on_error), report=tmp_path / "errors.jsonl")

    def use() -> None:
        dataset = raw(tmp_path / "bad.txt", on_error=policy)
        try:
            for _ in dataset if num_workers is None else MPLoader(dataset, num_workers=num_workers):
                pass
        except SampleError:
            return
        raise AssertionError("no error")

    leaves_nothing_open(use)


@pytest.mark.processes
@pytest.mark.parametrize(("num_workers", "num_batches"), [(0, 2), (0, 100), (2, 2)])
def test_a_loader_leaves_nothing_open(
    photos: Path, num_workers: int, num_batches: int, leaves_nothing_open: Check
) -> None:
    def use() -> None:
        loader = MPLoader(raw(photos, decode=RandomResizedCrop(32)), num_workers=num_workers)
        list(islice(loader, num_batches))

    leaves_nothing_open(use)


@pytest.mark.processes
def test_a_loader_of_a_map_style_dataset_leaves_nothing_open(leaves_nothing_open: Check) -> None:
    leaves_nothing_open(lambda: list(islice(MPLoader([*range(40)], batch_size=4, num_workers=2), 3)))


@pytest.mark.processes
def test_a_partly_read_prefetcher_leaves_nothing_open(photos: Path, leaves_nothing_open: Check) -> None:
    def use() -> None:
        loader = MPLoader(raw(photos, decode=RandomResizedCrop(32)), num_workers=1)
        list(islice(DevicePrefetcher(loader, device="cpu"), 2))

    leaves_nothing_open(use)


@pytest.mark.processes
def test_a_dataset_read_by_a_data_loader_leaves_nothing_open(photos: Path, leaves_nothing_open: Check) -> None:
    def use() -> None:
        dataset = raw(photos)
        list(DataLoader(dataset, batch_size=None, num_workers=2))
        dataset.set_epoch(4)

    leaves_nothing_open(use)


@pytest.mark.processes
def test_an_lmdb_database_leaves_nothing_open(tmp_path: Path, leaves_nothing_open: Check) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "a.lmdb"), map_size=1 << 24, subdir=False) as made, made.begin(write=True) as put:
        for number in range(20):
            put.put(f"{number:03}.jpg".encode(), b"\xff\xd8\xff\xe0" + bytes(20_000))
    index = build_index(tmp_path / "a.lmdb", tmp_path / "a.txt")
    leaves_nothing_open(lambda: list(islice(raw(index), 2)))


def test_a_parquet_file_leaves_nothing_open(tmp_path: Path, leaves_nothing_open: Check) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"image": pa.array([b"\xff\xd8\xff\xe0" + bytes(1000)] * 40), "label": list(range(40))})
    pq.write_table(table, tmp_path / "a.parquet")
    index = build_index(tmp_path / "a.parquet", tmp_path / "a.txt")
    leaves_nothing_open(lambda: list(islice(raw(index), 2)))
