"""`MapSource`: the batches of an ordinary map-style dataset."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from mpload.errors import FAILURES, cause_of
from mpload.loader.default_batches import batch_of_leaves, batch_of_samples, sample_of_leaves
from mpload.loader.epochs import Epoch
from mpload.loader.learned_form import LearnedForm
from mpload.loader.map_run import PlannedRun
from mpload.loader.planned import BATCHES_AHEAD, SAMPLES_AHEAD, num_tasks, tasks, warn_if_all_is_dropped
from mpload.loader.sample_errors import error_of_failure, sample_error
from mpload.plan.batch_number import BatchNumber
from mpload.samples.counts import DECODE_NS
from mpload.samples.handlers import raise_if_from_handler
from mpload.samples.leaves import leaves_of, template_of
from mpload.samples.map_work import PARCELS, MapWork
from mpload.samples.parcel import unpack
from mpload.samples.seeded_dataset import SeededDataset
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample
from mpload.transport.forking import Forks
from mpload.transport.messages import Tally
from mpload.transport.slots import RaggedField

__all__ = ["MapSource"]


class MapSource:
    """The batches of a map-style dataset, collated as by `default_collate`."""

    def __init__(self, run: PlannedRun, dataset: SeededDataset, *, forks: Forks) -> None:
        self._run = run
        self._work = MapWork(dataset=dataset, batching=run.batching)
        self._form = LearnedForm(batch_size=run.batching.batch_size)
        self.name = run.name
        self.batch_size = self.slot_samples = run.batching.batch_size
        self.samples_ahead, self.batches_ahead = SAMPLES_AHEAD, BATCHES_AHEAD
        self.samples_announced = 0
        self.epochs = run.epochs
        self.facts = run.facts
        self.plan_of = run.plan_of
        self.set_epoch = run.set_epoch
        self.state_after = run.state_after
        self.load_state_dict = run.load_state_dict
        self.forks = forks
        self.cache_in_memory = None
        self.reads_ahead = False
        self.row_group_bytes = 0
        self.starts_all_workers = True
        self.max_read_seconds = 0.0
        self.made_here = Tally()

    def image_excess(self) -> float:
        """Return 1: the ratio is unknown."""
        return 1.0

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any."""
        if not self._run.refresh():
            return False
        self._work = replace(self._work, batching=self._run.batching)
        self._form = LearnedForm(batch_size=self.batch_size)
        return True

    def prepare(self) -> tuple[RaggedField, ...]:
        """Return the fields of a slot for the first batches, whose samples may have any form."""
        return self._form.first_fields()

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> MapWork:
        """Return the work for the workers. The limits do not apply: the dataset itself reads and decodes."""
        del read_ahead_bytes, decode_bytes
        return self._work

    def tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for the workers, with the layout that is known by then."""
        warn_if_all_is_dropped(epoch, self.plan_of(epoch), name=self.name)
        return tasks(epoch, self.plan_of(epoch), layout=lambda: self._form.layout)

    def batches(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch in this process. A failed batch does not end the iterator."""
        warn_if_all_is_dropped(epoch, self.plan_of(epoch), name=self.name)
        return map(partial(self._make, epoch), range(self.plan_of(epoch).num_batches))

    def rest(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch that have no task: an empty one, of a rank that has no samples left."""
        plan = self.plan_of(epoch)
        return map(partial(self._make, epoch), range(num_tasks(plan), plan.num_batches))

    def _make(self, epoch: Epoch, batch: int) -> Any:
        sample_ids = self._run.order_of(epoch).sample_ids(self.plan_of(epoch).positions(batch)).tolist()
        with self._work.dataset.kept_generators():
            if not sample_ids:
                return self._empty()
            started_ns = perf_counter_ns()
            samples = [self._sample(sample_id, epoch) for sample_id in sample_ids]
            made_ns = perf_counter_ns()
            collated = batch_of_samples(samples, describe=partial(self._describe, sample_ids))
        tally = Tally(num_samples=len(samples), busy_ns=perf_counter_ns() - started_ns)
        tally.counts[DECODE_NS] = made_ns - started_ns
        self.made_here.add(tally)
        return collated

    def _sample(self, sample_id: int, epoch: Epoch) -> Any:
        try:
            return self._work.dataset.sample(sample_id, seed=epoch.seed, epoch=epoch.number)
        except FAILURES as error:
            raise_if_from_handler(error)
            raise sample_error(self._describe([sample_id], 0, cause_of(error)), error) from error

    def _empty(self) -> Any:
        """Return a batch of no samples, for a rank that has none left in the last batch of a ragged epoch."""
        template = self._form.template or template_of(self._work.dataset.sample(0, seed=0, epoch=0))
        arrays = {leaf.name: np.empty((0, *leaf.shape), leaf.dtype) for leaf in leaves_of(template)}
        return batch_of_leaves(template, arrays)

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return a batch made by the workers.

        Raises:
            SampleError: a sample of the batch failed, or the samples do not fit into one batch.
        """
        del epoch
        for failure in filled.failures:
            cause = self._describe(self._sample_ids(filled), failure.sample, failure.cause)
            raise error_of_failure(cause, failure) from failure.origin
        template, arrays = self._form.template_of(filled.layout), filled.arrays
        parcels = {place: unpack(arrays[PARCELS][place]) for place in arrays[PARCELS].written}
        if not parcels:
            with suppress(*FAILURES):  # shapes differ: see below
                return batch_of_leaves(template, arrays)
        samples = [
            parcels[place] if place in parcels else sample_of_leaves(template, arrays, place)
            for place in range(filled.task.num_samples)
        ]
        if parcels:
            self._form.learn(samples)
        return batch_of_samples(samples, describe=lambda *args: self._describe(self._sample_ids(filled), *args))

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return None: a sample that kills workers counts as failed."""
        del killed
        return None

    def _sample_ids(self, filled: FilledBatch) -> Sequence[int]:
        sample_ids: list[int] = self._run.batching.sample_ids(BatchNumber.of(filled.task.numbers)).tolist()
        return sample_ids

    def _describe(self, sample_ids: Sequence[int], place: int, cause: str) -> str:
        return f"sample {sample_ids[place]} of {self.name}: {cause}"
