"""`IndexSource`: the batches of an `MPDataset`."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from time import perf_counter_ns
from typing import Any

import imagesize  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from mpload.client.describing import description_of
from mpload.client.options import Servers
from mpload.client.protocol import Description
from mpload.client.served_work import ServedWork
from mpload.errors import (
    ArgumentError,
    IndexChangedError,
    MploadError,
    SampleError,
    ServerError,
    SidecarError,
    TooManyBadSamples,
    cause_of,
    warn,
)
from mpload.index.index import records_of
from mpload.loader.collate import BatchSeed, CollateError, why_not_in_workers
from mpload.loader.epochs import Epoch
from mpload.loader.forms import Form, fields_of, forms_of, template_of_columns
from mpload.loader.index_run import IndexRun
from mpload.loader.index_runs import IndexRuns
from mpload.loader.planned import (
    BATCHES_AHEAD,
    SAMPLES_AHEAD,
    SAMPLES_ANNOUNCED,
    num_tasks,
    tasks,
    warn_if_all_is_dropped,
)
from mpload.loader.presenting import SlotPresenter
from mpload.loader.row_groups import row_group_bytes
from mpload.loader.sample_errors import error_of_failure, sample_error
from mpload.loader.source_counts import SourceCounts
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import AnyPlan
from mpload.samples.cache.opened import OpenCache
from mpload.samples.collated_work import MADE, CollatedWork, SampleWork, unpacked, whole_field
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.index_work import PipelineWork, substitute_task
from mpload.samples.joins import Join
from mpload.samples.leaves import leaves_of
from mpload.samples.policy import BadSample, ErrorAction, all_failed
from mpload.storage.parquet import ROW_GROUPS_BYTES
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample, PoolOptions
from mpload.transport.forking import Forks
from mpload.transport.messages import Tally
from mpload.transport.ragged import batch_room_bytes
from mpload.transport.slots import Field, RaggedField
from mpload.transport.worker import Work

__all__ = ["IndexSource"]

_EXCESS_SAMPLES = 16
_NONE = np.empty(0, np.int64)


class IndexSource:
    """The batches of an MPDataset.

    Args:
        runs: how the dataset reads its index.
        options: how the worker is run that makes the first samples, to find out their form; None means as usual.
        servers: what makes the samples, instead of the workers; None if the workers do.
    """

    def __init__(self, runs: IndexRuns, options: PoolOptions | None = None, *, servers: Servers | None = None) -> None:
        run = runs.of(runs.epochs.next)
        if run.batch_size is None:
            raise ArgumentError("an MPLoader loads whole batches: pass batch_size= to the MPDataset")
        self._runs = runs
        self._run = run
        """The run whose samples the workers make."""
        self._options = options or PoolOptions()
        self._servers = servers
        self._sample_fields: tuple[Field | RaggedField, ...] = ()
        self._forms: list[Form] = []
        self._template: Any = None
        self._joins: list[Join] = []
        self._changes = run.changes_of_weights
        self._collates = False
        """Whether workers call the user's callable."""
        self.name = run.name
        self.batch_size = self.slot_samples = run.batch_size
        self.samples_ahead, self.batches_ahead = SAMPLES_AHEAD, BATCHES_AHEAD
        self.epochs = runs.epochs
        self.set_epoch = run.set_epoch
        self.state_after = runs.state_after
        self.load_state_dict = runs.load_state_dict
        self.set_weights = run.set_weights
        self.updated_state = run.updated_state
        self.cache_in_memory = _in_memory(run)
        self.forks = Forks.NEVER
        self.reads_ahead = True
        self.row_group_bytes = 0
        self.starts_all_workers = False
        self.max_read_seconds = run.pipeline.max_read_seconds
        self.samples_announced = SAMPLES_ANNOUNCED if self.max_read_seconds else 0
        self.made_here = Tally()
        self.by_source = SourceCounts.of(run.index)
        """Samples by source, if the dataset is a mixture."""

    def facts(self) -> dict[str, str]:
        """Return facts about the dataset for `repr` and notebooks."""
        return self._runs.of(self.epochs.next).facts()

    def plan_of(self, epoch: Epoch) -> AnyPlan:
        """Return this rank's plan of an epoch."""
        return self._runs.of(epoch).plan_of(epoch)

    def image_excess(self) -> float:
        """Return the ratio of stored to decoded pixels, estimated from a few images; 1 if unknown."""
        pipeline = self._run.pipeline
        if pipeline.output_shape is None:
            return 1.0
        sample_ids = np.linspace(0, len(pipeline.index) - 1, num=_EXCESS_SAMPLES, dtype=np.int64)
        pixels = []
        with suppress(MploadError):  # a worker will report the error
            for record in pipeline.index.records(sample_ids):
                width, height = imagesize.get(BytesIO(pipeline.read(record)[0]))
                pixels.append(width * height if width > 0 else 0)  # -1 x -1 if it is not an image
        wanted = math.prod(pipeline.output_shape[:2])
        return float(np.mean(pixels)) / wanted if pixels and min(pixels) > 0 else 1.0

    def refresh(self) -> bool:
        """Return whether the weights of a mixture have changed, or the number of samples of an epoch."""
        before = self._run, self._changes
        self._run = self._runs.of(self.epochs.current or self.epochs.next)
        self._changes = self._run.changes_of_weights
        self.cache_in_memory = _in_memory(self._run)
        return before[0] is not self._run or before[1] != self._changes

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot. If they cannot be inferred, a sample is made in a separate process."""
        fields = self._sample_fields = self.sample_fields()
        return (*fields, *self._fields_of_batch(fields))

    def sample_fields(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot that hold the samples, as `prepare` does for the whole batch."""
        pipeline, fields = self._run.pipeline, tuple[Field | RaggedField, ...]()
        self.row_group_bytes = row_group_bytes(pipeline, self._options)
        if isinstance(pipeline.maker, ColumnDecoders):
            self._template = template_of_columns(pipeline, self._options) if len(pipeline.index) else {}
            fields = fields_of(leaves_of(self._template), batch_size=self.batch_size)
        else:
            self._forms = forms_of(pipeline, self._options, batch_size=self.batch_size)
            fields = tuple(form.field for form in self._forms)
        self._slots = SlotPresenter(presenter=self._run.presenter, forms=self._forms, template=self._template)
        return fields

    def describe(self, sample_fields: Sequence[Field | RaggedField]) -> Description:
        """Return what a server that makes these samples, and a loader that wants them, must agree on."""
        return description_of(self._run.pipeline, sample_fields)

    def _fields_of_batch(self, fields: Sequence[Field | RaggedField]) -> tuple[Field | RaggedField, ...]:
        """Return further fields, for the last step of a batch if it has one."""
        self._collates, self._joins = False, list[Join]()
        collate = self._run.presenter.callable
        if collate is not None:
            if reason := why_not_in_workers(collate):
                warn(f"collate runs in the training process, because workers cannot get a copy of it: {reason}")
                return ()
            self._collates = True
            return MADE, whole_field(max_bytes=batch_room_bytes(batch_size=self.batch_size, num_fields=1))
        max_bytes = batch_room_bytes(batch_size=self.batch_size, num_fields=len(fields))
        self._joins = self._slots.joins({field.name: field for field in fields}, max_bytes=max_bytes)
        return (MADE, *(join.into for join in self._joins)) if self._joins else ()

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> Work:
        """Return the work for the workers, with these memory limits for each worker."""
        own = self.sample_work(read_ahead_bytes=read_ahead_bytes, decode_bytes=decode_bytes)
        samples: SampleWork = own
        if self._servers is not None:
            samples = ServedWork(
                work=own,
                servers=self._servers,
                description=self.describe(self._sample_fields),
                fields=tuple(field.name for field in self._sample_fields),
            )
        if not self._collates and not self._joins:
            return samples
        return CollatedWork(samples=samples, joins=self._joins, collate=self._slots if self._collates else None)

    def sample_work(self, *, read_ahead_bytes: int, decode_bytes: int) -> PipelineWork:
        """Return the work that makes the samples."""
        row_groups_bytes = 0
        if self.row_group_bytes:
            row_groups_bytes = min(read_ahead_bytes, max(self.row_group_bytes, ROW_GROUPS_BYTES))
        return PipelineWork(
            pipeline=self._run.pipeline,
            batching=self._run.batching,
            read_ahead_bytes=max(1, read_ahead_bytes - row_groups_bytes),
            row_groups_bytes=row_groups_bytes,
            decode_bytes=decode_bytes,
            template=self._template,
        )

    def tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for the workers."""
        return tasks(epoch, self._begun(epoch))

    def batches(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch in this process. A failed batch does not end the iterator."""
        return map(partial(self._make, epoch), range(self._begun(epoch).num_batches))

    def _begun(self, epoch: Epoch) -> AnyPlan:
        """Begin an epoch, and return its plan."""
        self._run.pipeline.bad.begin()
        plan = self.plan_of(epoch)
        warn_if_all_is_dropped(epoch, plan, name=self._run.index.path)
        return plan

    def rest(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch that have no task: an empty one, of a rank that has no samples left."""
        plan = self.plan_of(epoch)
        return map(partial(self._make, epoch), range(num_tasks(plan), plan.num_batches))

    def _make(self, epoch: Epoch, batch: int) -> Any:
        started_ns, pipeline = perf_counter_ns(), self._run.pipeline
        plan = self.plan_of(epoch)
        sample_ids = self._run.order_of(epoch).sample_ids(plan.positions(batch))
        self._run.use_batch(plan, batch)
        pipeline.take_counts()  # discards counts of failed batches, and of batches made without the loader
        pipeline.bad.failed.clear()
        try:
            presented = self._run.collated(sample_ids, seed=epoch.seed, epoch=epoch.number)
        except CollateError as failed:
            message = f"{self._run.collate_on(sample_ids)}: {cause_of(failed.error)}"
            raise sample_error(message, failed.error) from failed.error
        finally:
            if self.by_source is not None:
                self.by_source.add(_NONE, failed=pipeline.bad.failed)
        if self.by_source is not None:
            is_skipped = pipeline.policy.action is ErrorAction.SKIP
            self.by_source.add(sample_ids, without=pipeline.bad.failed if is_skipped else ())
        busy_ns = perf_counter_ns() - started_ns
        self.made_here.add(Tally(num_samples=len(sample_ids), busy_ns=busy_ns, counts=pipeline.take_counts()))
        return presented

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return a batch made by the workers, without skipped samples.

        Raises:
            SampleError, TooManyBadSamples: a sample failed, and the error policy of the dataset says to raise.
        """
        self._run.pipeline.bad.count(filled.task.num_samples, epoch=epoch.number)
        kept = self._kept(filled) if filled.failures else None
        presented = self._presented(epoch, filled, kept)
        if self.by_source is not None:
            sample_ids = self._run.batching.sample_ids(BatchNumber.of(filled.task.numbers))
            self.by_source.add(sample_ids if kept is None else sample_ids[kept])
        return presented

    def _presented(self, epoch: Epoch, filled: FilledBatch, kept: NDArray[np.int64] | None) -> Any:
        arrays = self._run.unpacked(BatchNumber.of(filled.task.numbers), filled.arrays)
        if self._collates:
            return unpacked(arrays)
        batch_seed = BatchSeed(seed=epoch.seed, epoch=epoch.number, first_id=self._first_id(filled))
        joined = {join.source: join.read(arrays, kept) for join in self._joins}
        found = {name: column for name, column in joined.items() if column is not None}
        try:
            return self._slots.batch(arrays, kept, batch_seed, joined=found)
        except CollateError as failed:
            raise sample_error(self._collate_failed(filled, cause_of(failed.error)), failed.error) from failed.error

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return the task that makes a substitute, if the error policy says so; else None."""
        pipeline, number = self._run.pipeline, BatchNumber.of(killed.task)
        sample_id = self._sample_id(number, killed.sample)
        instead = substitute_task(pipeline, killed.task, sample_id)
        if pipeline.policy.action is ErrorAction.SUBSTITUTE and number.substitute < 0:
            self._write_down(sample_id, killed.cause, epoch=number.epoch)
        return instead

    def _kept(self, filled: FilledBatch) -> NDArray[np.int64] | None:
        """Return the places of samples that were made; None if all were. Raise if the error policy says so."""
        number, failed = BatchNumber.of(filled.task.numbers), []
        causes: list[BadSample] = []
        for failure in filled.failures:
            details = failure.details
            if failure.kind in (IndexChangedError, ServerError, SidecarError):  # no sample is to blame
                raise failure.kind(failure.cause) from failure.origin
            if failure.sample == filled.task.num_samples:
                message = self._collate_failed(filled, failure.cause)
                raise error_of_failure(message, failure) from failure.origin
            if not (details.get("skipped") or details.get("substituted") or details.get("killed")):
                raise SampleError(failure.cause) from failure.origin
            own = self._sample_id(number, failure.sample), failure.cause
            for sample_id, cause in details.get("bad", [own]):
                try:
                    causes.append(self._write_down(sample_id, cause, epoch=number.epoch))
                except TooManyBadSamples as error:
                    raise error from failure.origin
            if not details.get("substituted"):
                failed.append(failure.sample)
        if not failed:
            return None
        kept = np.setdiff1d(np.arange(filled.task.num_samples), failed)
        if not kept.size:
            raise all_failed(self._run.index.path, len(failed), causes)
        return kept

    def _first_id(self, filled: FilledBatch) -> int:
        is_needed = self._run.presenter.callable is not None
        return self._sample_id(BatchNumber.of(filled.task.numbers), 0) if is_needed else 0

    def _collate_failed(self, filled: FilledBatch, cause: str) -> str:
        sample_ids = self._run.batching.sample_ids(BatchNumber.of(filled.task.numbers))
        return f"{self._run.collate_on(sample_ids)}: {cause}"

    def _sample_id(self, number: BatchNumber, place: int) -> int:
        if number.substitute >= 0:
            return number.substitute
        return int(self._run.batching.sample_ids(number)[place])

    def _write_down(self, sample_id: int, cause: str, *, epoch: int) -> BadSample:
        """Record a bad sample in the report, and return it; raise if the error policy says so."""
        pipeline = self._run.pipeline
        bad = pipeline.describe(records_of(pipeline.index, [sample_id])[0], cause)
        if pipeline.policy.action is ErrorAction.RAISE:
            raise SampleError(str(bad))
        pipeline.bad.count(0, epoch=epoch)
        if self.by_source is not None:
            self.by_source.add(_NONE, failed=[bad.sample_id])
        pipeline.bad.add(bad)
        return bad


def _in_memory(run: IndexRun) -> OpenCache | None:
    return run.cache if run.cache is not None and run.cache.is_tmpfs() else None
