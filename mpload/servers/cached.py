"""`CacheReader`: gives other machines the samples that this machine's cache keeps."""

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from mpload.errors import FAILURES, cause_of, warn
from mpload.index.columns import path_of
from mpload.index.index import records_of
from mpload.samples.cache.entries import make_head
from mpload.samples.cache.opened import OpenCache, Vacancy
from mpload.samples.pipeline import Pipeline
from mpload.servers.making import BusyError
from mpload.storage.parquet import ROW_GROUPS_BYTES
from mpload.storage.protocols import KeepingStorage
from mpload.storage.read_threads import ReadThreads

__all__ = ["CacheReader", "Kept"]

_WAITING_PER_THREAD = 4
"""If more reads wait for each thread, other machines had better read the sources themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One source of a sample, as an entry of the cache."""

    head: bytes
    data: bytes | memoryview
    is_hit: bool
    """Whether the cache had it."""


_Parts = tuple[list[bytes], bool]
"""The sources of a sample, and whether the cache had them."""


class CacheReader:
    """Reads samples from the cache of a pipeline. One that it should keep, but lacks, is read from its source and kept.

    Requests for the same sample at the same time share one read.

    Args:
        pipeline: the pipeline, whose cache has several machines.

    Memory: the samples that are being read.
    Process: for one thread, which runs the event loop. Threads of its own read; they are daemons, so that a source that
    hangs does not keep the server from ending.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        assert isinstance(pipeline.cache, OpenCache)
        assert pipeline.cache.machines is not None
        self._index = pipeline.index
        self._sources = pipeline.sources
        self._cache = pipeline.cache
        self._plain = pipeline.changed(policy=pipeline.policy, cache=None)  # its storage reads from sources alone
        self._plain.notices.turn_off()  # the machine that asks reads the source then, and meets the same outage
        storage = self._plain.opened_storage
        self._num_threads: int = getattr(storage, "max_parallel_reads", 1)
        if isinstance(storage, KeepingStorage):
            storage.bound(ROW_GROUPS_BYTES)
        self._threads = ReadThreads(max_threads=self._num_threads)
        self._using = threading.Lock()
        """Held while the cache or the index is used: neither is for several threads."""
        self._reads: dict[int, asyncio.Future[_Parts | None]] = {}
        self.num_hits = self.num_misses = self.num_failures = 0
        machines = pipeline.cache.machines
        self.key = f"{pipeline.cache.folder.key:016x}"
        """Names the data set and the form in which samples are kept."""
        self.place = f"{machines.own} of {len(machines.urls)}"
        """Which machine this is."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> "CacheReader | None":
        """Return what reads the cache of a pipeline; None unless several machines share it."""
        cache = pipeline.cache
        return cls(pipeline) if isinstance(cache, OpenCache) and cache.machines is not None else None

    async def read(self, sample_id: int, part: int) -> Kept | None:
        """Return a source of a sample; None if this machine does not keep the sample, or cannot read it.

        Raises:
            BusyError: too many reads wait.
        """
        if sample_id >= len(self._index) or part >= len(self._sources) or not self._cache.holds(sample_id):
            return None
        if len(self._sources) == 1 and sample_id not in self._reads and self._using.acquire(blocking=False):
            try:
                at_once = self._cache.read_at_once(sample_id)
            finally:
                self._using.release()
            if at_once is not None:  # a thread would take as long again
                self.num_hits += 1
                return self._entry(at_once, sample_id, part, is_hit=True)
        reading = self._reads.get(sample_id)
        is_first = reading is None
        if reading is None:
            if self._threads.num_waiting >= _WAITING_PER_THREAD * self._num_threads:
                raise BusyError("too many samples wait to be read for the cache")
            reading = self._reads[sample_id] = self._begun(sample_id)
        found = await asyncio.shield(reading)
        if found is None:
            return None
        parts, is_hit = found
        is_hit = is_hit or not is_first
        self.num_hits += is_hit
        self.num_misses += not is_hit
        return self._entry(parts[part], sample_id, part, is_hit=is_hit)

    def _begun(self, sample_id: int) -> "asyncio.Future[_Parts | None]":
        """Begin to read a sample in a thread."""
        done: Future[_Parts | None] = Future()
        reading = asyncio.wrap_future(done)
        reading.add_done_callback(lambda _: self._reads.pop(sample_id, None))
        self._threads.put(partial(self._read, sample_id, done))
        self._threads.start(self._num_threads)
        return reading

    def _read(self, sample_id: int, done: "Future[_Parts | None]") -> None:
        found = None
        try:
            found = self._found(sample_id)
        except FAILURES as error:
            self._failed(sample_id, error)
        finally:
            done.set_result(found)

    def _failed(self, sample_id: int, error: BaseException) -> None:
        """Count a sample that cannot be read here, and warn of the first one."""
        with self._using:
            self.num_failures += 1
            if self.num_failures > 1:
                return
        warn(
            f"sample {sample_id} cannot be read for the cache of this machine: {cause_of(error)}. Other machines read "
            "such samples from their source each time. Can this process read the source, with the same credentials as "
            "the training jobs? Shown once; see mpload_server_cache_failures_total"
        )

    def _found(self, sample_id: int) -> _Parts:
        with self._using:
            record = records_of(self._index, [sample_id])[0]
        stamp = self._cache.stamp_of([path_of(record.cells[number]) for number in self._sources])
        with self._using:
            kept = self._cache.look_up(sample_id, stamp)
        if not isinstance(kept, Vacancy):
            return kept, True
        parts = self._cache.formed(self._plain.opened_storage.read(self._plain.ranges_of(record)))
        with self._using:
            self._cache.keep(sample_id, kept, parts)
        return parts, False

    def _entry(self, data: bytes | memoryview, sample_id: int, part: int, *, is_hit: bool) -> Kept:
        head = make_head(data, num_parts=1, sample_id=sample_id, stamp=part, key=self._cache.folder.key)
        return Kept(head=head, data=data, is_hit=is_hit)

    def close(self) -> None:
        """End the threads, each after what it is reading."""
        self._threads.end()
