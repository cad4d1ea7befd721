"""Reading ahead in datasets and loaders: the same batches, whatever fails, is killed, hangs or is cached."""

import itertools
import os
import random
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import DataLoader

from mpload import ErrorPolicy, MPDataset, MPLoader, PartialCache, RawBytes, Topology
from mpload.errors import MploadWarning
from mpload.storage.protocols import PageStorage
from mpload.transport.batches import PoolOptions
from tests.support.batches import plain
from tests.support.storages import HangingFiles, SlowFiles, SlowMemory
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and the page cache of Linux")

NUM_FILES = 96


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(NUM_FILES):
        (tmp_path / "data" / f"{number}.bin").write_bytes(random.Random(number).randbytes(200 + number))
    path = tmp_path / "all.txt"
    path.write_text("".join(f"data/{number}.bin {number}\n" for number in range(NUM_FILES)))
    return path


def slow(index: Path, **options: Any) -> MPDataset:
    options = {"storage": SlowFiles(index.parent), "batch_size": 16, **options}
    return MPDataset(index, decode=RawBytes(), tail="ragged", shuffle=True, topology=Topology(), **options)


def expected(index: Path, num_epochs: int) -> list[list[tuple[list[bytes], list[int]]]]:
    dataset = MPDataset(index, decode=RawBytes(), batch_size=16, tail="ragged", shuffle=True, topology=Topology())
    return [plain(dataset) for _ in range(num_epochs)]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_the_same_with_and_without_reading_ahead(files: Path, num_workers: int) -> None:
    wanted = expected(files, 4)
    with MPLoader(slow(files), num_workers=num_workers) as loader:
        for epoch in wanted:
            assert plain(loader) == epoch


@pytest.mark.processes
def test_a_stock_dataloader_reads_ahead_too(files: Path) -> None:
    dataset = slow(files)
    wanted = expected(files, 3)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert [plain(loader) for _ in wanted] == wanted
    alone = slow(files)
    assert [plain(alone) for _ in wanted] == wanted
    assert alone._run.pipeline.ahead.is_active
    one_by_one = slow(files, batch_size=None)
    assert [sample[0] for sample in one_by_one] == [data for batch in wanted[0] for data in batch[0]]
    assert one_by_one._run.pipeline.ahead.is_active


@pytest.mark.processes
def test_workers_start_threads_and_the_zygote_does_not(files: Path) -> None:
    with MPLoader(slow(files), num_workers=2) as loader:

        def all_have_some() -> bool:
            plain(loader)
            num_threads = {name: psutil.Process(pid).num_threads() for name, pid in loader.pids.items()}
            assert num_threads.pop("mpload-zygote") == 1
            return len(num_threads) == 2 and all(number > 1 for number in num_threads.values())

        assert wait_until(all_have_some)  # on a busy machine a worker may get no chunk in an epoch


@pytest.mark.processes
def test_killing_workers_that_read_ahead_loses_and_repeats_nothing(files: Path) -> None:
    chance = random.Random(0)
    wanted = expected(files, 6)
    options = PoolOptions(max_restarts=1000)
    with MPLoader(slow(files, batch_size=16), num_workers=3, options=options) as loader:
        for number in itertools.count():
            loader.set_epoch(number % 6)
            found = []
            for data, labels in loader:
                found.append((data, labels.tolist()))
                workers = [pid for name, pid in loader.pids.items() if "worker" in name]
                if workers and chance.random() < 0.4:
                    with suppress(ProcessLookupError):  # it was killed before, and the loader has not noticed yet
                        os.kill(chance.choice(workers), signal.SIGKILL)
            assert found == wanted[number % 6]
            if number >= 5 and loader.stats().num_deaths > 3:
                break


@pytest.mark.slow
@pytest.mark.processes
def test_a_hanging_read_ends_at_the_sample_timeout(files: Path) -> None:
    dataset = slow(
        files,
        storage=HangingFiles(files.parent),
        on_error=ErrorPolicy(action="skip", report=files.parent / "bad.jsonl"),
    )
    options = PoolOptions(sample_timeout_seconds=0.7)
    with warnings.catch_warnings(), MPLoader(dataset, num_workers=2, options=options) as loader:
        warnings.simplefilter("ignore", MploadWarning)  # a bad sample
        found = sorted(label for _, labels in plain(loader) for label in labels)
        assert found == [number for number in range(NUM_FILES) if number != 40]


@pytest.mark.processes
def test_a_missing_file_makes_only_its_own_sample_bad(files: Path) -> None:
    (files.parent / "data" / "40.bin").unlink()
    dataset = slow(files, on_error=ErrorPolicy(action="skip", report=files.parent / "bad.jsonl"))
    with warnings.catch_warnings(), MPLoader(dataset, num_workers=2) as loader:
        warnings.simplefilter("ignore", MploadWarning)  # a bad sample
        for _ in range(3):
            found = sorted(label for _, labels in plain(loader) for label in labels)
            assert found == [number for number in range(NUM_FILES) if number != 40]


def test_cached_samples_are_not_read_ahead(files: Path, tmp_path: Path) -> None:
    storage = SlowMemory({f"data/{n}.bin": (files.parent / "data" / f"{n}.bin").read_bytes() for n in range(NUM_FILES)})
    dataset = slow(files, storage=storage, cache=PartialCache(tmp_path / "cache", fraction=0.5))
    wanted = expected(files, 3)
    assert plain(dataset) == wanted[0]
    assert dataset._run.cache is not None
    num_held = sum(map(dataset._run.cache.holds, range(NUM_FILES)))
    assert 0 < num_held < NUM_FILES
    storage.reads.clear()
    assert [plain(dataset) for _ in range(2)] == wanted[1:]
    assert len(storage.reads) == 2 * (NUM_FILES - num_held)


def test_local_files_are_read_through_the_page_cache_and_in_parallel(files: Path) -> None:
    storage = slow(files, storage=None)._run.pipeline.opened_storage
    assert isinstance(storage, PageStorage)
    assert storage.max_parallel_reads > 1  # type: ignore[attr-defined]
