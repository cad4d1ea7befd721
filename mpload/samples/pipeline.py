"""Turns a record into a sample, and sample_ids into a batch: read, decode, transform. Does not import torch."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import FAILURES, MploadError, SampleError, StorageError, cause_of
from mpload.images.arrays import RawArray
from mpload.images.claims import Claim, unclaimed
from mpload.images.decoders import ImageDecoder, NumpyDecoder, RandomResizedCrop, RawBytes, ResizeCenterCrop
from mpload.images.gpu_decode import GpuDecode
from mpload.index.columns import path_of, range_of
from mpload.index.index import Index, Record
from mpload.plan.sample_rng import SampleRng
from mpload.samples.batch import Batch, Sample, columns_of_samples
from mpload.samples.counts import CACHE_HITS, CACHE_MISSES, DECODE_NS, READ_NS, TRANSFORM_NS
from mpload.samples.masks import PhotographsOnly
from mpload.samples.policy import BadSample, BadSamples, ErrorAction, ErrorPolicy, substitute_for
from mpload.samples.reading import SampleCache, storage_of
from mpload.samples.row_index import RowIndex
from mpload.samples.transforms import (
    GlobalGenerators,
    adapt_transform,
    seed_generators,
    seed_opencv,
    seeds_generators,
    takes,
    takes_images,
)
from mpload.storage.local import LocalStorage, PageCache
from mpload.storage.merging import merged
from mpload.storage.protocols import PageStorage, Room, RoomStorage, Storage
from mpload.storage.ranges import ByteRange
from mpload.storage.read_ahead import ReadAhead
from mpload.transport.messages import MAX_COUNTS
from mpload.units import KIB

__all__ = ["Pipeline", "SampleCache"]

_BLOCK_GAP_BYTES = 64 * KIB
_DECODE, _TRANSFORM, _GLOBALS = 0, 1, 3  # streams of a sample's randomness; map-style datasets use 2
_IMAGE_DECODERS = (ImageDecoder, RandomResizedCrop, ResizeCenterCrop, GpuDecode)
_OUR_DECODERS = frozenset({*_IMAGE_DECODERS, RawBytes, NumpyDecoder, RawArray})
_NUM_CHECKED = 4  # samples that are searched for masks before the first epoch


class Pipeline:
    """Reads, decodes and transforms samples, in the same way in every process.

    Process: may be pickled and forked. Each process opens its own files and has its own generators.
    """

    def __init__(
        self,
        *,
        index: Index,
        decode: Callable[..., Any],
        transform: Callable[..., Any] | None = None,
        policy: ErrorPolicy,
        storage: Storage | None = None,
        page_cache: PageCache | str = PageCache.KEEP,
        cache: SampleCache | None = None,
        row_index: RowIndex | None = None,
    ) -> None:
        self.index = index
        self.decode = decode
        self.transform = transform
        self.policy = policy
        self.storage = storage
        self.page_cache = page_cache
        self.cache = cache
        self.row_index = row_index
        self.sources = [number for number, column in enumerate(index.columns) if column.type.is_source]
        self._decode_takes_rng = takes(decode, "rng")
        self._decode_takes_claim = takes(decode, "claim")
        self.output_shape: tuple[int, ...] | None = getattr(decode, "output_shape", None)
        """Shape of every array that the decoder returns, with `output_dtype`; None if it varies."""
        self.output_dtype: np.dtype[Any] = np.dtype(getattr(decode, "output_dtype", np.uint8))
        declared = _declared_images(decode)
        self.makes_images = bool(declared) or takes_images(transform)
        """Whether arrays of three or more dimensions are images [..., H, W, C]."""
        self._gives_images = True if self.makes_images else declared
        self._may_draw_globally = transform is not None or type(decode) not in _OUR_DECODERS
        guard = self._guard()
        self._files_guard = guard if isinstance(decode, _IMAGE_DECODERS) else None
        self._arrays_guard = None if isinstance(decode, _IMAGE_DECODERS) else guard
        self.reads_in_place = isinstance(decode, RawBytes) and decode.as_array and transform is None
        """Whether samples are undecoded bytes in arrays, which can be read directly into the slot."""
        self._start()

    def _guard(self) -> PhotographsOnly | None:
        """Return the check that refuses masks among photographs; None if it is not needed."""
        is_image_decoder = isinstance(self.decode, _IMAGE_DECODERS)
        if len(self.sources) < 2 or not (is_image_decoder or takes_images(self.transform)):
            return None
        treatment = self.transform if self.transform is not None else self.decode
        return PhotographsOnly(
            columns=tuple(self.index.columns[number].name for number in self.sources),
            treatment=getattr(treatment, "__qualname__", type(treatment).__qualname__),
            keeps_gray=isinstance(self.decode, ImageDecoder) and self.transform is None,
        )

    def refuse_masks(self) -> None:
        """Check the columns' names and, if files are local, a few samples for masks that would be destroyed.

        Raises:
            ArgumentError: A mask was found; see `mpload.samples.masks`.
        """
        guard = self._files_guard or self._arrays_guard
        if guard is None:
            return
        if not guard.keeps_gray:
            guard.check_names()
        are_files = all(self.index.columns[number].type.is_file for number in self.sources)
        if self._files_guard is not None and are_files and isinstance(self.opened_storage, LocalStorage):
            sample_ids = np.linspace(0, len(self.index) - 1, num=_NUM_CHECKED, dtype=np.int64)
            for record in self.index.records(sample_ids):
                with suppress(StorageError):  # raised again when the sample is made
                    guard.check_values(self.read(record))

    def _start(self) -> None:
        self._transform = (
            None if self.transform is None else adapt_transform(self.transform, on_images=self._gives_images)
        )
        self.opened_storage = self.storage or storage_of(self.index, self.decode, self.page_cache)
        """Where this process reads from."""
        self.ahead = ReadAhead(self.opened_storage)
        self.bad = BadSamples(self.policy, index_path=self.index.path)
        self._rng: SampleRng | None = None
        self.claim: Claim = unclaimed
        """Called by decoders before they allocate much memory; returns when it is available."""
        self._generators = GlobalGenerators(seeds=seeds_generators(self._transform))
        self._counts = [0] * MAX_COUNTS

    def bound_read_ahead(self, max_bytes: int) -> None:
        """Bound the bytes that this process has read ahead but not yet used; call it before samples are made."""
        self.ahead = ReadAhead(self.opened_storage, max_bytes=max_bytes)

    def exclude_from_decoding(self, wait_ns: int) -> None:
        """Subtract a wait for memory from the decoding time of the current sample."""
        self._counts[DECODE_NS] -= wait_ns

    def take_counts(self) -> list[int]:
        """Return this process's counters since the last call; `mpload.samples.counts` names them."""
        counts, self._counts = self._counts, [0] * MAX_COUNTS
        return counts

    @property
    def writes_in_place(self) -> bool:
        """Whether the decoder writes into given arrays. Not with a transform, which could change the shape."""
        return self.output_shape is not None and self.transform is None

    def batch(
        self, sample_ids: NDArray[np.int64], *, seed: int, epoch: int, following: Callable[[], Any] | None = None
    ) -> Batch:
        """Make a batch of samples.

        Args:
            sample_ids: The samples to make, int64 [n].
            seed: The run's seed.
            epoch: The epoch's number.
            following: Returns the sample_ids that will be requested next, int64 [m]; called only if reads are slow.

        Raises:
            SampleError: A sample failed and either the policy is to raise, or all its substitutes failed too.
            TooManyBadSamples: More samples failed than the policy allows.
        """
        if not len(sample_ids) and not self.writes_in_place:
            return self._empty_batch()
        shape = self.output_shape if self.writes_in_place else None
        outs = None if shape is None else [np.empty((len(sample_ids), *shape), self.output_dtype) for _ in self.sources]
        made: list[Sample] = []
        ids: list[int] = []
        records = self.index.records(sample_ids)
        if self.ahead.is_active:
            self.plan_ahead(records if following is None else [*records, *self.index.records(following())])
        with self.lent_generators():
            for record in records:
                row = None if outs is None else [out[len(made), ...] for out in outs]
                if (result := self.sample(record, seed=seed, epoch=epoch, outs=row)) is not None:
                    ids.append(result[0])
                    made.append(result[1])
        if not made and len(sample_ids):
            raise SampleError(
                f"{self.index.path}: all {len(sample_ids)} samples of a batch failed; see the error report"
            )
        columns = columns_of_samples(made, self.index.columns)
        for number, out in zip(self.sources, outs or (), strict=False):
            columns[number] = out[: len(made)]
        return Batch(sample_ids=np.array(ids, np.int64), columns=tuple(columns))

    def _empty_batch(self) -> Batch:
        """Return an empty batch whose columns have the types and shapes of the first sample, if that can be made."""
        made = None
        if len(self.index):
            with suppress(MploadError), self.lent_generators():
                made = self.sample(self.index[0], seed=0, epoch=0, on_bad=lambda _: None)
        columns = columns_of_samples([] if made is None else [made[1]], self.index.columns)
        return Batch(sample_ids=np.empty(0, np.int64), columns=tuple(column[:0] for column in columns))

    def lent_generators(self) -> AbstractContextManager[None]:
        """Let `sample` seed the process's global generators and restore them at the end, if user code may use them."""
        return self._generators.lent() if self._may_draw_globally else nullcontext()

    def sample(
        self,
        record: Record,
        *,
        seed: int,
        epoch: int,
        outs: Sequence[NDArray[Any]] | None = None,
        rooms: Sequence[Room] | None = None,
        store: Callable[[Sample], None] | None = None,
        on_bad: Callable[[BadSample], None] | None = None,
    ) -> tuple[int, Sample] | None:
        """Make one sample. Return its sample_id and values, or its substitute's, or None if it is skipped.

        Call it within `lent_generators`, unless the global generators may stay seeded.

        With `writes_in_place`, sources are decoded into the arrays `outs`; with `reads_in_place`, they are read into
        arrays that `rooms` return. `store` is called with the values; if it raises, the sample is bad. `on_bad` is
        called with each sample that is skipped or substituted; without it, they are counted and reported here.
        """
        if self._rng is None or (self._rng.seed, self._rng.epoch) != (seed, epoch):
            self._rng = SampleRng(seed=seed, epoch=epoch)
        if on_bad is None:
            self.bad.count(1, epoch=epoch)
            on_bad = self.bad.add
        try:
            return record.sample_id, self._make(record, self._rng, outs, rooms, store)
        except FAILURES as error:  # whatever the user's callables raise is handled by the policy
            # No local variable may keep the error: its traceback refers to this frame and so to all open files.
            if self.policy.action is ErrorAction.RAISE:
                raise SampleError(str(self.describe(record, cause_of(error)))) from error
            on_bad(self.describe(record, cause_of(error), error))
            if self.policy.action is ErrorAction.SKIP:
                return None
            candidates = substitute_for(record.sample_id, num_samples=len(self.index), seed=seed, epoch=epoch)
            for substitute in self.index.records(candidates):
                try:
                    return substitute.sample_id, self._make(substitute, self._rng, outs, rooms, store)
                except FAILURES as substitute_error:
                    on_bad(self.describe(substitute, cause_of(substitute_error), substitute_error))
            bad = self.describe(record, cause_of(error))
            raise SampleError(f"{bad}; {len(candidates)} substitutes for it failed too") from error

    def read(self, record: Record) -> list[bytes]:
        """Return the bytes of each source of a sample, read from storage, not from the cache."""
        return self.ahead.read(record.sample_id, self._ranges(record))

    def _read_cached(self, record: Record, cache: SampleCache) -> list[bytes]:
        paths = [path_of(record.cells[number]) for number in self.sources]
        num_misses = self._counts[CACHE_MISSES]
        data = cache.read(record.sample_id, paths, lambda: self._read_missed(record))
        self._counts[CACHE_HITS] += self._counts[CACHE_MISSES] == num_misses
        return data

    def _read_missed(self, record: Record) -> list[bytes]:
        self._counts[CACHE_MISSES] += 1
        return self.read(record)

    def _read_in_place(self, record: Record, rooms: Sequence[Room] | None) -> list[NDArray[np.uint8]]:
        rooms = rooms or [lambda num_bytes: np.empty(num_bytes, np.uint8)] * len(self.sources)
        storage = self.opened_storage
        if self.cache is None and not self.ahead.is_active and isinstance(storage, RoomStorage):
            wanted = zip(self._ranges(record), rooms, strict=True)
            return self.ahead.measured(lambda: [storage.read_into(item, room) for item, room in wanted])
        arrays = []
        read = self.read(record) if self.cache is None else self._read_cached(record, self.cache)
        for data, room in zip(read, rooms, strict=True):
            arrays.append(room(len(data)))
            arrays[-1][:] = np.frombuffer(data, np.uint8)
        return arrays

    def plan_ahead(self, records: Iterable[Record]) -> None:
        """Schedule read-ahead of the next samples' sources, in this order, as deep as pays off; cancel all others."""
        cache = self.cache
        wanted = {}
        for record in records:
            if cache is None or not cache.has(record.sample_id):
                with suppress(MploadError):  # raised again when the sample is made
                    wanted[record.sample_id] = self._ranges(record)
        self.ahead.plan(wanted)

    @property
    def reads_blocks(self) -> bool:
        """Whether reading whole blocks of records pays off: reads have been slow, and the page cache can share them."""
        return self.ahead.was_active and isinstance(self.opened_storage, PageStorage)

    def read_blocks(self, coming: Sequence[range], done: Sequence[range]) -> None:
        """Bring blocks of consecutive samples into the page cache, and evict blocks that are no longer needed.

        All processes of a machine share the page cache. Blocks are evicted with `page_cache="drop"` only.
        """
        storage = self.opened_storage
        assert isinstance(storage, PageStorage)
        for act, blocks in (storage.prefetch, coming), (storage.forget, done):
            for sample_ids in blocks:
                with suppress(MploadError):  # raised again when the samples are made
                    ranges = [item for record in self.index.records(sample_ids) for item in self._ranges(record)]
                    for item in merged(ranges, max_gap_bytes=_BLOCK_GAP_BYTES):
                        self.ahead.run(partial(act, item))

    def _ranges(self, record: Record) -> list[ByteRange]:
        return list(map(range_of, map(record.cells.__getitem__, self.sources)))

    def _make(
        self,
        record: Record,
        rng: SampleRng,
        outs: Sequence[NDArray[Any]] | None,
        rooms: Sequence[Room] | None,
        store: Callable[[Sample], None] | None,
    ) -> Sample:
        start_ns = perf_counter_ns()
        data: Sequence[Any] = (
            self._read_in_place(record, rooms)
            if self.reads_in_place
            else self.ahead.read(record.sample_id, self._ranges(record))
            if self.cache is None
            else self._read_cached(record, self.cache)
        )
        self._counts[READ_NS] += perf_counter_ns() - start_ns
        if self._files_guard is not None:
            self._files_guard.check(data)
        if self._may_draw_globally:
            made = self._generators.make(lambda: self._values(record, data, rng, outs))
        else:
            made = self._values(record, data, rng, outs)
        if store is not None:
            store(made)
        return made

    def _values(
        self, record: Record, data: Sequence[Any], rng: SampleRng, outs: Sequence[NDArray[Any]] | None
    ) -> Sample:
        values: list[Any] = list(record.cells)
        counts = self._counts
        decoded: list[Any] = []
        # Every source of a sample gets the same random numbers, so that image pairs are cropped and transformed alike.
        for place, number in enumerate(self.sources):
            start_ns = perf_counter_ns()
            if self._generators.seeds:
                seed_generators(rng.for_sample(record.sample_id, stream=_GLOBALS))
            if self._may_draw_globally:
                seed_opencv(seed=rng.seed, epoch=rng.epoch, sample_id=record.sample_id)
            arguments: dict[str, Any] = {} if outs is None else {"out": outs[place]}
            if self._decode_takes_rng:
                arguments["rng"] = rng.for_sample(record.sample_id, stream=_DECODE)
            if self._decode_takes_claim:
                arguments["claim"] = self.claim
            rows = self.row_index
            decode = self.decode if rows is None else rows.decoder(self.decode, record.sample_id, place)
            value = decode(data[place], **arguments)
            decoded_ns = perf_counter_ns()
            counts[DECODE_NS] += decoded_ns - start_ns
            if self._transform is not None:
                if self._arrays_guard is not None:
                    decoded.append(value)
                    self._arrays_guard.check_arrays(decoded)
                value = self._transform(value, rng.for_sample(record.sample_id, stream=_TRANSFORM))
                counts[TRANSFORM_NS] += perf_counter_ns() - decoded_ns
            values[number] = value
        return tuple(values)

    def describe(self, record: Record, cause: str, error: BaseException | None = None) -> BadSample:
        """Return the report on a sample that failed."""
        sources = tuple(str(record.cells[number]) for number in self.sources)
        where = self.index.where(record.sample_id)
        return BadSample(sample_id=record.sample_id, where=where, paths=sources, cause=cause, error=error)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _PER_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


_PER_PROCESS = frozenset({"_transform", "opened_storage", "ahead", "bad", "_rng", "claim", "_generators", "_counts"})


def _declared_images(decode: Callable[..., Any]) -> bool | None:
    """Return the decoder's `makes_images`; None if it has no such attribute."""
    while isinstance(decode, partial):
        decode = decode.func
    declared = getattr(decode, "makes_images", None)
    return None if declared is None else bool(declared)
