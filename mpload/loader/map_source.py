"""`MapSource`: the batches of an ordinary map-style dataset."""

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate

from mpload.errors import FAILURES, cause_of
from mpload.loader.epochs import Epoch
from mpload.loader.forms import fields_of, probe
from mpload.loader.leaf_tensors import tensor_of_leaf
from mpload.loader.map_run import PlannedRun
from mpload.loader.planned import SAMPLES_AHEAD, num_tasks, tasks
from mpload.loader.sample_errors import error_of_failure, sample_error
from mpload.plan.batch_number import BatchNumber
from mpload.samples.counts import DECODE_NS
from mpload.samples.leaves import NUMBER_TYPES, Leaf, LeafKind, leaves_of, template_of
from mpload.samples.map_work import MapWork
from mpload.samples.seeded_dataset import SeededDataset, kept_generators
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample
from mpload.transport.forking import Forks
from mpload.transport.messages import Tally
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import Field, RaggedField

__all__ = ["MapSource"]


class MapSource:
    """The batches of a map-style dataset, collated as by `default_collate`."""

    def __init__(self, run: PlannedRun, dataset: SeededDataset, *, forks: Forks) -> None:
        self._run = run
        self._work = MapWork(dataset=dataset, batching=run.batching)
        self.name = run.name
        self.batch_size = self.slot_samples = run.batch_size
        self.samples_ahead = SAMPLES_AHEAD
        self.epochs = run.epochs
        self.facts = run.facts
        self.plan_of = run.plan_of
        self.set_epoch = run.set_epoch
        self.state_after = run.state_after
        self.load_state_dict = run.load_state_dict
        self.forks = forks
        self.cache_in_memory = None
        self.reads_ahead = False
        self.made_here = Tally()

    def image_excess(self) -> float:
        """Return 1: the ratio is unknown."""
        return 1.0

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any."""
        if not self._run.refresh():
            return False
        self._work = replace(self._work, batching=self._run.batching, template=None)
        return True

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot. To find out, a few samples are made in a separate process."""
        leaves = []
        if self._run.batching.num_samples:
            # The bytes come from our own worker, so it is safe to unpickle them.
            template = pickle.loads(probe(self._work.probe, [()], name=self.name, forks=self.forks))  # noqa: S301
            self._work = replace(self._work, template=template)
            leaves = leaves_of(template)
        return fields_of(leaves, batch_size=self.batch_size)

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> MapWork:
        """Return the work for the workers. The limits do not apply: the dataset itself reads and decodes."""
        del read_ahead_bytes, decode_bytes
        return self._work

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
        sample_ids = self._run.order_of(epoch).sample_ids(self.plan_of(epoch).positions(batch)).tolist()
        with kept_generators():
            if not sample_ids:
                return self._empty()
            started_ns = perf_counter_ns()
            samples = [self._sample(sample_id, epoch) for sample_id in sample_ids]
            made_ns = perf_counter_ns()
            collated = default_collate(samples)
        tally = Tally(num_samples=len(samples), busy_ns=perf_counter_ns() - started_ns)
        tally.counts[DECODE_NS] = made_ns - started_ns
        self.made_here.add(tally)
        return collated

    def _sample(self, sample_id: int, epoch: Epoch) -> Any:
        try:
            return self._work.dataset.sample(sample_id, seed=epoch.seed, epoch=epoch.number)
        except FAILURES as error:
            raise sample_error(self._describe(sample_id, cause_of(error)), error) from error

    def _empty(self) -> Any:
        """Return a batch of no samples, for a rank that has none left in the last batch of a ragged epoch."""
        template = self._work.template or template_of(self._work.dataset.sample(0, seed=0, epoch=0))
        arrays = {leaf.name: np.empty((0, *leaf.shape), leaf.dtype) for leaf in leaves_of(template)}
        return _collated(template, arrays)

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return a batch made by the workers.

        Raises:
            SampleError: a sample of the batch failed.
        """
        del epoch
        for failure in filled.failures:
            sample_id = int(self._run.batching.sample_ids(BatchNumber.of(filled.task.numbers))[failure.sample])
            raise error_of_failure(self._describe(sample_id, failure.cause), failure) from failure.origin
        return _collated(self._work.template, filled.arrays)

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return None: a sample that kills workers counts as failed."""
        del killed
        return None

    def _describe(self, sample_id: int, cause: str) -> str:
        return f"sample {sample_id} of {self.name}: {cause}"


def _number(kind: int, bits: int) -> bool | int | float:
    """Return the number that a worker stored as a type and 64 bits."""
    return float(np.int64(bits).view(np.float64)) if NUMBER_TYPES[kind] is float else NUMBER_TYPES[kind](bits)


def _collated(template: Any, arrays: Mapping[str, Any]) -> Any:
    """Return a batch, with the containers of a sample converted as by `default_collate`."""

    def batch_of(leaves: list[Leaf] | tuple[Leaf, ...], **_: Any) -> Any:
        (leaf,) = leaves
        array = arrays[leaf.name]
        match leaf.kind:  # for text and bytes default_collate gives a tuple inside a sequence, else a list
            case LeafKind.TEXT:
                return type(leaves)(value.tobytes().decode("utf-8", "surrogatepass") for value in array)
            case LeafKind.BYTES:
                return type(leaves)(value.tobytes() for value in array)
            case LeafKind.NUMBER if array.dtype.names:
                return default_collate([_number(kind, bits) for kind, bits in array.tolist()])
            case LeafKind.ARRAY if isinstance(array, RaggedArray):
                return default_collate([tensor_of_leaf(value, leaf) for value in array])
        return tensor_of_leaf(array, leaf)

    return collate([template], collate_fn_map={Leaf: batch_of})
