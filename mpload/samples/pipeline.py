"""Turns a record into a sample, and sample_ids into a batch: read, decode, transform. Does not import torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import FAILURES, IndexChangedError, MploadError, OutageError, SampleError, cause_of
from mpload.images.claims import Claim, unclaimed
from mpload.index.bucket_table import BucketTable
from mpload.index.columns import path_of, range_of
from mpload.index.index import Index, Record, records_of
from mpload.plan.sample_rng import SampleRng
from mpload.samples.batch import Sample
from mpload.samples.bucket_shapes import BucketShapes
from mpload.samples.by_source import BySource
from mpload.samples.column_decoders import ColumnDecoders, Ready
from mpload.samples.counts import CACHE_HITS, CACHE_MISSES, DECODE_NS, HEDGES, READ_NS
from mpload.samples.handlers import raise_if_from_handler
from mpload.samples.makers import Makers
from mpload.samples.one_decoder import OneDecoder
from mpload.samples.policy import (
    BadSample,
    BadSamples,
    ErrorAction,
    ErrorPolicy,
    all_failed,
    substitute_for,
    substitutes_in_turn,
)
from mpload.samples.reading import SampleCache, SpreadStorage, storage_of
from mpload.samples.row_index import RowIndex
from mpload.samples.transforms import GlobalGenerators
from mpload.storage.local import PageCache
from mpload.storage.notices import Notices
from mpload.storage.protocols import Room, RoomStorage, Storage
from mpload.storage.ranges import ByteRange
from mpload.storage.read_ahead import ReadAhead
from mpload.storage.remote import RemoteStorage
from mpload.storage.urls import is_url, redacted
from mpload.transport.messages import MAX_COUNTS

__all__ = ["Pipeline", "SampleCache"]


class Pipeline:
    """Reads, decodes and transforms samples, in the same way in every process.

    Process: may be pickled and forked. Each process opens its own files and has its own generators.
    """

    def __init__(
        self,
        *,
        index: Index,
        decode: Callable[..., Any] | Mapping[str, Any] | BySource,
        transform: Callable[..., Any] | BySource | None = None,
        policy: ErrorPolicy,
        storage: Storage | RemoteStorage | None = None,
        page_cache: PageCache | str = PageCache.KEEP,
        cache: SampleCache | None = None,
        row_index: RowIndex | None = None,
        table: BucketTable | None = None,
        shapes: BucketShapes | None = None,
    ) -> None:
        self.index = index
        self.transform: Any = transform
        self.policy = policy
        self.storage = storage
        self.page_cache = page_cache
        self.cache = cache
        self.row_index = row_index
        self.makers = Makers(
            index=index, decode=decode, transform=transform, row_index=row_index, table=table, shapes=shapes
        )
        self.by_source = self.makers.by_source
        self.sources = self.maker.sources
        self.output_dtype: np.dtype[Any] = np.dtype(getattr(decode, "output_dtype", np.uint8))
        self.reads_in_place = isinstance(self.maker, OneDecoder) and self.maker.reads_in_place
        """Whether samples are undecoded bytes in arrays, which can be read directly into the slot."""
        self._start()

    @property
    def maker(self) -> OneDecoder | ColumnDecoders:
        """Makes a sample of the bytes of its files and the cells of its line."""
        return self.makers.current

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Shape of every array that the decoder returns, with `output_dtype`; None if it varies."""
        return self.makers.output_shape

    def _start(self) -> None:
        self.notices = Notices()
        """Where this process sends notices about servers."""
        self.opened_storage = storage_of(
            self.index, self.decoders, self.page_cache, self.storage, notices=self.notices, cache=self.cache
        )
        """Where this process reads from."""
        self._elsewhere = self.opened_storage if isinstance(self.opened_storage, SpreadStorage) else None
        self.ahead = ReadAhead(self.opened_storage)
        self.bad = BadSamples(self.policy, index_path=self.index.path)
        self._rng: SampleRng | None = None
        self._generators: dict[int, GlobalGenerators] = {}  # by the identity of the callable
        self._used = self.maker  # for the latest sample
        self.claim: Claim = unclaimed
        """Called by decoders before they allocate much memory; returns when it is available."""
        self._counts = [0] * MAX_COUNTS

    @property
    def decode(self) -> Any:
        """The decoder of all files, or the decoders of the columns by key; None if sources have different ones."""
        return self.maker.decode if self.by_source is None else None

    @property
    def decoders(self) -> Iterable[Callable[..., Any]]:
        """The decoders of all columns and sources, whose limits say which files are read."""
        return (self.by_source or self.maker).decoders

    def changed(self, *, policy: ErrorPolicy, cache: SampleCache | None) -> "Pipeline":
        """Return a pipeline that makes the same samples, with another error policy and another cache."""
        other = Pipeline.__new__(Pipeline)
        other.__setstate__({**self.__getstate__(), "policy": policy, "cache": cache})
        return other

    def bound_read_ahead(self, max_bytes: int) -> None:
        """Bound the bytes that this process has read ahead but not yet used; call it before samples are made."""
        self.ahead = ReadAhead(self.opened_storage, max_bytes=max_bytes)

    @property
    def max_read_seconds(self) -> float:
        """The longest time for reading a sample that the storage itself limits; 0 if it sets no limit."""
        seconds: float = getattr(self.opened_storage, "max_read_seconds", 0.0)
        return seconds * len(self.sources)

    def exclude_from_decoding(self, wait_ns: int) -> None:
        """Subtract a wait for memory from the decoding time of the current sample."""
        self._counts[DECODE_NS] -= wait_ns

    def take_counts(self) -> list[int]:
        """Return this process's counters since the last call; `mpload.samples.counts` names them."""
        counts, self._counts = self._counts, [0] * MAX_COUNTS
        counts[HEDGES] = self.ahead.take_hedges()
        return counts

    @property
    def writes_in_place(self) -> bool:
        """Whether the decoder writes into given arrays. Not with a transform, which could change the shape."""
        return self.output_shape is not None and self.transform is None

    def make_all(
        self,
        sample_ids: NDArray[np.int64],
        *,
        seed: int,
        epoch: int,
        following: Callable[[], Any] | None,
        outs_at: Callable[[int], Any],
        store_at: Callable[[int], Callable[[Sample], None]],
    ) -> NDArray[np.int64]:
        """Make the samples of a batch, one after another, and return their sample_ids, int64 [n].

        Args:
            sample_ids: The samples to make, int64 [n].
            seed: The run's seed.
            epoch: The epoch's number.
            following: Returns the sample_ids that will be requested next, int64 [m]; called only if reads are slow.
            outs_at: Returns the argument `outs` of `sample` for a place in the batch.
            store_at: Returns its argument `store`.

        Raises:
            SampleError: A sample failed and either the policy is to raise, or all its substitutes failed too.
            TooManyBadSamples: More samples failed than the policy allows.
        """
        ids: list[int] = []
        causes: list[BadSample] = []

        def note(bad: BadSample) -> None:
            causes.append(replace(bad, error=None))  # its traceback leads back to this list
            self.bad.add(bad)

        records = records_of(self.index, sample_ids)
        if self.ahead.is_active:
            self.plan_ahead(records if following is None else [*records, *records_of(self.index, following())])
        with self.lent_generators():
            for record in records:
                place = len(ids)
                self.bad.count(1, epoch=epoch)
                made = self.sample(
                    record, seed=seed, epoch=epoch, outs=outs_at(place), store=store_at(place), on_bad=note
                )
                if made is not None:
                    ids.append(made[0])
        if not ids and len(sample_ids):
            raise all_failed(self.index.path, len(sample_ids), causes)
        return np.array(ids, np.int64)

    def generators_for(self, collate: Callable[..., Any]) -> GlobalGenerators:
        """Return the generators for a callable that makes batches in this process."""
        if id(collate) not in self._generators:
            self._generators[id(collate)] = GlobalGenerators(seeds=True, code=[collate])
        return self._generators[id(collate)]

    def lent_generators(self) -> AbstractContextManager[None]:
        """Let `sample` seed the process's global generators and restore them at the end, if user code may use them."""
        return self.maker.generators.lent() if self.maker.may_draw_globally else nullcontext()

    def sample(
        self,
        record: Record,
        *,
        seed: int,
        epoch: int,
        outs: Any = None,
        rooms: Sequence[Room] | None = None,
        store: Callable[[Sample], None] | None = None,
        on_bad: Callable[[BadSample], None] | None = None,
        ready: Ready | None = None,
    ) -> tuple[int, Sample] | None:
        """Make one sample. Return its sample_id and values, or its substitute's, or None if it is skipped.

        Call it within `lent_generators`, unless the global generators may stay seeded.

        With `writes_in_place`, sources are decoded into the arrays `outs`; column decoders write into those of
        `ColumnDecoders.in_place_keys`, by key. With `reads_in_place`, they are read into
        arrays that `rooms` return. `store` is called with the values; if it raises, the sample is bad. `on_bad` is
        called with each sample that is skipped or substituted; without it, they are counted and reported here. `ready`
        is what column decoders need not make, since it is in `outs`.
        """
        if self._rng is None or (self._rng.seed, self._rng.epoch) != (seed, epoch):
            self._rng = SampleRng(seed=seed, epoch=epoch)
        if on_bad is None:
            self.bad.count(1, epoch=epoch)
            on_bad = self.bad.add
        try:
            return record.sample_id, self._make(record, self._rng, outs, rooms, store, ready)
        except IndexChangedError:  # no sample is to blame
            raise
        except FAILURES as error:  # whatever the user's callables raise is handled by the policy
            raise_if_from_handler(error)
            # No local variable may keep the error: its traceback refers to this frame and so to all open files.
            cause = self._used.cause(cause_of(error))
            if self.policy.action is ErrorAction.RAISE or isinstance(error, OutageError):
                raise SampleError(str(self.describe(record, cause))) from error
            on_bad(self.describe(record, cause, error))
            if self.policy.action is ErrorAction.SKIP:
                return None
            candidates = substitute_for(
                record.sample_id, self.makers.peers_of(record.sample_id), seed=seed, epoch=epoch
            )
            if (failing := self.ahead.failing()) is not None:  # slowly, so all substitutes are waited for at once
                all_bad = [record.sample_id, *failing]
                owners = substitutes_in_turn(all_bad, self.makers.peers_of, seed=seed, epoch=epoch)
                self.ahead.plan_extra(self.wanted(self.index.records(list(owners))), owners)
            for substitute in self.index.records(candidates):
                try:
                    return substitute.sample_id, self._make(substitute, self._rng, outs, rooms, store)
                except IndexChangedError:
                    raise
                except OutageError as outage:
                    raise SampleError(str(self.describe(substitute, self._used.cause(cause_of(outage))))) from outage
                except FAILURES as substitute_error:
                    raise_if_from_handler(substitute_error)
                    found = self._used.cause(cause_of(substitute_error))
                    on_bad(self.describe(substitute, found, substitute_error))
            bad = self.describe(record, cause)
            raise SampleError(f"{bad}; {len(candidates)} substitutes for it failed too") from error

    def read(self, record: Record) -> list[bytes]:
        """Return the bytes of each source of a sample, read from storage, not from the cache."""
        return self.ahead.read(record.sample_id, self.ranges_of(record))

    def read_cached(self, record: Record) -> list[bytes]:
        """Return the bytes of each source of a sample, from the cache if it has them."""
        if self.cache is None:
            return self.read(record)
        paths = [path_of(record.cells[number]) for number in self.sources]
        num_misses, row = self._counts[CACHE_MISSES], record.sample_id % len(self.index)
        data = self.cache.read(row, paths, lambda: self._read_missed(record))
        if self._elsewhere is not None and self._elsewhere.was_hit(row):
            self._counts[CACHE_MISSES] -= 1
        self._counts[CACHE_HITS] += self._counts[CACHE_MISSES] == num_misses
        return data

    def _read_missed(self, record: Record) -> list[bytes]:
        self._counts[CACHE_MISSES] += 1
        return self.read(record)

    def _read_in_place(self, record: Record, rooms: Sequence[Room] | None) -> list[NDArray[np.uint8]]:
        rooms = rooms or [lambda num_bytes: np.empty(num_bytes, np.uint8)] * len(self.sources)
        storage = self.opened_storage
        if self.cache is None and not self.ahead.is_active and isinstance(storage, RoomStorage):
            wanted = zip(self.ranges_of(record), rooms, strict=True)
            return self.ahead.measured(lambda: [storage.read_into(item, room) for item, room in wanted])
        arrays = []
        for data, room in zip(self.read_cached(record), rooms, strict=True):
            arrays.append(room(len(data)))
            arrays[-1][:] = np.frombuffer(data, np.uint8)
        return arrays

    def _read_rest(self, record: Record, ready: Ready) -> list[bytes]:
        """Return the bytes of each source that is needed besides what is ready, and none of the others."""
        assert isinstance(self.maker, ColumnDecoders)
        if self.ahead.pieces_of(record.sample_id):  # what is ready was read ahead too
            return self.read(record)
        needed = self.maker.needed_sources(ready)
        wanted = [range_of(record.cells[number]) for number in needed]
        read = self.ahead.measured(lambda: self.opened_storage.read(wanted)) if wanted else []
        found = dict(zip(needed, read, strict=True))
        return [found.get(number, b"") for number in self.sources]

    def plan_ahead(self, records: Iterable[Record]) -> None:
        """Schedule read-ahead of the next samples' sources, in this order, as deep as pays off; cancel all others."""
        self.ahead.plan(self.wanted(records))

    def wanted(self, records: Iterable[Record]) -> dict[int, list[ByteRange]]:
        """Return the ranges of samples that are not in the cache, by sample_id."""
        wanted = {}
        for record in records:
            if self.cache is None or not self.cache.has(record.sample_id % len(self.index)):
                with suppress(MploadError):  # raised again when the sample is made
                    wanted[record.sample_id] = self.ranges_of(record)
        return wanted

    def ranges_of(self, record: Record) -> list[ByteRange]:
        """Return the range of each source of a sample."""
        ranges = list(map(range_of, map(record.cells.__getitem__, self.sources)))
        elsewhere, row = self._elsewhere, record.sample_id % len(self.index)
        return ranges if elsewhere is None else elsewhere.ranges_of(row, ranges)

    def _make(
        self,
        record: Record,
        rng: SampleRng,
        outs: Any,
        rooms: Sequence[Room] | None,
        store: Callable[[Sample], None] | None,
        ready: Ready | None = None,
    ) -> Sample:
        start_ns = perf_counter_ns()
        maker: Any = self.maker if self.by_source is None else self.by_source.of(record.sample_id)
        self._used = maker
        try:
            data: Sequence[Any] = (
                self._read_rest(record, ready)
                if ready is not None
                else self._read_in_place(record, rooms)
                if self.reads_in_place
                else self.read_cached(record)
            )
        except FAILURES:
            maker.blame(partial(self._can_read, record))
            raise
        self._counts[READ_NS] += perf_counter_ns() - start_ns
        make = maker.make if ready is None else partial(maker.make, ready=ready)
        if maker.may_draw_globally:
            made: Sample = maker.generators.make(lambda: make(record, data, rng, outs, self._counts, self.claim))
        else:
            made = make(record, data, rng, outs, self._counts, self.claim)
        if store is not None:
            store(made)
        return made

    def _can_read(self, record: Record, number: int) -> bool:
        with suppress(*FAILURES):
            return bool(self.opened_storage.read([range_of(record.cells[number])]))
        return False

    def describe(self, record: Record, cause: str, error: BaseException | None = None) -> BadSample:
        """Return the report on a sample that failed."""
        cells = (str(record.cells[number]) for number in self.sources)
        sources = tuple(redacted(cell) if is_url(cell) else cell for cell in cells)
        row = record.sample_id % len(self.index)  # that of a repeated draw is greater
        return BadSample(sample_id=row, where=self.index.where(row), paths=sources, cause=cause, error=error)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _PER_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


_PER_PROCESS = frozenset(
    {"opened_storage", "_elsewhere", "notices", "ahead", "bad", "_rng", "_used", "claim", "_counts", "_generators"}
)
