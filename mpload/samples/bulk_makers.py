"""Makes one column of a chunk of samples, with a few native calls: reading, decoding, all straight into the slot."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.decoders import NumpyDecoder, read_npy_header
from mpload.images.many import DecodeMany, EncodedSamples
from mpload.index.columns import ColumnType
from mpload.index.lines import Lines
from mpload.index.mixture_index import MixtureIndex
from mpload.samples.cached_reads import CachedReader
from mpload.samples.counts import CACHE_HITS, CACHE_MISSES, DECODE_NS, READ_NS
from mpload.samples.pipeline import Pipeline
from mpload.samples.reading import ChunkCache, SpreadStorage
from mpload.samples.row_index import RowIndex
from mpload.storage.local import LocalStorage
from mpload.storage.many import ManyRanges, ManyRead, ManyReader
from mpload.storage.many_ahead import AheadReader
from mpload.storage.protocols import Storage
from mpload.storage.read_ahead import ReadAhead
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import ALIGN_BYTES
from mpload.transport.worker import ChunkReport
from mpload.units import MIB

__all__ = ["MAKERS_OF_CELLS", "Arrays", "Bytes", "Chunk", "Images", "Maker", "Reading", "Rows"]

_MAX_ARRAY_BYTES = MIB  # of a `.npy` file; the first of a chunk is copied


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """What is made, and where it goes."""

    lines: Lines
    first: int
    """Position of the first sample in its batch."""
    key: tuple[int, int]
    """The key of the samples' random numbers."""
    report: ChunkReport
    geometries: NDArray[np.int64] | None = None
    """The geometries that the images draw and that other columns follow, as in `EncodedSamples`."""
    is_drawn: NDArray[np.bool_] | None = None
    """Which samples have a geometry to follow, bool [n]; None if there is none to follow."""
    read: Mapping[int, ManyRead] = field(default_factory=dict)
    """What `Reading.read_together` has read of each column, by the column's number."""


Maker = Callable[[Chunk, int, Any], NDArray[np.bool_] | None]
"""Writes the values of one column to the array of a slot, and returns which samples were made, bool [n].

None if this time all must be made one by one, which says nothing about the chunks that follow.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Reading:
    """Reads the files or spans that a column names, or gets those that were read ahead, or are in the cache."""

    storage: Storage
    ahead: ReadAhead
    sources: Sequence[int]
    """Numbers of the columns whose ranges are read ahead, in their order."""
    cache: ChunkCache | None = None
    maps_shards: bool = False
    _cached: CachedReader | None = field(default=None, init=False)
    """What has read the latest chunk from the cache."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> "Reading | None":
        """Return what reads the files of a pipeline; None if its cache can only be asked for one sample at a time."""
        cache, index = pipeline.cache, pipeline.index
        if cache is not None:
            has_roots = isinstance(index, MixtureIndex) and not index.has_one_root
            if not isinstance(cache, ChunkCache) or len(pipeline.sources) != 1 or has_roots:
                return None
        return cls(storage=pipeline.opened_storage, ahead=pipeline.ahead, sources=tuple(pipeline.sources), cache=cache)

    def reads(
        self,
        chunk: Chunk,
        column: int,
        area_at: Callable[[int], NDArray[np.uint8]],
        *,
        step_bytes: int = 0,
        max_bytes: int | None = None,
    ) -> Iterator[tuple[int, ManyRead]]:
        """Read the ranges in a column, as many at a time as `area_at` has room for after so many ranges.

        Yield the number of ranges before each read, and the read. What `read_together` has read comes first. It ends
        early if reads turn out to be slow, since read-ahead then begins, or if the bytes that were read ahead are not
        there. With a cache, its entries come first, and then the samples that it never keeps; each time, all others are
        declined.
        """
        if self.cache is not None:
            cached = self._cached = CachedReader(self.cache, chunk.lines, column, at=partial(_note_place, chunk))
            yield from self._cached_reads(cached, chunk, area_at, step_bytes=step_bytes, max_bytes=max_bytes)
            if not cached.is_outside.any():
                return
        done = 0
        if (found := chunk.read.get(column)) is not None:
            if max_bytes is not None:
                found = replace(found, lengths=np.where(found.lengths > max_bytes, -1, found.lengths))
            yield 0, found
            done = len(found.lengths)
            if done == len(chunk.lines):
                return
        is_ahead = self.ahead.is_active
        reader = self._reader_of_ahead(chunk, column) if is_ahead else self._reader(chunk, column)
        while reader is not None and done < len(chunk.lines) and self.ahead.is_active == is_ahead:
            start_ns = perf_counter_ns()
            read = partial(reader.read, area_at(done), first=done, step_bytes=step_bytes, max_bytes=max_bytes)
            found = read() if is_ahead else self.ahead.measured_many(read)
            chunk.report.tally.counts[READ_NS] += perf_counter_ns() - start_ns
            if not (num_read := len(found.lengths)):
                return
            yield done, found
            done += num_read

    def read_together(self, chunk: Chunk, columns: Sequence[int], area: NDArray[np.uint8]) -> Mapping[int, ManyRead]:
        """Read the files that several columns name, one column after another, with one call, until `area` is full.

        All columns must be paths: spans would share the limit of open shards.

        Returns:
            What was read of each column, by its number. The last one may lack some of its files. Nothing while files
            are read ahead.
        """
        if self.ahead.is_active or (reader := self._reader(chunk, *columns)) is None:
            return {}
        start_ns = perf_counter_ns()
        found = self.ahead.measured_many(partial(reader.read, area))
        chunk.report.tally.counts[READ_NS] += perf_counter_ns() - start_ns
        firsts = range(0, len(found.lengths), len(chunk.lines))
        return {
            column: found.part(first, first + len(chunk.lines)) for column, first in zip(columns, firsts, strict=False)
        }

    def _cached_reads(
        self,
        reader: CachedReader,
        chunk: Chunk,
        area_at: Callable[[int], NDArray[np.uint8]],
        *,
        step_bytes: int,
        max_bytes: int | None,
    ) -> Iterator[tuple[int, ManyRead]]:
        done = 0
        while done < len(chunk.lines):
            start_ns = perf_counter_ns()
            found = reader.read(area_at(done), first=done, step_bytes=step_bytes, max_bytes=max_bytes)
            chunk.report.tally.counts[READ_NS] += perf_counter_ns() - start_ns
            yield done, found
            done += len(found.lengths)

    def note_made(self, made: NDArray[np.bool_], report: ChunkReport) -> None:
        """Count the samples of the latest chunk that were made, by whether they came from the cache.

        Those that were not made are counted when they are made one by one.
        """
        if self.cache is not None and self._cached is not None:
            num_hits = int(np.count_nonzero(made & self._cached.is_hit))
            num_outside = int(np.count_nonzero(made)) - num_hits
            self.cache.count(num_hits=num_hits, num_outside=num_outside)
            if isinstance(self.storage, SpreadStorage):
                num_elsewhere = sum(map(self.storage.was_hit, self._cached.rows_outside(made)))
                num_hits, num_outside = num_hits + num_elsewhere, num_outside - num_elsewhere
            report.tally.counts[CACHE_HITS] += num_hits
            report.tally.counts[CACHE_MISSES] += num_outside

    def _outside(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return values of a chunk's samples, with -1 for the samples that the cache keeps."""
        if self._cached is None:
            return values
        is_outside = self._cached.is_outside
        return np.where(is_outside[:, np.newaxis] if values.ndim == 2 else is_outside, values, -1)

    def _reader(self, chunk: Chunk, *columns: int) -> ManyReader | None:
        """Return what reads the ranges in some columns, those of one column after those of another."""
        if type(self.storage) is not LocalStorage:
            return None
        spans = [chunk.lines.spans(column) for column in columns]
        ranges = ManyRanges(
            names=chunk.lines.data,
            paths=np.concatenate([self._outside(each.paths) for each in spans]),
            offsets=np.concatenate([each.offsets for each in spans]),
            lengths=np.concatenate([self._outside(each.lengths) for each in spans]),
            num_samples=len(chunk.lines),
            first=chunk.first,
            at=chunk.report.sample,
        )
        return self.storage.many_reader(ranges, maps_shards=self.maps_shards)

    def _reader_of_ahead(self, chunk: Chunk, column: int) -> AheadReader:
        return AheadReader(
            self.ahead,
            self._outside(chunk.lines.sample_ids).tolist(),  # -1 is never read ahead
            place=self.sources.index(column),
            at=lambda place: chunk.report.at(chunk.first + place),
        )

    def into_ragged(
        self, chunk: Chunk, column: int, array: RaggedArray, *, max_bytes: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Read into a ragged field. Return where in its area each range starts, and its length; -1 if it is missing."""
        starts, lengths = np.full((2, len(chunk.lines)), -1, np.int64)
        for done, read in self.reads(chunk, column, lambda _: array.unused, max_bytes=max_bytes):
            there = done + np.flatnonzero(read.lengths >= 0)
            starts[there] = read.starts[there - done] + array.use(read.used_bytes)
            lengths[there] = read.lengths[there - done]
        return starts, lengths


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bytes:
    """Reads samples that stay encoded into the area of a ragged field."""

    reading: Reading

    def make(self, chunk: Chunk, column: int, array: RaggedArray) -> NDArray[np.bool_]:
        """Make a column."""
        starts, lengths = self.reading.into_ragged(chunk, column, array, max_bytes=array.field.max_sample_bytes)
        array.accept(chunk.first, starts, lengths[:, np.newaxis], made=lengths >= 0)
        return lengths >= 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Reads samples whose bytes are their value straight into the rows of the batch."""

    reading: Reading
    row_bytes: int

    def make(self, chunk: Chunk, column: int, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Make a column."""
        made = np.zeros(len(chunk.lines), np.bool_)
        if not array.flags.c_contiguous:
            return made
        rows = array[chunk.first : chunk.first + len(made)].reshape(-1).view(np.uint8)
        if not self.row_bytes or len(rows) != len(made) * self.row_bytes:
            return made
        reads = self.reading.reads(chunk, column, lambda done: rows[done * self.row_bytes :], step_bytes=self.row_bytes)
        for done, read in reads:
            made[done : done + len(read.lengths)] |= read.lengths == self.row_bytes
        return made


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrays:
    """Reads `.npy` files into the area of a ragged field, where their headers stay, before the arrays.

    The first file of a chunk is decoded. All files with the same header and size hold arrays of the same form.
    """

    reading: Reading
    decode: NumpyDecoder

    def make(self, chunk: Chunk, column: int, array: Any) -> NDArray[np.bool_]:
        """Make a column."""
        if not isinstance(array, RaggedArray):  # arrays without dimensions, in a field of fixed shape
            return np.zeros(len(chunk.lines), np.bool_)
        starts, lengths = self.reading.into_ragged(
            chunk, column, array, max_bytes=min(_MAX_ARRAY_BYTES, array.field.max_sample_bytes)
        )
        start_ns = perf_counter_ns()
        made = self._place(chunk.first, starts, lengths, array)
        chunk.report.tally.counts[DECODE_NS] += perf_counter_ns() - start_ns
        return made

    def _place(
        self, first: int, starts: NDArray[np.int64], lengths: NDArray[np.int64], array: RaggedArray
    ) -> NDArray[np.bool_]:
        made = lengths >= 0
        if not made.any():
            return made
        example = int(made.argmax())
        data = array.area[starts[example] : starts[example] + lengths[example]].tobytes()
        try:
            value, header = self.decode(data), read_npy_header(data)
        except DecodeError:
            return np.zeros_like(made)
        header_bytes = header.num_bytes
        made &= lengths == len(data)
        if (
            (value.dtype, value.ndim) != (array.field.dtype, array.field.num_dims)
            or header.is_fortran
            or not header.dtype.isnative
            or header_bytes % ALIGN_BYTES
        ):
            return np.zeros_like(made)
        places = np.flatnonzero(made)
        headers = array.area[starts[places, np.newaxis] + np.arange(header_bytes)]
        made[places] = (headers == np.frombuffer(data, np.uint8, header_bytes)).all(axis=1)
        array.accept(first, starts + header_bytes, np.broadcast_to(value.shape, (len(made), value.ndim)), made=made)
        return made


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """Reads encoded images or masks into an arena, as many as it holds, and decodes them into the rows of the batch."""

    reading: Reading
    decode_many: DecodeMany
    arena: NDArray[np.uint8]
    rows: RowIndex | None = None

    def make(self, chunk: Chunk, column: int, array: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Make a column."""
        made = np.zeros(len(chunk.lines), np.bool_)
        entries = None if self.rows is None else self.rows.read_many(chunk.lines.sample_ids)
        if entries is not None and 2 * entries.count(b"") > len(entries):
            return None  # most entries are to be made, which only samples that are made one by one do
        is_filled = self.rows is not None and self.rows.is_filled
        num_wrong = 0
        for done, read in self.reading.reads(chunk, column, lambda _: self.arena):
            start_ns = perf_counter_ns()
            stop = done + len(read.lengths)
            is_drawn, geometries = chunk.is_drawn, chunk.geometries
            samples = EncodedSamples(
                data=self.arena[: read.used_bytes],
                starts=read.starts,
                lengths=read.lengths if is_drawn is None else np.where(is_drawn[done:stop], read.lengths, -1),
                sample_ids=chunk.lines.sample_ids[done:stop],
                key=chunk.key,
                first=chunk.first + done,
                at=chunk.report.sample,
                entries=None if entries is None else entries[done:stop],
                geometries=None if geometries is None else geometries[done:stop],
            )
            is_made = self.decode_many(samples, array[chunk.first + done : chunk.first + stop])
            # A sample whose entry is wrong is made again if that replaces the entry.
            made[done:stop] |= is_made == 1 if is_filled else is_made != 0
            num_wrong += int(np.count_nonzero(is_made == 2))
            chunk.report.tally.counts[DECODE_NS] += perf_counter_ns() - start_ns
        return None if is_filled and 2 * num_wrong > len(made) else made


def _note_place(chunk: Chunk, place: int) -> None:
    chunk.report.sample[0] = chunk.first + place


def _integers(chunk: Chunk, column: int, array: NDArray[np.int64]) -> NDArray[np.bool_]:
    values, is_parsed = chunk.lines.integers(column)
    array[chunk.first : chunk.first + len(values)][is_parsed] = values[is_parsed]
    return is_parsed


def _floats(chunk: Chunk, column: int, array: NDArray[np.float64]) -> NDArray[np.bool_]:
    made = np.zeros(len(chunk.lines), np.bool_)
    for place, (start, end) in enumerate(chunk.lines.cells[:, column].tolist()):
        text = chunk.lines.data[start:end]
        if start >= 0 and b"_" not in text:
            with suppress(ValueError):  # raised again when the sample is made
                array[chunk.first + place] = float(text)
                made[place] = True
    return made


def _texts(chunk: Chunk, column: int, array: RaggedArray) -> NDArray[np.bool_]:
    return array.put_many(chunk.first, chunk.lines.data, np.ascontiguousarray(chunk.lines.cells[:, column]))


MAKERS_OF_CELLS: dict[ColumnType, Maker] = {
    ColumnType.INT: _integers,
    ColumnType.FLOAT: _floats,
    ColumnType.STR: _texts,
}
