"""Reading ahead: the same bytes, threads only if reads are slow, a limit in bytes, and errors only for their sample."""

import ctypes
import itertools
import mmap
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mpload import BlockShuffle, ErrorPolicy, MPDataset, MPLoader, PartialCache, RawBytes, Topology
from mpload.errors import ArgumentError, MploadWarning, StorageError
from mpload.storage.local import LocalStorage
from mpload.storage.protocols import PageStorage
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.read_ahead import ReadAhead
from mpload.transport.batches import PoolOptions
from tests.support.storages import SLOW_SECONDS, HangingFiles, SlowFiles, SlowPages
from tests.support.transport_works import open_files, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and the page cache of Linux")

FILE = bytes(random.Random(0).randbytes(100_000))


class Slow:
    """Files in memory with a delay for each read. Records what was read, and by which threads."""

    max_parallel_reads = 4

    def __init__(self, files: dict[str, bytes], *, seconds: float = SLOW_SECONDS) -> None:
        self.files = files
        self.seconds = seconds
        self.reads: list[ByteRange] = []
        self.threads: set[str] = set()

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        self.reads.extend(ranges)
        self.threads.add(threading.current_thread().name)
        if self.seconds:  # even sleep(0) would yield to other processes
            time.sleep(self.seconds)
        return [self._one(item) for item in ranges]

    def _one(self, item: ByteRange) -> bytes:
        data = self.files[item.path]
        if item.length_bytes is None:
            return data
        if item.offset_bytes + item.length_bytes > len(data):
            raise StorageError(f"{item.path}: too short")
        return data[item.offset_bytes : item.offset_bytes + item.length_bytes]


def span(start: int, length: int) -> Span:
    return Span("shard", start, length)


def awake(storage: Any, **options: Any) -> ReadAhead:
    """Return a ReadAhead that has found out that its storage is slow."""
    ahead = ReadAhead(storage, **options)
    for _ in range(20):
        ahead.read(-1, [span(0, 1)])
    assert ahead.is_active
    return ahead


# --- the same bytes

RANGES = st.lists(
    st.one_of(
        st.builds(span, st.integers(0, 90_000), st.integers(0, 10_000)),
        st.just(ByteRange("file")),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60)
@given(
    ranges=st.lists(RANGES, min_size=1, max_size=20),
    plans=st.lists(st.lists(st.integers(0, 19), max_size=12, unique=True), max_size=4),
    max_bytes=st.sampled_from([1, 5_000, 1 << 20]),
    skips=st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_bytes_that_are_read_ahead_are_the_right_ones(
    ranges: list[list[ByteRange]], plans: list[list[int]], max_bytes: int, skips: list[bool]
) -> None:
    storage = Slow({"shard": FILE, "file": FILE[:777]}, seconds=0)
    hours_a_read = itertools.count(step=10**13).__next__
    ahead = awake(storage, max_bytes=max_bytes, monotonic_ns=hours_a_read, count_waits=itertools.count().__next__)
    for plan in plans:
        wanted = {sample_id: ranges[sample_id % len(ranges)] for sample_id in plan}
        ahead.plan(wanted)
        for number, sample_id in enumerate(plan):
            if not skips[number % len(skips)]:  # a planned sample may never be requested
                assert ahead.read(sample_id, wanted[sample_id]) == [storage._one(item) for item in wanted[sample_id]]
    ahead.plan({})
    assert (ahead._held_bytes, ahead._num_ahead, len(ahead._pieces)) == (0, 0, 0)


def test_neighbouring_spans_share_a_read_and_distant_ones_do_not() -> None:
    storage = Slow({"shard": FILE})
    ahead = awake(storage)
    storage.reads.clear()
    near, far = {n: [span(n * 1500, 1000)] for n in range(6)}, {9: [span(80_000, 10)]}
    ahead.plan(near | far)
    for sample_id, ranges in (near | far).items():
        assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]
    assert storage.reads == [span(0, 8500), span(80_000, 10)]


# --- threads only if they pay


def test_fast_reads_start_no_thread() -> None:
    storage = Slow({"shard": FILE}, seconds=0)
    ahead = ReadAhead(storage)
    for number in range(2000):
        ahead.read(number, [span(number, 10)])
    assert not ahead.is_active
    assert storage.threads == {threading.current_thread().name}


def test_a_few_slow_reads_among_many_start_no_thread() -> None:
    storage = Slow({"shard": FILE}, seconds=0)
    ahead = ReadAhead(storage)
    for number in range(400):
        storage.seconds = SLOW_SECONDS if number % 100 in {50, 51} else 0
        ahead.read(number, [span(number, 10)])
    assert not ahead.is_active


def test_threads_read_while_reads_are_slow_and_stop_when_they_are_fast_again() -> None:
    storage = Slow({"shard": FILE} | {str(number): FILE[:10] for number in range(100)})
    ahead = awake(storage)

    def read_many() -> None:
        wanted = {number: [ByteRange(str(number))] for number in range(100)}
        ahead.plan(wanted)
        for sample_id, ranges in wanted.items():
            ahead.read(sample_id, ranges)

    read_many()
    assert any(name.startswith("mpload-ahead") for name in storage.threads)
    assert len(storage.threads) <= 1 + storage.max_parallel_reads
    storage.seconds = 0

    def is_inactive() -> bool:
        if ahead.is_active:
            read_many()
        return not ahead.is_active

    assert wait_until(is_inactive)
    storage.threads.clear()
    read_many()
    assert storage.threads == {threading.current_thread().name}


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "mpload-ahead"}


def test_threads_end_when_their_read_ahead_is_garbage_collected() -> None:
    before = reading_threads()
    ahead = awake(Slow({str(number): FILE for number in range(20)} | {"shard": FILE}))
    ahead.plan({number: [ByteRange(str(number))] for number in range(20)})
    started = reading_threads() - before
    assert started
    del ahead
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_a_storage_for_a_single_thread_is_read_by_one_thread() -> None:
    class OneByOne(Slow):
        max_parallel_reads = 1

    storage = OneByOne({"shard": FILE})
    ahead = ReadAhead(storage)
    for number in range(30):
        ahead.read(number, [span(0, 1)])
    assert not ahead.is_active


def test_depth_grows_until_hardly_any_sample_waits() -> None:
    storage = Slow({"shard": FILE} | {str(number): FILE[:10] for number in range(300)}, seconds=0.005)
    ahead = awake(storage)
    wanted = {number: [ByteRange(str(number))] for number in range(300)}
    ahead.plan(wanted)
    late = []
    for sample_id, ranges in wanted.items():
        before = ahead.num_waits
        ahead.read(sample_id, ranges)
        late.append(ahead.num_waits > before)
        time.sleep(0.002)  # the work that is done on a sample
    assert sum(late[-200:]) < 20 < len(storage.reads)
    assert ahead.depth > 2


def is_reading(ahead: ReadAhead) -> bool:
    """Return whether reads have begun and not ended."""
    fetches = (piece.fetch for pieces in ahead._pieces.values() for piece in pieces)
    return any(fetch.is_begun and fetch.unfinished.locked() for fetch in fetches)


@pytest.mark.parametrize("max_bytes", [1, 4000, 20_000])
def test_no_more_bytes_are_read_ahead_than_allowed(max_bytes: int) -> None:
    storage = Slow({"shard": FILE})
    ahead = awake(storage, max_bytes=max_bytes)
    ahead.depth = 100
    ahead._next_probe_ns = 1 << 62
    storage.reads.clear()
    wanted = {number: [span(number * 20_000 % 90_001, 1000)] for number in range(40)}
    ahead.plan(wanted)
    for number, (sample_id, ranges) in enumerate(wanted.items()):
        assert wait_until(lambda: not is_reading(ahead))
        assert sum(item.length_bytes or 0 for item in storage.reads) - 1000 * number <= max(max_bytes, 1000)
        ahead.read(sample_id, ranges)


def test_reads_succeed_even_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    storage = Slow({"shard": FILE})
    ahead = awake(storage)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    wanted = {number: [span(number * 20_000 % 90_001, 100)] for number in range(10)}
    ahead.plan(wanted)
    for sample_id, ranges in wanted.items():
        assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]
    assert not ahead.is_active


def test_a_limit_of_zero_bytes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="positive"):
        ReadAhead(Slow({}), max_bytes=0)


# --- errors, forks, threads


def test_an_error_affects_only_its_own_sample() -> None:
    storage = Slow({"shard": FILE})
    ahead = awake(storage)
    wanted = {
        number: [span(99_000 + number * 300, 300)] for number in range(6)
    }  # from 3 on they end past the end of the shard
    ahead.plan(wanted)
    for sample_id, ranges in wanted.items():
        if sample_id < 3:
            assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]
        else:
            with pytest.raises(StorageError, match="too short"):
                ahead.read(sample_id, ranges)


@pytest.mark.processes
def test_a_child_forked_while_threads_read_starts_afresh() -> None:
    storage = Slow({"shard": FILE}, seconds=0.05)
    ahead = awake(storage)
    wanted = {number: [span(number * 20_000 % 90_001, 100)] for number in range(10)}
    ahead.plan(wanted)
    fetches = [piece.fetch for pieces in ahead._pieces.values() for piece in pieces]
    assert wait_until(lambda: any(fetch.taken.locked() for fetch in fetches))
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        ahead.plan(wanted)
        right = all(ahead.read(sample_id, ranges) == [storage._one(ranges[0])] for sample_id, ranges in wanted.items())
        os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    for sample_id, ranges in wanted.items():
        assert ahead.read(sample_id, ranges) == [storage._one(ranges[0])]


def test_many_threads_read_local_files_of_which_only_one_stays_open(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 1000)
    storage = LocalStorage(tmp_path, max_open_files=1)

    def read(number: int) -> bool:
        return storage.read([ByteRange(str(number % 5), number % 900, 100)]) == [bytes([number % 5]) * 100]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(20_000)))
    storage.close()
    assert not [path for path in open_files().values() if path.startswith(str(tmp_path))]


def test_a_shard_may_be_closed_by_one_thread_while_others_open_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)
    storage = LocalStorage(tmp_path, max_open_files=1)
    open_shard, close = storage._open, os.close

    def read(path: str) -> bytes:
        return storage.read([ByteRange(path, 0, 100)])[0]

    while_opening = [lambda: read("0")]  # the main thread then replaces the shard that the other thread opens
    while_closing = [lambda: read("1")]  # evicts the main thread's shard while it is being stored

    def opening(path: str) -> tuple[int, int]:
        if while_opening:
            other_thread.submit(while_opening.pop()).result()
        return open_shard(path)

    def closing(descriptor: int) -> None:
        if while_closing:
            other_thread.submit(while_closing.pop()).result()
        close(descriptor)

    monkeypatch.setattr(storage, "_open", opening)
    monkeypatch.setattr(os, "close", closing)
    with ThreadPoolExecutor(1) as other_thread:
        assert read("0") == bytes(100)
    assert not while_closing
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.extend(map(read, "34034")), daemon=True)
    reading.start()
    reading.join(20)
    assert [data[0] for data in found] == [3, 4, 0, 3, 4]
    assert [file.path for file in psutil.Process().open_files() if Path(file.path).parent == tmp_path] == [
        str(tmp_path / "4")
    ]


# --- in datasets and loaders

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


def plain(batches: Any) -> list[tuple[list[bytes], list[int]]]:
    return [(data, labels.tolist()) for data, labels in batches]


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
    storage = Slow({f"data/{n}.bin": (files.parent / "data" / f"{n}.bin").read_bytes() for n in range(NUM_FILES)})
    dataset = slow(files, storage=storage, cache=PartialCache(tmp_path / "cache", fraction=0.5))
    wanted = expected(files, 3)
    assert plain(dataset) == wanted[0]
    assert dataset._run.cache is not None
    num_held = sum(map(dataset._run.cache.holds, range(NUM_FILES)))
    assert 0 < num_held < NUM_FILES
    storage.reads.clear()
    assert [plain(dataset) for _ in range(2)] == wanted[1:]
    assert len(storage.reads) == 2 * (NUM_FILES - num_held)


# --- page cache


def resident_pages(path: Path) -> int:
    """Return how many pages of a file are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        num_pages = -(-len(view) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * num_pages)()
        start = ctypes.c_char.from_buffer(view)
        code = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(view)), found)
        del start
        assert code == 0, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in found)


def drop_all(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())  # dirty pages cannot be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(FILE * 10)
    drop_all(path)
    if resident_pages(path):
        pytest.skip("this file system is in memory (tmpfs)")
    return path


@pytest.mark.parametrize("is_whole", [True, False])
def test_page_cache_is_kept_or_dropped_as_configured(written: Path, is_whole: bool) -> None:
    num_bytes = written.stat().st_size
    ranges = [ByteRange("shard")] if is_whole else [span(at, 7_000) for at in range(0, num_bytes - 7_000, 7_000)]
    data = LocalStorage(written.parent).read(ranges)
    assert resident_pages(written) > num_bytes // mmap.PAGESIZE * 0.9
    drop_all(written)
    with LocalStorage(written.parent, page_cache="drop") as storage:
        assert storage.read(ranges) == data
        assert resident_pages(written) <= (0 if is_whole else 2)
        assert storage.read(ranges) == data


def test_prefetch_caches_a_span_and_forget_frees_it_if_so_configured(written: Path) -> None:
    item = span(100_000, 500_000)
    num_pages = 500_000 // mmap.PAGESIZE
    with LocalStorage(written.parent) as keeping, LocalStorage(written.parent, page_cache="drop") as dropping:
        dropping.prefetch(item)
        assert num_pages <= resident_pages(written) < 2 * num_pages
        data = dropping.read([span(200_000, 1000)])
        keeping.forget(item)
        assert resident_pages(written) >= num_pages
        dropping.forget(item)
        assert resident_pages(written) <= 2
        assert dropping.read([span(200_000, 1000)]) == data == keeping.read([span(200_000, 1000)])


def test_prefetch_caches_all_of_a_span_whose_ends_are_cached_already(written: Path) -> None:
    """Reading neighbouring spans caches the ends, because neighbours share pages."""
    with LocalStorage(written.parent, page_cache="drop") as storage:
        storage.prefetch(span(100_000, 1))
        storage.prefetch(span(599_999, 1))
        assert resident_pages(written) <= 4
        storage.prefetch(span(100_000, 500_000))
        assert resident_pages(written) >= 500_000 // mmap.PAGESIZE
        storage.prefetch(span(100_000, 1 << 60))  # from a broken line of an index; only the shard itself is cached
        assert resident_pages(written) >= (written.stat().st_size - 100_000) // mmap.PAGESIZE


# --- whole blocks


@settings(max_examples=150)
@given(
    num_samples=st.integers(1, 400),
    block_samples=st.integers(1, 40),
    window_blocks=st.integers(1, 6),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    start=st.integers(0, 399),
)
def test_each_block_is_due_once_and_before_it_is_needed(
    num_samples: int, block_samples: int, window_blocks: int, cuts: list[int], start: int
) -> None:
    choice = BlockShuffle(block_samples=block_samples, window_blocks=window_blocks)
    order = choice.order(num_samples=num_samples, seed=1, epoch=2)
    start = start % num_samples
    bounds = sorted({start, num_samples, *(cut for cut in cuts if start < cut < num_samples)})
    came: list[range] = []
    done: set[int] = set()
    num_done = 0
    for first, last in itertools.pairwise(bounds):
        coming, gone = order.due_blocks(first, last, is_first=first == start)  # type: ignore[attr-defined]
        came += coming
        num_done += len(gone)
        wanted = set(order.sample_ids(np.arange(first, last)).tolist())
        if not start:  # a run resumed inside a window may miss a block at its edge, as due blocks are only hints
            assert wanted <= {sample_id for block in came for sample_id in block}
        assert not wanted & done
        done |= {sample_id for block in gone for sample_id in block}
    if not start:
        assert sorted(sample_id for block in came for sample_id in block) == list(range(num_samples))
        assert num_done == max(0, -(-num_samples // block_samples) - window_blocks)


def test_local_files_are_read_through_the_page_cache_and_in_parallel(files: Path) -> None:
    storage = slow(files, storage=None)._run.pipeline._storage
    assert isinstance(storage, PageStorage)
    assert storage.max_parallel_reads > 1  # type: ignore[attr-defined]


@pytest.mark.processes
@pytest.mark.parametrize("page_cache", ["keep", "drop"])
def test_blocks_of_shards_are_read_whole_and_batches_stay_the_same(tmp_path: Path, page_cache: str) -> None:
    num_samples, sample_bytes = 600, 5000
    shard = tmp_path / "shard"
    shard.write_bytes(random.Random(0).randbytes(num_samples * sample_bytes))
    lines = [f"{number * sample_bytes}+{sample_bytes}@shard\t{number}\n" for number in range(num_samples)]
    (tmp_path / "all.txt").write_text("#mpload 1\n#columns data:span label:int\n" + "".join(lines))
    drop_all(shard)
    if resident_pages(shard):
        pytest.skip("this file system is in memory (tmpfs)")

    def dataset(storage: Any) -> MPDataset:
        return MPDataset(
            tmp_path / "all.txt",
            decode=RawBytes(),
            batch_size=8,
            shuffle=BlockShuffle(block_samples=25, window_blocks=2),
            topology=Topology(),
            storage=storage,
        )

    peak = 0
    with MPLoader(dataset(SlowPages(tmp_path, page_cache=page_cache)), num_workers=2) as loader:
        found = []
        for batch in loader:
            found += plain([batch])
            peak = max(peak, resident_pages(shard))
    num_pages = num_samples * sample_bytes // mmap.PAGESIZE
    drop_all(shard)
    assert found == plain(dataset(None))
    if page_cache == "keep":
        assert peak > 0.9 * num_pages
    else:
        assert 2 * 25 * sample_bytes // mmap.PAGESIZE < peak < 0.9 * num_pages


def test_an_unknown_page_cache_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match='"keep" or "drop"'):
        LocalStorage(tmp_path, page_cache="some")
