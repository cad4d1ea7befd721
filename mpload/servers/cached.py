"""`CacheReader`: gives other machines the samples that this machine's cache keeps."""

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from mpload.errors import FAILURES
from mpload.index.index import records_of
from mpload.samples.cache.entries import make_head
from mpload.samples.cache.opened import OpenCache
from mpload.samples.counts import CACHE_HITS
from mpload.samples.pipeline import Pipeline
from mpload.servers.making import BusyError

__all__ = ["CacheReader", "Kept"]

_NUM_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One source of a sample, as an entry of the cache."""

    head: bytes
    data: bytes | memoryview
    is_hit: bool
    """Whether the cache had it."""


class CacheReader:
    """Reads samples from the cache of a pipeline. One that it should keep, but lacks, is read from its source and kept.

    Args:
        pipeline: the pipeline, whose cache has several machines.
        max_waiting: maximum number of requests at a time.

    Process: for one thread, which runs the event loop. Threads of its own read.
    """

    def __init__(self, pipeline: Pipeline, *, max_waiting: int) -> None:
        assert isinstance(pipeline.cache, OpenCache)
        assert pipeline.cache.machines is not None
        self._pipeline = pipeline
        self._cache = pipeline.cache
        self._max_waiting = max_waiting
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="mpload-cache")
        self._own = threading.local()
        self._finding = threading.Lock()
        self._is_plain = len(pipeline.sources) == 1
        self._num_waiting = self.num_hits = self.num_misses = 0
        machines = pipeline.cache.machines
        self.key = f"{pipeline.cache.shared_key:016x}"
        """Names the data set and the form in which samples are kept."""
        self.place = f"{machines.own} of {len(machines.urls)}"
        """Which machine this is."""

    @classmethod
    def of(cls, pipeline: Pipeline, *, max_waiting: int) -> "CacheReader | None":
        """Return what reads the cache of a pipeline; None unless several machines share it."""
        cache = pipeline.cache
        if not isinstance(cache, OpenCache) or cache.machines is None:
            return None
        return cls(pipeline, max_waiting=max_waiting)

    async def read(self, sample_id: int, part: int) -> Kept | None:
        """Return a source of a sample; None if this machine does not keep the sample, or cannot read it.

        Raises:
            BusyError: too many requests wait.
        """
        if sample_id >= len(self._pipeline.index) or part >= len(self._pipeline.sources):
            return None
        if self._is_plain and self._cache.holds(sample_id):
            found = self._cache.read_at_once(sample_id)
            if found is not None:  # a thread would take as long again
                self.num_hits += 1
                return self._entry(found, sample_id, part, is_hit=True)
        if self._num_waiting >= self._max_waiting:
            raise BusyError(f"{self._num_waiting} requests wait for the cache already")
        self._num_waiting += 1
        try:
            read = partial(self._read, sample_id, part)
            kept = await asyncio.get_running_loop().run_in_executor(self._threads, read)
        finally:
            self._num_waiting -= 1
        if kept is not None:
            self.num_hits += kept.is_hit
            self.num_misses += not kept.is_hit
        return kept

    def _read(self, sample_id: int, part: int) -> Kept | None:
        if not self._cache.holds(sample_id):
            return None
        pipeline = self._pipeline_of_thread()
        with self._finding:
            record = records_of(self._pipeline.index, [sample_id])[0]
        try:
            data = pipeline.read_cached(record)[part]
        except FAILURES:  # the other machine will meet it too, and say so
            return None
        is_hit = pipeline.take_counts()[CACHE_HITS] > 0
        return self._entry(data, sample_id, part, is_hit=is_hit)

    def _entry(self, data: bytes | memoryview, sample_id: int, part: int, *, is_hit: bool) -> Kept:
        head = make_head(data, num_parts=1, sample_id=sample_id, stamp=part, key=self._cache.shared_key)
        return Kept(head=head, data=data, is_hit=is_hit)

    def _pipeline_of_thread(self) -> Pipeline:
        """Return a pipeline with files of its own, since neither storages nor caches are for several threads."""
        own: Pipeline | None = getattr(self._own, "pipeline", None)
        if own is None:
            own = self._pipeline.changed(policy=self._pipeline.policy, cache=copy.copy(self._cache))
            own.notices.turn_off()
            self._own.pipeline = own
        return own

    def close(self) -> None:
        """End the threads, once they have read what they are reading."""
        self._threads.shutdown(wait=False, cancel_futures=True)
