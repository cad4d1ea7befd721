"""`MapSource`: the batches of an ordinary map-style dataset."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import numpy as np
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate

from mpload.errors import FAILURES, SampleError, StateError, cause_of
from mpload.loader.collating import tensor_of_leaf
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.forms import fields_of, probe
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.plan.checkpoint import State
from mpload.plan.order import Order, OrderChoice
from mpload.plan.plan import Plan, Tail
from mpload.plan.topology import Topology
from mpload.samples.counts import DECODE_NS
from mpload.samples.leaves import NUMBER_TYPES, Leaf, LeafKind, leaves_of, template_of
from mpload.samples.map_work import MapDataset, MapWork, kept_generators
from mpload.transport.batches import FilledBatch, KilledSample
from mpload.transport.messages import Tally
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import Field, RaggedField
from mpload.units import format_count

__all__ = ["MapSource"]


class MapSource:
    """The batches of a map-style dataset, collated as by `default_collate`."""

    def __init__(
        self,
        dataset: MapDataset,
        *,
        batch_size: int,
        order: OrderChoice,
        seed: int,
        tail: Tail,
        topology: Topology | None,
    ) -> None:
        self.name = type(dataset).__name__
        self.batch_size = batch_size
        self.batching = Batching(num_samples=len(dataset), batch_size=batch_size, order=order, tail=tail)
        self.epochs = EpochTable(seed=seed, topology=topology)
        self.cache_in_memory = None
        self.reads_ahead = False
        self.made_here = Tally()
        self._fingerprint = f"{type(dataset).__qualname__} of {self.batching.num_samples}"
        self._work = MapWork(dataset=dataset, batching=self.batching)
        self.order_of(Epoch(seed=seed, number=0))  # checks the seed

    def order_of(self, epoch: Epoch) -> Order:
        """Return the order of an epoch."""
        return self.batching.order_of(seed=epoch.seed, epoch=epoch.number)

    def facts(self) -> dict[str, str]:
        """Return facts about the dataset for `repr` and notebooks."""
        return {
            "samples": format_count(self.batching.num_samples),
            "batch size": format_count(self.batch_size),
            "order": repr(self.batching.order),
            "tail": str(self.batching.tail),
            "epoch": str(self.epochs.next.number),
        }

    def image_excess(self) -> float:
        """Return 1: the ratio is unknown."""
        return 1.0

    def plan_of(self, epoch: Epoch) -> Plan:
        """Return this rank's plan of an epoch."""
        return self.batching.plan_of(topology=epoch.topology or self.epochs.topology, start=epoch.position)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads. If it is already next, its position is kept."""
        self.order_of(Epoch(seed=self.epochs.next.seed, number=epoch))  # checks the number
        self.epochs.set_number(epoch)

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Return the state after `num_batches` batches of `epoch`, or before the next epoch if `epoch` is None."""
        at = self.epochs.next if epoch is None else epoch.after(num_batches, self.plan_of(epoch))
        return at.state(fingerprint=self._fingerprint, order=self.batching.order.spec)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            StateError: the state is malformed, or belongs to another dataset or order.
        """
        state = State.from_dict(state_dict)
        if state.fingerprint != self._fingerprint:
            raise StateError(
                f"the checkpoint belongs to another dataset: {state.fingerprint!r}, but this one is "
                f"{self._fingerprint!r}. Load it with the dataset that it belongs to, or start the epoch without it"
            )
        order, num_samples = self.batching.order.spec, self.batching.num_samples
        state.check_fits(fingerprint=self._fingerprint, order=order, num_samples=num_samples)
        self.epochs.set_next(Epoch(seed=state.seed, number=state.epoch, position=state.position))

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot. To find out, a few samples are made in a separate process."""
        leaves = []
        if self.batching.num_samples:
            # The bytes come from our own worker, so it is safe to unpickle them.
            template = pickle.loads(probe(self._work.probe, [()], name=self.name))  # noqa: S301
            self._work = replace(self._work, template=template)
            leaves = leaves_of(template)
        return fields_of(leaves, batch_size=self.batch_size)

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> MapWork:
        """Return the work for the workers. The limits do not apply: the dataset itself reads and decodes."""
        del read_ahead_bytes, decode_bytes
        return self._work

    def make(self, epoch: Epoch, batch: int) -> Any:
        """Make a batch in this process."""
        sample_ids = self.order_of(epoch).sample_ids(self.plan_of(epoch).positions(batch)).tolist()
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
            return self._work.sample(sample_id, seed=epoch.seed, epoch=epoch.number)
        except FAILURES as error:
            raise SampleError(self._describe(sample_id, cause_of(error))) from error

    def _empty(self) -> Any:
        """Return a batch of no samples, for a rank that has none left in the last batch of a ragged epoch."""
        template = self._work.template or template_of(self._work.sample(0, seed=0, epoch=0))
        arrays = {leaf.name: np.empty((0, *leaf.shape), leaf.dtype) for leaf in leaves_of(template)}
        return _collated(template, arrays)

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return a batch made by the workers.

        Raises:
            SampleError: a sample of the batch failed.
        """
        del epoch
        for failure in filled.failures:
            sample_id = int(self.batching.sample_ids(BatchNumber.of(filled.task.numbers))[failure.sample])
            raise SampleError(self._describe(sample_id, failure.cause)) from failure.origin
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
