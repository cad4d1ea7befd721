"""The page cache: spans and blocks are brought in before they are needed, and dropped afterwards if so configured."""

import ctypes
import itertools
import mmap
import os
import random
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import BlockShuffle, MPDataset, MPLoader, RawBytes, Topology
from mpload.errors import ArgumentError
from mpload.index.index import lines_of
from mpload.index.lines import NATIVE
from mpload.samples.block_reads import _forget, _runs_of, max_blocks_in
from mpload.storage.local import LocalStorage
from mpload.storage.many import ManyRanges
from mpload.storage.ranges import ByteRange
from mpload.storage.read_ahead import ReadAhead
from tests.support.batches import plain
from tests.support.chunks import OneWorker
from tests.support.storages import FILE, SlowPages, span
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and the page cache of Linux")


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


def test_an_unknown_page_cache_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match='"keep" or "drop"'):
        LocalStorage(tmp_path, page_cache="some")


# --- whole blocks


@settings(max_examples=300)
@given(
    num_samples=st.integers(1, 400),
    block_samples=st.integers(1, 40),
    window_blocks=st.integers(1, 6),
    extra_blocks=st.none() | st.integers(0, 15),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    start=st.integers(0, 399),
    is_shared=st.booleans(),
)
def test_each_block_is_loaded_before_it_is_needed_and_freed_afterwards(
    num_samples: int,
    block_samples: int,
    window_blocks: int,
    extra_blocks: int | None,
    cuts: list[int],
    start: int,
    is_shared: bool,
) -> None:
    choice = BlockShuffle(block_samples=block_samples, window_blocks=window_blocks)
    order = choice.order(num_samples=num_samples, seed=1, epoch=2)
    max_blocks = None if extra_blocks is None else window_blocks + extra_blocks
    start = start % num_samples
    bounds = sorted({start, num_samples, *(cut for cut in cuts if start < cut < num_samples)})
    came: list[range] = []
    freed: list[range] = []
    for first, last in itertools.pairwise(bounds):
        coming, done = order.due_blocks(  # type: ignore[attr-defined]
            first,
            last,
            is_first=first == start,
            is_last=last == num_samples,
            max_blocks=max_blocks,
            is_shared=is_shared,
        )
        came += coming
        if not is_shared and first % (window_blocks * block_samples):  # the windows before this one are over
            over = {block for block in came if order.window_end(block) <= first}  # type: ignore[attr-defined]
            assert over <= {*freed, *done}
        wanted = set(order.sample_ids(np.arange(first, last)).tolist())
        assert wanted <= {sample_id for block in came for sample_id in block}
        assert not wanted & {sample_id for block in freed for sample_id in block}
        freed += done
        if max_blocks is not None and last - first <= block_samples:
            assert len(came) - len({*came} & {*freed}) <= max_blocks
    assert len(came) == len(set(came))
    assert len(freed) == len(set(freed))
    assert set(came) <= set(freed)
    assert len(freed) <= len(came) + 2 * window_blocks  # a run that resumes in the middle forgets what is long past


@given(num_blocks=st.integers(1, 40), window_blocks=st.integers(1, 6), max_blocks=st.none() | st.integers(6, 20))
def test_blocks_that_memory_holds_are_loaded_up_to_a_window_ahead(
    num_blocks: int, window_blocks: int, max_blocks: int | None
) -> None:
    choice = BlockShuffle(block_samples=10, window_blocks=window_blocks)
    order = choice.order(num_samples=10 * num_blocks, seed=0, epoch=0)
    num_came = num_freed = 0
    for place in range(num_blocks):
        coming, done = order.due_blocks(  # type: ignore[attr-defined]
            10 * place, 10 * place + 10, is_first=place == 0, is_last=False, max_blocks=max_blocks
        )
        num_came += len(coming)
        most = 2 * window_blocks if max_blocks is None else min(max_blocks, 2 * window_blocks)
        is_last_of_window = place % window_blocks == window_blocks - 1
        if is_last_of_window:
            assert num_came == min(num_blocks, (place + 1) + most - window_blocks)
        num_freed += len(done)
        assert num_came - num_freed <= most + 1


@given(num_samples=st.integers(1, 400), block_samples=st.integers(1, 40), window_blocks=st.integers(1, 6))
def test_a_window_ends_after_the_last_use_of_its_blocks_and_before_the_next_ones(
    num_samples: int, block_samples: int, window_blocks: int
) -> None:
    order = BlockShuffle(block_samples=block_samples, window_blocks=window_blocks).order(
        num_samples=num_samples, seed=3, epoch=1
    )
    sample_ids = order.sample_ids(np.arange(num_samples)).tolist()
    for start in range(0, num_samples, block_samples):
        block = range(start, min(start + block_samples, num_samples))
        end = order.window_end(block)  # type: ignore[attr-defined]
        last_use = max(position for position, sample_id in enumerate(sample_ids) if sample_id in block)
        assert last_use < end <= last_use + (window_blocks + 1) * block_samples


@pytest.mark.parametrize(
    ("room_bytes", "max_blocks"), [(1000, None), (999, 7), (400, 3), (100, 0)], ids=["fits", "almost", "some", "none"]
)
def test_only_data_that_does_not_fit_into_memory_is_bounded(room_bytes: int, max_blocks: int | None) -> None:
    assert max_blocks_in(room_bytes, data_bytes=1000, block_bytes=100) == max_blocks


def shard_dataset(
    folder: Path, *, num_samples: int, storage: Any = None, batch_size: int = 25, **options: Any
) -> MPDataset:
    """Write a shard of equal samples, which is not in the page cache, and return a dataset of blocks of 25."""
    path, sample_bytes = folder / "shard", 5000
    path.write_bytes(random.Random(0).randbytes(num_samples * sample_bytes))
    drop_all(path)
    if resident_pages(path):
        pytest.skip("this file system is in memory (tmpfs)")
    lines = [f"{number * sample_bytes}+{sample_bytes}@shard\t{number}\n" for number in range(num_samples)]
    (folder / "all.txt").write_text("#mpload 1\n#columns data:span label:int\n" + "".join(lines))
    return MPDataset(
        folder / "all.txt",
        decode=RawBytes(),
        batch_size=batch_size,
        shuffle=BlockShuffle(block_samples=25, window_blocks=2),
        topology=Topology(),
        storage=storage,
        **options,
    )


@pytest.mark.processes
@pytest.mark.parametrize("page_cache", ["keep", "drop"])
def test_blocks_of_shards_are_read_whole_and_batches_stay_the_same(tmp_path: Path, page_cache: str) -> None:
    num_samples, sample_bytes = 600, 5000
    slow = SlowPages(tmp_path, page_cache=page_cache)
    dataset = shard_dataset(tmp_path, num_samples=num_samples, storage=slow, batch_size=8)
    peak = 0
    with MPLoader(dataset, num_workers=2) as loader:
        found = []
        for batch in loader:
            found += plain([batch])
            peak = max(peak, resident_pages(tmp_path / "shard"))
    num_pages = num_samples * sample_bytes // mmap.PAGESIZE
    assert found == plain(shard_dataset(tmp_path, num_samples=num_samples, batch_size=8))
    if page_cache == "keep":
        assert peak > 0.9 * num_pages
    else:
        assert 2 * 25 * sample_bytes // mmap.PAGESIZE < peak < 0.9 * num_pages


@pytest.mark.parametrize("page_cache", ["keep", "drop"])
def test_blocks_are_read_whole_from_a_fast_disk_only_if_the_kernel_reads_nothing_ahead(
    page_cache: Literal["keep", "drop"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_samples, sample_bytes = 64, 5000
    (tmp_path / "shard").write_bytes(bytes(num_samples * sample_bytes))
    lines = [f"{number * sample_bytes}+{sample_bytes}@shard\t{number}\n" for number in range(num_samples)]
    (tmp_path / "all.txt").write_text("#mpload 1\n#columns data:span label:int\n" + "".join(lines))
    loaded: list[int] = []
    monkeypatch.setattr(LocalStorage, "prefetch", lambda _, item: loaded.append(item.length_bytes))
    monkeypatch.setattr(ReadAhead, "run", lambda _, job: job())
    worker = OneWorker(
        MPDataset(
            tmp_path / "all.txt",
            decode=RawBytes(),
            batch_size=16,
            shuffle=BlockShuffle(block_samples=8, window_blocks=2),
            page_cache=page_cache,
            topology=Topology(),
        )
    )
    for batch in range(4):
        worker.batch(batch, chunk_samples=8)
    assert sum(loaded) == (num_samples * sample_bytes if page_cache == "drop" else 0)


# --- what is in the page cache already


def test_has_cached_tells_which_bytes_are_in_the_page_cache(written: Path) -> None:
    with LocalStorage(written.parent) as storage:
        assert not storage.has_cached("shard", [100_000])
        storage.prefetch(span(100_000, 500_000))
        assert storage.has_cached("shard", [100_000, 300_000, 599_999])
        storage.save_page_cache()
        storage.forget(span(400_000, 100_000))
        assert not storage.has_cached("shard", [100_000, 450_000])
        assert not storage.has_cached("shard", [written.stat().st_size]), "no byte is there"


def test_samples_that_their_blocks_have_loaded_are_not_read_ahead(tmp_path: Path) -> None:
    worker = OneWorker(shard_dataset(tmp_path, num_samples=400, page_cache="drop"))
    ahead = worker.work.pipeline.ahead
    ahead._activate()
    worker.batch(0, chunk_samples=25)
    assert wait_until(lambda: resident_pages(tmp_path / "shard") >= 3 * 25 * 5000 // mmap.PAGESIZE)
    worker.batch(1, chunk_samples=25)
    assert (ahead.is_paused, ahead.is_active) == (True, False)
    drop_all(tmp_path / "shard")
    worker.batch(2, chunk_samples=25)
    assert (ahead.is_paused, ahead.is_active) == (False, True)


def test_a_block_is_not_loaded_when_its_window_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has loaded and freed it. This one comes to it late, as its threads were busy."""
    jobs: list[Any] = []
    monkeypatch.setattr(ReadAhead, "run", lambda _, job: jobs.append(job))
    loaded: list[ByteRange] = []
    monkeypatch.setattr(LocalStorage, "prefetch", lambda _, item: loaded.append(item))
    worker = OneWorker(shard_dataset(tmp_path, num_samples=400, page_cache="drop"))
    worker.batch(0, chunk_samples=25)
    first = list(jobs)
    for batch in range(1, 3):
        worker.batch(batch, chunk_samples=25)
    jobs.clear()
    for job in first:
        job()
    assert len(first) == 3, "the two blocks of the first window, and one of the next"
    assert sum(item.length_bytes or 0 for item in loaded) == 25 * 5000


def test_spans_are_found_without_records_and_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = OneWorker(shard_dataset(tmp_path, num_samples=50)).work
    lines = lines_of(work.pipeline.index, range(10, 50))
    found = list(_runs_of(work.pipeline, lines))
    assert found == [
        (item.path, item.offset_bytes, item.length_bytes)
        for record in lines.records()
        for item in work.pipeline.ranges_of(record)
    ]
    if NATIVE is not None:
        monkeypatch.setattr(type(lines), "records", None)
        assert list(_runs_of(work.pipeline, lines)) == found


def test_mapped_shards_are_read_without_their_maps_once_pages_are_freed(written: Path) -> None:
    """The kernel does not free mapped pages."""
    ranges = ManyRanges(
        names=b"shard",
        paths=np.array([[0, 5]], np.int64),
        offsets=np.array([100_000], np.int64),
        lengths=np.array([500_000], np.int64),
    )
    area = np.empty(1 << 20, np.uint8)
    with LocalStorage(written.parent) as storage:
        for saves in (False, True):
            if saves:
                storage.save_page_cache()
            reader = storage.many_reader(ranges, maps_shards=True)
            assert reader is not None
            assert reader.read(area).lengths.tolist() == [500_000]
            assert bytes(area[:500_000]) == storage.read([span(100_000, 500_000)])[0]
        del reader
        storage.forget(span(0, written.stat().st_size))
        assert resident_pages(written) <= 2


def test_an_error_of_one_span_does_not_stop_the_freeing_of_others() -> None:
    freed: list[ByteRange] = []

    class Failing:
        def prefetch(self, item: ByteRange) -> None: ...

        def forget(self, item: ByteRange) -> None:
            if not item.offset_bytes:
                raise OSError(5, "Input/output error")
            freed.append(item)

    _forget(Failing(), [span(0, 10), span(10, 10)])
    assert freed == [span(10, 10)]


def test_what_was_read_ahead_for_chunks_of_others_is_let_go_while_the_page_cache_holds_all(tmp_path: Path) -> None:
    worker = OneWorker(shard_dataset(tmp_path, num_samples=400, page_cache="drop"))
    work, ahead = worker.work, worker.work.pipeline.ahead
    ahead._activate()
    worker.batch(0, chunk_samples=25)
    taken = work._samples_of(np.arange(300, 325))
    ahead.plan(taken.wanted(work.pipeline))
    work._chunks_ahead[(0, 0, 0), 0, 25] = taken
    assert ahead.pieces_of(300)
    assert wait_until(lambda: resident_pages(tmp_path / "shard") >= 3 * 25 * 5000 // mmap.PAGESIZE)
    worker.batch(1, chunk_samples=25)
    assert ahead.is_paused
    assert not ahead.pieces_of(300)
    assert not work._chunks_ahead
