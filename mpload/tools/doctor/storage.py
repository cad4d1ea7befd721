"""Measures the storage with the files of the dataset, cold and warm, and with an index larger than the memory."""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import MploadError
from mpload.index.columns import range_of
from mpload.index.index import Index, Record, require_files
from mpload.index.parts import file_sizes
from mpload.judgement.facts import Cost, ReadRate, Temperature
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.storage.ranges import ByteRange, LmdbValue, RowValue, Span
from mpload.tools.bounded import BoundedBytes
from mpload.tools.doctor.stopwatch import Stopwatch

__all__ = ["Files", "lookup_cost", "measure_rates", "measure_shards", "packed_rate"]

_CONCURRENCIES = (1, 4, 16)
_MAX_SAMPLES = 512
_MAX_OPENED = 16
_MIN_READS = 3
_CHUNK_SAMPLES, _NUM_CHUNKS = 64, 16
_MEMORY_BYTES_PER_SECOND = 5e9  # an upper bound of what a file system delivers to one reader


class Files:
    """The files of an index: reads them, evicts them from the page cache, and measures how much of them is cached."""

    def __init__(self, index: Index, *, storage: Any = None, decode: BoundedBytes | None = None) -> None:
        require_files(index, what="mpload doctor")
        decode = decode or BoundedBytes()
        self._pipeline = partial(Pipeline, index=index, decode=decode, policy=ErrorPolicy(), storage=storage)
        self._index = index
        self._storage = storage
        self._root = Path(index.root)
        self._sources = [number for number, column in enumerate(index.columns) if column.type.is_source]

    def reader(self) -> Callable[[Record], list[bytes]]:
        """Return a function that reads the bytes of a sample from any storage. It is for one thread."""
        return self._pipeline().read

    @property
    def reads_per_worker(self) -> int:
        """The number of samples that a worker reads ahead in parallel if reads are slow."""
        return self._pipeline().ahead.max_parallel_reads

    def ranges(self, record: Record) -> list[ByteRange]:
        """Return the byte ranges of local files that hold a sample. Remote files and database values are left out."""
        if "://" in self._index.root or self._storage is not None:
            return []
        ranges = [range_of(record.cells[number]) for number in self._sources]
        return [item for item in ranges if not isinstance(item, LmdbValue | RowValue) and "://" not in item.path]

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        descriptor = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open_seconds(self, path: str) -> float:
        """Return how long it takes to open and close a file."""
        started = time.perf_counter()
        with self._opened(path):
            pass
        return time.perf_counter() - started

    def drop(self, record: Record) -> None:
        """Evict the bytes of a sample from the page cache, as far as the system allows."""
        if not hasattr(os, "posix_fadvise"):
            return
        for item in self.ranges(record):
            with suppress(OSError), self._opened(item.path) as descriptor:
                with suppress(OSError):  # dirty pages cannot be evicted until they are on disk
                    os.fdatasync(descriptor)
                length_bytes = item.length_bytes or 0  # 0 means to the end of the file
                os.posix_fadvise(descriptor, item.offset_bytes, length_bytes, os.POSIX_FADV_DONTNEED)

    def cached_share(self, records: Sequence[Record]) -> float | None:
        """Return the share of the samples' pages that are in the page cache. None if the system cannot tell."""
        pages = [np.empty(0, np.uint8)]
        for item in chain.from_iterable(map(self.ranges, records)):
            with suppress(OSError, ValueError):
                pages.append(self._pages(item))
        return float(found.mean()) if (found := np.concatenate(pages)).size else None

    def _pages(self, item: ByteRange) -> NDArray[np.uint8]:
        """Return 1 for each page of a range that is in memory, and 0 for each other one."""
        with self._opened(item.path) as descriptor:
            first = item.offset_bytes - item.offset_bytes % mmap.ALLOCATIONGRANULARITY
            length_bytes = item.length_bytes if item.length_bytes is not None else os.fstat(descriptor).st_size
            length_bytes += item.offset_bytes - first
            private = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ}  # FUSE with direct_io refuses shared ones
            with mmap.mmap(descriptor, length_bytes, offset=first, **private) as mapped:
                pages = np.zeros(-(-length_bytes // mmap.PAGESIZE), np.uint8)
                view = np.frombuffer(mapped, np.uint8)
                failed = ctypes.CDLL(None).mincore(
                    ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(length_bytes), ctypes.c_void_p(pages.ctypes.data)
                )
                del view
        if failed:
            raise OSError("the system does not tell")
        pages &= 1
        return pages


def measure_shards(index: Index, files: Files, *, seed: int) -> tuple[float, float]:
    """Return how many neighbours lie in one shard, and the median time to open one. Both are 0 without shards."""
    num_found = min(len(index), _MAX_SAMPLES)
    first = int(np.random.default_rng(seed).integers(len(index) - num_found + 1))
    paths = [
        item.path
        for record in index[first : first + num_found]
        for item in files.ranges(record)
        if isinstance(item, Span)
    ]
    shards = list(dict.fromkeys(paths))  # not read before
    seconds = [files.open_seconds(path) for path in shards[:_MAX_OPENED]]
    if not seconds:
        return 0.0, 0.0
    return len(paths) / len(shards), float(np.median(seconds))


def measure_rates(index: Index, files: Files, *, seconds: float, seed: int) -> tuple[ReadRate, ...]:
    """Measure the rate of the storage, cold and warm, with different numbers of readers, in about `seconds` in total.

    Threads of this process read each sample once. Failed reads are not counted.
    """
    rng = np.random.default_rng(seed)
    seconds_per_rate = seconds / (2 * len(_CONCURRENCIES) + 2)
    rates = []
    for temperature in Temperature:
        for concurrency, is_sequential in [*((number, False) for number in _CONCURRENCIES), (1, True)]:
            if is_sequential:
                first = int(rng.integers(max(1, len(index) - _MAX_SAMPLES)))
                records = index[first : first + _MAX_SAMPLES]
            else:
                records = index.records(np.unique(rng.integers(len(index), size=min(len(index), _MAX_SAMPLES))))
            rate = _rate(records, files, temperature=temperature, concurrency=concurrency, seconds=seconds_per_rate)
            if rate:
                rates.append(
                    ReadRate(
                        temperature=temperature,
                        concurrency=concurrency,
                        samples_per_second=rate,
                        is_sequential=is_sequential,
                    )
                )
    return tuple(rates)


def _rate(
    records: Sequence[Record], files: Files, *, temperature: Temperature, concurrency: int, seconds: float
) -> float:
    """Return the samples per second of so many readers; 0 if they could read none."""
    if temperature is Temperature.COLD:
        for record in records:
            files.drop(record)
    else:  # a quarter of the time
        records = _read(records, files, ends_at=time.monotonic() + seconds / 4)
    started = time.monotonic()
    with ThreadPoolExecutor(concurrency) as pool:
        parts = [records[number::concurrency] for number in range(concurrency)]
        done = pool.map(partial(_read, files=files, ends_at=started + seconds), parts)
        return sum(map(len, done)) / (time.monotonic() - started)


def _read(records: Sequence[Record], files: Files, *, ends_at: float) -> list[Record]:
    """Read samples until a moment, but some at least. Return those that could be read."""
    done, reader = [], files.reader()
    for record in records:
        with suppress(MploadError):
            reader(record)
            done.append(record)
        if time.monotonic() > ends_at and len(done) >= _MIN_READS:
            break
    return done


def packed_rate(num_bytes: Sequence[int], cold_seconds: Sequence[float]) -> float | None:
    """Estimate the samples per second of shards that are read sequentially. None if all samples have similar sizes.

    A linear fit splits the time of a read into a cost per file and a cost per byte. A shard only has the cost per byte.
    """
    if len(num_bytes) < 8 or np.percentile(num_bytes, 90) < 2 * max(1.0, np.percentile(num_bytes, 10)):
        return None
    slope, _ = np.polyfit(num_bytes, cold_seconds, 1)
    byte_seconds = max(float(slope), 1 / _MEMORY_BYTES_PER_SECOND)
    return 1 / (byte_seconds * float(np.mean(num_bytes)))


def lookup_cost(index: Index, *, memory_bytes: int, seed: int) -> Cost:
    """Return the cost to look up a random sample in the index, or none if text and sidecar fit into `memory_bytes`.

    Samples are looked up a chunk at a time, as workers do.
    """
    if sum(file_sizes(index)) <= memory_bytes:
        return Cost()
    records = Stopwatch(index.records)
    for sample_ids in np.random.default_rng(seed).integers(len(index), size=(_NUM_CHUNKS, _CHUNK_SAMPLES)):
        records(sample_ids)
    return records.cost(_NUM_CHUNKS * _CHUNK_SAMPLES)
