"""What the workers of an MPLoader do: the samples of a batch, from its number to the arrays of its slot."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import partial
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpload.batch import DTYPES, Sample, stack
from mpload.cache.opened import OpenCache
from mpload.decode import ImageDecoder, RawBytes
from mpload.errors import ArgumentError, MploadError, SampleError
from mpload.index.index import Record
from mpload.index.text import MAX_LINE_BYTES
from mpload.order import Order, OrderChoice
from mpload.pipeline import Pipeline
from mpload.policy import BadSample
from mpload.sharding import Plan, Tail, Topology
from mpload.transport.batches import BatchTask
from mpload.transport.messages import Failure, told_of
from mpload.transport.pool import WorkerPool
from mpload.transport.ragged import RaggedArray, sample_room_bytes
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.transport.worker import ChunkReport

__all__ = ["BatchNumber", "Form", "Kind", "PipelineWork", "columns_of", "forms_of"]

_PROBED_SAMPLES = 8
_MAX_CHUNKS_AHEAD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumber:
    """A batch as a task: from these integers a worker works out the rest."""

    seed: int
    epoch: int
    start: int
    """The position where the epoch was begun or resumed."""
    batch: int
    topology: Topology
    """Which rank the batch is for: it travels with each batch since workers start before a process group may exist."""
    substitute: int = -1
    """The sample_id that takes the place of a sample which kills workers; -1: none."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers that travel."""
        rank, world_size = self.topology.rank, self.topology.world_size
        return self.seed, self.epoch, self.start, self.batch, self.substitute, rank, world_size

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "BatchNumber":
        """Read what `numbers` holds."""
        seed, epoch, start, batch, substitute, rank, world_size = numbers
        topology = Topology(rank=rank, world_size=world_size)
        return cls(seed=seed, epoch=epoch, start=start, batch=batch, topology=topology, substitute=substitute)


@runtime_checkable
class _BlockOrder(Protocol):
    """An order that goes through the samples block by block."""

    def due_blocks(self, start: int, stop: int, *, is_first: bool) -> tuple[list[range], list[range]]:
        """Return which blocks to read, and which are done with, as these positions come."""
        ...


@dataclass(kw_only=True)
class PipelineWork:
    """Runs a pipeline over the samples of a batch, straight into its slot.

    A sample that is skipped or substituted is a failure with these details: `skipped` or `substituted`, true, and
    `bad`, sample_id and cause of each sample that was tried, which may be missing where they are too long.

    Process: pickled by value once, then forked; each process opens files of its own.
    """

    pipeline: Pipeline
    order: OrderChoice
    batch_size: int
    tail: Tail
    _known: tuple[BatchNumber | None, NDArray[np.int64]] = field(
        default=(None, np.empty(0, np.int64)), init=False, repr=False, compare=False
    )
    """The latest batch and all its sample_ids: a permutation of 256 takes hardly longer than one of 16."""

    def open(self) -> None:
        """Prepare for reading ahead; files are opened when they are first read."""
        self._looked_up: dict[tuple[tuple[int, ...], int, int], list[Record]] = {}
        self._reads_blocks = False

    def sample_ids(self, number: BatchNumber, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples `first` to `last` (exclusive) of a batch."""
        if number.substitute >= 0:
            return np.full(last - first, number.substitute)
        if number != self._known[0]:
            self._known = number, self._order(number).sample_ids(self._plan(number).positions(number.batch))
        return self._known[1][first:last]

    def _order(self, number: BatchNumber) -> Order:
        return self.order.order(num_samples=len(self.pipeline.index), seed=number.seed, epoch=number.epoch)

    def _plan(self, number: BatchNumber) -> Plan:
        return Plan(
            num_samples=len(self.pipeline.index),
            batch_size=self.batch_size,
            topology=number.topology,
            tail=self.tail,
            start=number.start,
        )

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples `first` to `last` (exclusive) of the batch `task`."""
        number = BatchNumber.of(task)
        pipeline = self.pipeline
        names = [column.name for column in pipeline.index.columns]
        writes, reads = pipeline.writes_in_place, pipeline.reads_in_place
        in_place = pipeline.sources if writes or reads else ()
        targets = [arrays[names[column]] for column in in_place]
        to_store = [(column, name, arrays[name]) for column, name in enumerate(names) if column not in in_place]
        times = pipeline.times
        before = times.read_ns, times.decode_ns, times.transform_ns
        hits, misses = _cache_counts(pipeline)
        records = self._looked_up.pop((task, first, last), None) or self._records(task, first, last)
        if pipeline.ahead.is_active:
            self._look_ahead(records, report)
        if pipeline.reads_blocks and number.substitute < 0:
            self._read_blocks(number, first, last)
        with pipeline.lent_generators():
            for place, record in enumerate(records, first):
                report.at(place)
                bad: list[BadSample] = []
                made = pipeline.sample(
                    record,
                    seed=number.seed,
                    epoch=number.epoch,
                    outs=[array[place] for array in targets] if writes else None,
                    rooms=[partial(_room, array, place) for array in targets] if reads else None,
                    store=partial(_store, to_store, place),
                    on_bad=bad.append,
                )
                if bad:
                    _tell(report, place, bad, is_made=made is not None)
        hits_now, misses_now = _cache_counts(pipeline)
        report.timings.num_cache_hits += hits_now - hits
        report.timings.num_cache_misses += misses_now - misses
        report.timings.read_ns += times.read_ns - before[0]
        report.timings.decode_ns += times.decode_ns - before[1]
        report.timings.transform_ns += times.transform_ns - before[2]

    def _read_blocks(self, number: BatchNumber, first: int, last: int) -> None:
        """Have the blocks read whole that become due with this chunk, for all workers, and let those done with go."""
        order = self._order(number)
        if isinstance(order, _BlockOrder):
            plan = self._plan(number)
            positions = plan.positions(number.batch)
            if first:
                start = int(positions[first - 1]) + 1
            elif number.batch:  # other ranks have what lies between two batches of this one
                start = int(plan.positions(number.batch - 1)[-1]) + 1
            else:
                start = number.start
            is_first = not self._reads_blocks or start == number.start
            self._reads_blocks = True
            coming, done = order.due_blocks(start, int(positions[last - 1]) + 1, is_first=is_first)
            self.pipeline.read_blocks(coming, done)

    def _records(self, task: tuple[int, ...], first: int, last: int) -> list[Record]:
        return self.pipeline.index.records(self.sample_ids(BatchNumber.of(task), first, last))

    def _look_ahead(self, records: list[Record], report: ChunkReport) -> None:
        """Have this chunk's samples read ahead, and as many of the next ones as the depth asks for."""
        num_chunks = min(-(-self.pipeline.ahead.depth // len(records)), _MAX_CHUNKS_AHEAD)
        before, self._looked_up = self._looked_up, {}
        with suppress(MploadError):  # the chunk meets it when its turn comes
            for chunk in report.upcoming(num_chunks):
                key = chunk.task, chunk.first, chunk.last
                self._looked_up[key] = before.get(key) or self._records(*key)
        self.pipeline.look_ahead(chain(records, *self._looked_up.values()))


def _tell(report: ChunkReport, place: int, bad: Sequence[BadSample], *, is_made: bool) -> None:
    """Tell whoever hands batches out of a sample that was skipped or substituted: it counts over all workers."""
    told = {"substituted" if is_made else "skipped": True, "bad": [(each.sample_id, each.cause) for each in bad]}
    error = bad[0].error
    report.failed(place, bad[0].cause, told if error is None else told | told_of(error))


def _cache_counts(pipeline: Pipeline) -> tuple[int, int]:
    if not isinstance(pipeline.cache, OpenCache):
        return 0, 0
    counts = pipeline.cache.counts
    return counts.hits, counts.misses + counts.outside


def _room(array: RaggedArray, place: int, num_bytes: int) -> NDArray[np.uint8]:
    return array.room(place, (num_bytes,))


def _store(columns: Sequence[tuple[int, str, Any]], place: int, sample: Sample) -> None:
    for column, name, array in columns:
        _put(array, place, name, sample[column])


def _put(array: NDArray[Any] | RaggedArray, place: int, name: str, value: Any) -> None:
    if isinstance(array, RaggedArray):
        if not isinstance(value, str | bytes | np.ndarray):
            raise _not_carried(name, value)
        array.put(place, value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
        return
    if isinstance(value, np.ndarray | np.generic):
        is_alike = value.shape == array.shape[1:] and value.dtype == array.dtype
        described = f"{value.dtype}{list(value.shape)}"
    else:
        is_alike = isinstance(value, int | float) and array.ndim == 1
        described = f"of type {type(value).__name__}"
    if not is_alike:
        raise ArgumentError(
            f"column {name!r}: this sample is {described}, others are {array.dtype}{list(array.shape[1:])}. "
            "Make the transform return one shape and dtype for all samples"
        )
    array[place] = value


def _not_carried(name: str, value: object) -> ArgumentError:
    return ArgumentError(
        f"column {name!r}: this sample is of type {type(value).__name__}, which workers cannot hand on. Make decode or "
        "transform return a NumPy array, or bytes"
    )


class Kind(StrEnum):
    """What the values of a column are, and so what a batch of them becomes."""

    ALIKE = auto()
    """Arrays or numbers of one shape: an array [n, ...]."""
    VARIED = auto()
    """Arrays whose shapes may differ: an array where they happen to be alike, else a list."""
    BYTES = auto()
    TEXT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a column of a pipeline's samples is carried in a slot."""

    field: Field | RaggedField
    kind: Kind


def forms_of(pipeline: Pipeline, *, batch_size: int) -> list[Form]:
    """Return how each column of a pipeline's samples is carried.

    Where the pipeline does not say, a sample is made to find out: in a process of its own, since it is the user's code
    that runs.

    Raises:
        SampleError: no sample of the first few could be made.
    """
    described = None if pipeline.writes_in_place else _told(pipeline) or _probe(pipeline)
    forms = []
    room_bytes = sample_room_bytes(batch_size=batch_size, num_fields=len(pipeline.sources))
    for number, column in enumerate(pipeline.index.columns):
        if number not in pipeline.sources:
            dtype = DTYPES.get(column.type)
            fixed = None if dtype is None else Form(field=Field(name=column.name, dtype=dtype), kind=Kind.ALIKE)
            text = RaggedField(name=column.name, max_sample_bytes=MAX_LINE_BYTES)
            forms.append(fixed or Form(field=text, kind=Kind.TEXT))
            continue
        if described is None:
            assert pipeline.output_shape is not None
            field = Field(name=column.name, shape=pipeline.output_shape, dtype="uint8")
            forms.append(Form(field=field, kind=Kind.ALIKE))
            continue
        value = described[number]
        if value["shape"] is None:
            ragged = RaggedField(name=column.name, max_sample_bytes=room_bytes)
            forms.append(Form(field=ragged, kind=Kind.BYTES))
        elif pipeline.output_shape is not None or not value["shape"]:
            field = Field(name=column.name, shape=tuple(value["shape"]), dtype=value["dtype"])
            forms.append(Form(field=field, kind=Kind.ALIKE))
        else:
            ragged = RaggedField(
                name=column.name,
                dtype=value["dtype"],
                num_dims=len(value["shape"]),
                max_sample_bytes=room_bytes,
            )
            forms.append(Form(field=ragged, kind=Kind.VARIED))
    return forms


def columns_of(forms: Sequence[Form], arrays: Mapping[str, Any], kept: NDArray[np.int64] | None) -> list[Any]:
    """Return a slot's arrays as columns of a batch, all samples or the `kept` ones: what `Pipeline.batch` gives."""
    columns: list[Any] = []
    for form in forms:
        array = arrays[form.field.name]
        if form.kind is Kind.ALIKE:
            columns.append(array if kept is None else array[kept])
            continue
        values = list(array) if kept is None else [array[place] for place in kept.tolist()]
        match form.kind:
            case Kind.TEXT:
                columns.append([value.tobytes().decode("utf-8", "surrogateescape") for value in values])
            case Kind.BYTES:
                columns.append([value.tobytes() for value in values])
            case _:
                columns.append(stack(values, None))
    return columns


@dataclass(kw_only=True)
class _Probe:
    """Makes one sample and says what it is made of."""

    pipeline: Pipeline

    def open(self) -> None:
        """Nothing to prepare."""

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Describe the sample `task`."""
        del last
        report.at(first)
        bad: list[BadSample] = []  # to be counted and reported when their turn comes
        made = self.pipeline.sample(self.pipeline.index[task[0]], seed=0, epoch=0, on_bad=bad.append)
        if made is None:
            raise SampleError(str(bad[0])) from bad[0].error
        for number in self.pipeline.sources:
            if not isinstance(value := made[1][number], bytes | np.ndarray):
                raise _not_carried(self.pipeline.index.columns[number].name, value)
        described = [
            {"shape": list(value.shape), "dtype": value.dtype.str}
            if isinstance(value, np.ndarray)
            else {"shape": None, "dtype": None}
            for value in made[1]
        ]
        arrays["described"].put(first, json.dumps(described).encode())


def _told(pipeline: Pipeline) -> list[dict[str, Any]] | None:
    """Return what a pipeline's samples are made of, where that is plain without making one."""
    decode = pipeline.decode
    if pipeline.transform is not None or type(decode) not in {RawBytes, ImageDecoder}:
        return None
    if isinstance(decode, RawBytes):
        value = {"shape": [0], "dtype": "|u1"} if decode.as_array else {"shape": None, "dtype": None}
    else:
        value = {"shape": [0, 0, 3], "dtype": "|u1"}
    return [value for _ in pipeline.index.columns]


def _probe(pipeline: Pipeline) -> list[dict[str, Any]]:
    layout = SlotLayout(num_samples=1, fields=(RaggedField(name="described"),))
    failures: list[Failure] = []
    with WorkerPool(_Probe(pipeline=pipeline), layout, num_slots=1, num_workers=1) as pool:
        for sample_id in range(min(_PROBED_SAMPLES, len(pipeline.index))):
            pool.submit(BatchTask(numbers=(sample_id,), num_samples=1))
            filled = pool.next()
            if not filled.failures:
                described: list[dict[str, Any]] = json.loads(filled.arrays["described"][0].tobytes())
                return described
            failures.append(filled.failures[0])
    cause = f"none of the first {len(failures)} samples could be made: {failures[0].cause}"
    raise SampleError(f"{pipeline.index.path}: {cause}") from failures[0].origin
