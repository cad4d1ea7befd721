"""The work of an `MPLoader`'s workers: make the samples of a batch and write them into the batch's slot."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from time import perf_counter_ns
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, MploadError, SampleError
from mpload.index.index import Record, lines_of, map_lines, prefetch_lines
from mpload.index.lines import Lines
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.samples.batch import Sample
from mpload.samples.block_reads import BlockReads
from mpload.samples.bulk import ARENA_BYTES, BulkPipeline
from mpload.samples.bulk_columns import BulkColumns
from mpload.samples.bulk_views import BulkViews
from mpload.samples.column_decoders import ColumnDecoders, Ready
from mpload.samples.held_generators import warn_of_copies
from mpload.samples.leaf_arrays import LeafWriter
from mpload.samples.leaf_batches import template_of_sample
from mpload.samples.leaves import exact_pairs
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import BadSample, ErrorAction, substitute_for
from mpload.storage.local import LocalStorage
from mpload.storage.notices import Notice
from mpload.storage.protocols import KeepingStorage, Room, SharingStorage
from mpload.storage.ranges import ByteRange
from mpload.transport.chunks import Chunk
from mpload.transport.messages import Failure, Tally, details_of
from mpload.transport.ragged import RaggedArray
from mpload.transport.worker import ChunkReport

__all__ = ["PipelineWork", "described_sample", "notice_of", "pickled_template", "substitute_task"]

_MAX_CHUNKS_AHEAD = 32
_CHUNKS_PREFETCHED = 2  # of lines: first the rows of the sidecar, then, a chunk later, the lines themselves


@dataclass(kw_only=True)
class PipelineWork:
    """Runs a pipeline over the samples of a batch and writes the results directly into the batch's slot.

    A skipped or substituted sample is reported as a failure with two details: `skipped` or `substituted` is true, and
    `bad` lists sample_id and cause of each sample that was tried. `bad` may be missing if the causes are too long.

    Process: pickled by value once, then forked; each process opens its own files.
    """

    pipeline: Pipeline
    batching: Batching
    read_ahead_bytes: int
    """Upper bound of the bytes that each process has read but not yet used."""
    decode_bytes: int
    """Memory that each process may take to decode one image without waiting for its turn."""
    row_groups_bytes: int = 0
    """Memory in which each process keeps row groups of Parquet, if the index has any."""
    template: Any = None
    """The template of the samples that column decoders make; None for one decoder."""
    _known: tuple[BatchNumber | None, NDArray[np.int64]] = field(
        default=(None, np.empty(0, np.int64)), init=False, repr=False, compare=False
    )
    """The latest batch and all its sample_ids: permuting 256 positions takes hardly longer than permuting 16."""

    def share(self) -> None:
        """Let all workers read the same files, also those that take the places of others."""
        if isinstance(self.pipeline.opened_storage, SharingStorage):
            self.pipeline.opened_storage.share_files()

    def open(self, worker: int) -> None:
        """Prepare for read-ahead, and map a small index. Files of samples are opened when they are first read."""
        if worker == 0:
            warn_of_copies()
        map_lines(self.pipeline.index)
        self.pipeline.bound_read_ahead(self.read_ahead_bytes)
        if isinstance(self.pipeline.opened_storage, KeepingStorage):
            self.pipeline.opened_storage.bound(self.row_groups_bytes)
        self._arena = np.empty(min(self.read_ahead_bytes, ARENA_BYTES), np.uint8)
        self._bulk = self._made_bulk()
        self._is_local = type(self.pipeline.opened_storage) is LocalStorage
        self._bulks: dict[int, BulkPipeline | BulkViews | BulkColumns | None] = {}
        # By bucket, if buckets have shapes of their own. The maker in use now may be that of any bucket.
        self._chunks_ahead: dict[tuple[tuple[int, ...], int, int], _Samples] = {}
        self._blocks = BlockReads(self.pipeline, self.batching)

    def unpacked(self, number: BatchNumber, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prepare for a batch, and return the arrays of its slot in the shape that its samples have."""
        if self.batching.buckets is None:
            return arrays
        self.pipeline.makers.use_bucket(number.batch)
        if self.pipeline.makers.shapes is not None:
            if number.batch not in self._bulks:
                self._bulks[number.batch] = self._made_bulk()
            self._bulk = self._bulks[number.batch]
        return self.pipeline.makers.unpacked(arrays)

    def _made_bulk(self) -> BulkPipeline | BulkViews | BulkColumns | None:
        """Return what makes samples in bulk; None if nothing can."""
        pipeline, arena = self.pipeline, self._arena
        if pipeline.by_source is not None:
            return None
        if isinstance(pipeline.maker, ColumnDecoders):
            views = BulkViews.of(pipeline, self.template, arena=arena)
            return views or BulkColumns.of(pipeline, self.template, arena=arena)
        return BulkPipeline.of(pipeline, arena=arena)

    def sample_ids(self, number: BatchNumber, first: int, last: int) -> NDArray[np.int64]:
        """Return the sample_ids at places `first` to `last` (exclusive) of a batch."""
        if number.substitute >= 0:
            return np.full(last - first, number.substitute)
        if number != self._known[0]:
            self._known = number, self.batching.sample_ids(number)
        return self._known[1][first:last]

    def wanted_ids(
        self, number: BatchNumber, first: int, last: int, arrays: Callable[[], Mapping[str, Any]]
    ) -> NDArray[np.int64]:
        """Return the sample_ids at places `first` to `last` (exclusive) of a batch. `arrays` returns those of its slot.

        They follow from the number here; a subclass may read them from the slot.
        """
        del arrays
        return self.sample_ids(number, first, last)

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples `first` to `last` (exclusive) of the batch `task`."""
        number, slot, ahead = BatchNumber.of(task), arrays, self.pipeline.ahead
        arrays = self.unpacked(number, arrays)
        self.pipeline.notices.send = partial(_notify, report)
        prefetch_lines(self.pipeline.index, lambda: self._upcoming_ids(report))
        chunk = self._chunks_ahead.pop((task, first, last), None)
        if chunk is None:
            chunk = self._samples_of(self.wanted_ids(number, first, last, lambda: slot))
        bulk = self._bulk and partial(self._bulk.make, chunk.lines, arrays, number=number, first=first, report=report)
        left: Mapping[int, Ready | None] = dict.fromkeys(range(last - first))
        ahead.is_paused = False  # as it may be since the last chunk
        ahead.is_paused = ahead.is_active and self._blocks.are_cached(chunk.lines)
        if bulk and self._is_local and not ahead.is_active:
            left = bulk()
        done = self._blocks.load(number, first, last)
        if left and ahead.is_active:
            is_fresh = len(left) == last - first
            self._plan_ahead(chunk, left, report)
            if bulk and is_fresh:
                left = bulk()
                ahead.release(np.delete(chunk.lines.sample_ids, list(left)).tolist())
        if left:
            self._fill_one_by_one(number, arrays, first, chunk, left, report)
        if ahead.is_paused:
            self._release(chunk, report)
        if ahead.was_active:
            self._note_begun(report)
        self._blocks.free(done)
        report.tally.add(Tally(counts=self.pipeline.take_counts()))

    def _fill_one_by_one(
        self,
        number: BatchNumber,
        arrays: Mapping[str, Any],
        first: int,
        chunk: "_Samples",
        left: Mapping[int, Ready | None],
        report: ChunkReport,
    ) -> None:
        """Make the samples at some places of a chunk, which starts at `first`; `left` says what of each is ready."""
        pipeline = self.pipeline
        if isinstance(pipeline.maker, ColumnDecoders):
            writer: LeafWriter | _ColumnWriter = LeafWriter(
                self.template, arrays, pairing=exact_pairs, in_place_keys=pipeline.maker.in_place_keys
            )
        else:
            writer = _ColumnWriter(pipeline, arrays)
        pipeline.claim = partial(_claim, pipeline, self.decode_bytes, report)
        with pipeline.lent_generators():
            for record, (place_in_chunk, part) in zip(chunk.records_at(left), left.items(), strict=True):
                place = first + place_in_chunk
                report.at(place)
                bad: list[BadSample] = []
                is_made = (
                    pipeline.sample(
                        record,
                        seed=number.seed,
                        epoch=number.epoch,
                        outs=writer.outs(place),
                        rooms=writer.rooms(place),
                        store=partial(writer.store, place),
                        on_bad=partial(_note_bad, bad, partial(report.at, place)),
                        ready=part,
                    )
                    is not None
                )  # keeps no reference to a large image while the next one is decoded
                if bad:
                    _report_bad(report, place, bad, is_made=is_made)

    def _samples_of(self, sample_ids: NDArray[np.int64]) -> "_Samples":
        return _Samples(lines=lines_of(self.pipeline.index, sample_ids))

    def _ids_of(self, chunk: Chunk, report: ChunkReport) -> NDArray[np.int64]:
        number = BatchNumber.of(chunk.task)
        return self.wanted_ids(number, chunk.first, chunk.last, lambda: report.arrays_of(chunk))

    def _upcoming_ids(self, report: ChunkReport) -> NDArray[np.int64]:
        ids = [self._ids_of(chunk, report) for chunk in report.upcoming(_CHUNKS_PREFETCHED)]
        return np.concatenate(ids) if ids else np.empty(0, np.int64)

    def _plan_ahead(self, chunk: "_Samples", left: Collection[int], report: ChunkReport) -> None:
        """Schedule read-ahead for the samples `left` of a chunk and, up to the depth, for those of later chunks."""
        before, self._chunks_ahead = self._chunks_ahead, {}
        num_chunks = min(-(-self.pipeline.ahead.depth // len(chunk.lines)), _MAX_CHUNKS_AHEAD)
        num_chunks = max(num_chunks, len(before))  # what is left out now would be read again later
        is_whole = len(left) == len(chunk.lines)
        wanted = dict(chunk.wanted(self.pipeline)) if is_whole else self.pipeline.wanted(chunk.records_at(left))
        with suppress(MploadError):  # raised again when the chunk itself is made
            for each in report.upcoming(num_chunks):
                key = each.task, each.first, each.last
                later = before.get(key) or self._samples_of(self._ids_of(each, report))
                self._chunks_ahead[key] = later
                wanted |= later.wanted(self.pipeline)
        self.pipeline.ahead.plan(wanted)
        self._note_begun(report)

    def _release(self, chunk: "_Samples", report: ChunkReport) -> None:
        """Let go of what was read ahead for a chunk that the page cache held, and for those that other workers took."""
        gone = [chunk]
        if self._chunks_ahead:
            upcoming = {(each.task, each.first, each.last) for each in report.upcoming(len(self._chunks_ahead))}
            gone += [later for key, later in self._chunks_ahead.items() if key not in upcoming]
            self._chunks_ahead = {key: later for key, later in self._chunks_ahead.items() if key in upcoming}
        for each in gone:
            self.pipeline.ahead.release(each.lines.sample_ids.tolist())

    def _note_begun(self, report: ChunkReport) -> None:
        """Tell the other workers which of the later chunks are being read."""
        has_begun = self.pipeline.ahead.has_begun
        later = (chunk.lines.sample_ids.tolist() for chunk in self._chunks_ahead.values())
        report.begun(sum(1 for _ in takewhile(lambda sample_ids: any(map(has_begun, sample_ids)), later)))


@dataclass(slots=True, kw_only=True)
class _Samples:
    """The samples of a chunk."""

    lines: Lines
    _records: list[Record] | None = None
    _wanted: Mapping[int, list[ByteRange]] | None = None

    def records_at(self, places: Collection[int]) -> list[Record]:
        """Return the records at some places."""
        if self._records is None and len(places) < len(self.lines):
            return [self.lines.record(place) for place in places]
        if self._records is None:
            self._records = self.lines.records()
        return [self._records[place] for place in places]

    def wanted(self, pipeline: Pipeline) -> Mapping[int, list[ByteRange]]:
        """Return the ranges to read, by sample_id."""
        if self._wanted is None:
            self._wanted = pipeline.wanted(self.records_at(range(len(self.lines))))
        return self._wanted


def _notify(report: ChunkReport, notice: Notice) -> None:
    facts = {"place": notice.place, "is_outage": notice.is_outage, "answered_at": notice.answered_at}
    report.notify(notice.text, facts)


def notice_of(message: Failure) -> Notice:
    """Return the notice that a worker has passed to the parent."""
    return Notice(text=message.cause, **message.details)


def described_sample(pipeline: Pipeline, sample_id: int) -> bytes:
    """Make a sample and return the shape and dtype of each of its values as JSON, null for values that are no arrays.

    Raises:
        SampleError: The sample cannot be made.
        ArgumentError: A slot cannot carry one of its values.
    """
    bad: list[BadSample] = []  # not reported here: they are counted and reported during the epoch
    made = pipeline.sample(pipeline.index[sample_id], seed=0, epoch=0, on_bad=bad.append)
    if made is None:
        raise SampleError(str(bad[0])) from bad[0].error
    for number in pipeline.sources:
        if not isinstance(value := made[1][number], bytes | np.ndarray):
            raise _not_carried(pipeline.index.columns[number].name, value)
    described = [
        {"shape": list(value.shape), "dtype": value.dtype.str}
        if isinstance(value, np.ndarray)
        else {"shape": None, "dtype": None}
        for value in made[1]
    ]
    return json.dumps(described).encode()


def pickled_template(pipeline: Pipeline, sample_id: int) -> bytes:
    """Make a sample with column decoders, and return its template; or an `ArgumentError` to be raised by the parent.

    Raises:
        SampleError: The sample cannot be made.
    """
    try:
        found = template_of_sample(pipeline, sample_id)
    except ArgumentError as error:  # no batch can hold one of its values
        found = error
    # Pickled by value: classes of the user's script cannot be imported by name in the other process.
    pickled: bytes = cloudpickle.dumps(found)
    return pickled


def substitute_task(pipeline: Pipeline, task: tuple[int, ...], sample_id: int) -> tuple[int, ...] | None:
    """Return the task that makes a substitute for a sample that kills workers; None if there is to be none."""
    number = BatchNumber.of(task)
    if pipeline.policy.action is not ErrorAction.SUBSTITUTE or number.substitute >= 0:
        return None
    pipeline.makers.use_bucket(number.batch)
    found = substitute_for(sample_id, pipeline.makers.peers_of(sample_id), seed=number.seed, epoch=number.epoch)
    others = [other for other in found if other != sample_id % len(pipeline.index)]
    return replace(number, substitute=others[0]).numbers if others else None


def _claim(pipeline: Pipeline, decode_bytes: int, report: ChunkReport, num_bytes: int) -> None:
    if num_bytes > decode_bytes:
        start_ns = perf_counter_ns()
        report.wait_for_turn()
        pipeline.exclude_from_decoding(perf_counter_ns() - start_ns)


def _note_bad(bad: list[BadSample], live: Callable[[], None], each: BadSample) -> None:
    bad.append(each)
    live()  # each substitute has as much time as a sample


def _report_bad(report: ChunkReport, place: int, bad: Sequence[BadSample], *, is_made: bool) -> None:
    """Report a skipped or substituted sample to the parent, which counts over all workers."""
    details = {"substituted" if is_made else "skipped": True, "bad": [(each.sample_id, each.cause) for each in bad]}
    error = bad[0].error
    report.failed(place, bad[0].cause, details if error is None else details | details_of(error))


class _ColumnWriter:
    """Writes the samples of one decoder into the arrays of a slot, column by column."""

    def __init__(self, pipeline: Pipeline, arrays: Mapping[str, Any]) -> None:
        names = [column.name for column in pipeline.index.columns]
        self._writes, self._reads = pipeline.writes_in_place, pipeline.reads_in_place
        in_place = pipeline.sources if self._writes or self._reads else ()
        self._targets = [arrays[names[column]] for column in in_place]
        self._to_store = [(column, name, arrays[name]) for column, name in enumerate(names) if column not in in_place]

    def outs(self, place: int) -> list[NDArray[Any]] | None:
        return [array[place, ...] for array in self._targets] if self._writes else None

    def rooms(self, place: int) -> list[Room] | None:
        return [partial(_room, array, place) for array in self._targets] if self._reads else None

    def store(self, place: int, sample: Sample) -> None:
        for column, name, array in self._to_store:
            _put(array, place, name, sample[column])


def _room(array: RaggedArray, place: int, num_bytes: int) -> NDArray[np.uint8]:
    return array.room(place, (num_bytes,))


def _put(array: NDArray[Any] | RaggedArray, place: int, name: str, value: Any) -> None:
    if isinstance(array, RaggedArray):
        if not isinstance(value, str | bytes | np.ndarray):
            raise _not_carried(name, value)
        array.put(place, value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
        return
    if isinstance(value, np.ndarray | np.generic):
        fits = value.shape == array.shape[1:] and value.dtype == array.dtype
        described = f"{value.dtype}{list(value.shape)}"
    else:
        fits = isinstance(value, int | float) and array.ndim == 1
        described = f"of type {type(value).__name__}"
    if not fits:
        raise ArgumentError(
            f"column {name!r}: this sample is {described}, others are {array.dtype}{list(array.shape[1:])}. "
            "Make the transform return the same shape and dtype for all samples"
        )
    array[place] = value


def _not_carried(name: str, value: object) -> ArgumentError:
    """Return the error for a value that no slot can carry."""
    return ArgumentError(
        f"column {name!r}: this sample is of type {type(value).__name__}, which workers cannot pass to the training "
        "process. Make decode or transform return a NumPy array, or bytes"
    )
