"""`IndexSource`: the batches of an `MPDataset`."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from time import perf_counter_ns
from typing import Any

import imagesize  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, MploadError, SampleError, TooManyBadSamples
from mpload.loader.collate import BatchSeed
from mpload.loader.epochs import Epoch
from mpload.loader.forms import Form, columns_of, fields_of, forms_of, template_of_columns
from mpload.loader.index_run import IndexRun
from mpload.loader.planned import SAMPLES_AHEAD, num_tasks, tasks
from mpload.plan.batch_number import BatchNumber
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.index_work import PipelineWork
from mpload.samples.leaf_arrays import columns_of_leaves
from mpload.samples.leaves import leaves_of
from mpload.samples.policy import ErrorAction, substitute_for
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample
from mpload.transport.forking import Forks
from mpload.transport.messages import Tally
from mpload.transport.slots import Field, RaggedField

__all__ = ["IndexSource"]

_EXCESS_SAMPLES = 16


class IndexSource:
    """The batches of an MPDataset."""

    def __init__(self, run: IndexRun) -> None:
        if run.batch_size is None:
            raise ArgumentError("an MPLoader loads whole batches: pass batch_size= to the MPDataset")
        self._run = run
        self._forms: list[Form] = []
        self._template: Any = None
        self.name = run.name
        self.facts = run.facts
        self.batch_size = self.slot_samples = run.batch_size
        self.samples_ahead = SAMPLES_AHEAD
        self.epochs = run.epochs
        self.plan_of = run.plan_of
        self.set_epoch = run.set_epoch
        self.state_after = run.state_after
        self.load_state_dict = run.load_state_dict
        self.cache_in_memory = run.cache if run.cache is not None and run.cache.is_tmpfs() else None
        self.forks = Forks.NEVER
        self.reads_ahead = True
        self.starts_all_workers = False
        self.made_here = Tally()

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
        """Return False: an `MPDataset` does not change."""
        return False

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot. If they cannot be inferred, a sample is made in a separate process."""
        pipeline = self._run.pipeline
        if not isinstance(pipeline.maker, ColumnDecoders):
            self._forms = forms_of(pipeline, batch_size=self.batch_size)
            return tuple(form.field for form in self._forms)
        self._template = template_of_columns(pipeline) if len(pipeline.index) else {}
        return fields_of(leaves_of(self._template), batch_size=self.batch_size)

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> PipelineWork:
        """Return the work for the workers, with these memory limits for each worker."""
        return PipelineWork(
            pipeline=self._run.pipeline,
            batching=self._run.batching,
            read_ahead_bytes=read_ahead_bytes,
            decode_bytes=decode_bytes,
            template=self._template,
        )

    def tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for the workers."""
        return tasks(epoch, self.plan_of(epoch))

    def batches(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch in this process. A failed batch does not end the iterator."""
        return map(partial(self._make, epoch), range(self.plan_of(epoch).num_batches))

    def rest(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch that have no task: an empty one, of a rank that has no samples left."""
        plan = self.plan_of(epoch)
        return map(partial(self._make, epoch), range(num_tasks(plan), plan.num_batches))

    def _make(self, epoch: Epoch, batch: int) -> Any:
        started_ns, pipeline = perf_counter_ns(), self._run.pipeline
        sample_ids = self._run.order_of(epoch).sample_ids(self.plan_of(epoch).positions(batch))
        pipeline.take_counts()  # discards counts of failed batches, and of batches made without the loader
        presented = self._run.batch(sample_ids, seed=epoch.seed, epoch=epoch.number)
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
        batch_seed = BatchSeed(seed=epoch.seed, epoch=epoch.number, first_id=self._first_id(filled))
        if self._template is None:
            return self._run.present(columns_of(self._forms, filled.arrays, kept), batch_seed)
        columns = columns_of_leaves(self._template, filled.arrays, kept)
        return self._run.present_leaves(self._template, columns, batch_seed)

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return the task that makes a substitute, if the error policy says so; else None."""
        pipeline, number = self._run.pipeline, BatchNumber.of(killed.task)
        if pipeline.policy.action is not ErrorAction.SUBSTITUTE:
            return None
        if number.substitute >= 0:
            return None  # the substitute kills workers as well: give up
        sample_id = self._sample_id(number, killed.sample)
        self._write_down(sample_id, killed.cause, epoch=number.epoch)
        others = substitute_for(sample_id, num_samples=len(pipeline.index), seed=number.seed, epoch=number.epoch)
        return replace(number, substitute=others[0]).numbers

    def _kept(self, filled: FilledBatch) -> NDArray[np.int64] | None:
        """Return the places of samples that were made; None if all were. Raise if the error policy says so."""
        number, failed = BatchNumber.of(filled.task.numbers), []
        for failure in filled.failures:
            details = failure.details
            if not (details.get("skipped") or details.get("substituted") or details.get("killed")):
                raise SampleError(failure.cause) from failure.origin
            own = self._sample_id(number, failure.sample), failure.cause
            for sample_id, cause in details.get("bad", [own]):
                try:
                    self._write_down(sample_id, cause, epoch=number.epoch)
                except TooManyBadSamples as error:
                    raise error from failure.origin
            if not details.get("substituted"):
                failed.append(failure.sample)
        if not failed:
            return None
        kept = np.setdiff1d(np.arange(filled.task.num_samples), failed)
        if not kept.size:
            raise SampleError(f"{self._run.index.path}: all {len(failed)} samples of a batch failed")
        return kept

    def _first_id(self, filled: FilledBatch) -> int:
        is_needed = callable(self._run.collate)
        return self._sample_id(BatchNumber.of(filled.task.numbers), 0) if is_needed else 0

    def _sample_id(self, number: BatchNumber, place: int) -> int:
        if number.substitute >= 0:
            return number.substitute
        return int(self._run.batching.sample_ids(number)[place])

    def _write_down(self, sample_id: int, cause: str, *, epoch: int) -> None:
        """Record a bad sample in the report; raise if the error policy says so."""
        pipeline = self._run.pipeline
        bad = pipeline.describe(pipeline.index[sample_id], cause)
        if pipeline.policy.action is ErrorAction.RAISE:
            raise SampleError(str(bad))
        pipeline.bad.count(0, epoch=epoch)
        pipeline.bad.add(bad)
