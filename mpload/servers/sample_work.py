"""The work of a server's workers: make the samples that a request lists. Nothing here imports torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mpload.client.protocol import MAX_SAMPLES, Wanted
from mpload.plan.batch_number import BatchNumber
from mpload.plan.order import Sequential
from mpload.plan.topology import Topology
from mpload.samples.index_work import PipelineWork
from mpload.transport.batches import BatchTask
from mpload.transport.slots import RaggedField

__all__ = ["WANTED_IDS", "SampleWork", "sample_arrays", "serial_of", "task_of"]

WANTED_IDS = RaggedField(name="wanted sample_ids", dtype=np.int64, max_sample_bytes=8 * MAX_SAMPLES, is_input=True)
"""The field of a slot that holds the sample_ids of its request."""


@dataclass(kw_only=True)
class SampleWork(PipelineWork):
    """Makes the samples whose sample_ids are in the slot. Otherwise it does what a loader's workers do.

    Process: as `PipelineWork`.
    """

    @classmethod
    def of(cls, work: PipelineWork) -> Self:
        """Return the work that makes the same samples as a loader's."""
        values = {each.name: getattr(work, each.name) for each in fields(work) if each.init}
        # Requests come in any order. With another order, workers would read whole blocks.
        return cls(**{**values, "batching": replace(work.batching, order=Sequential())})

    def unpacked(self, number: BatchNumber, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prepare for a request, and return the arrays of its slot that hold samples."""
        return super().unpacked(number, sample_arrays(arrays))

    def wanted_ids(
        self, number: BatchNumber, first: int, last: int, arrays: Callable[[], Mapping[str, Any]]
    ) -> NDArray[np.int64]:
        """Return the sample_ids at places `first` to `last` (exclusive) of a request."""
        if number.substitute >= 0:
            return np.full(last - first, number.substitute)
        sample_ids: NDArray[np.int64] = arrays()[WANTED_IDS.name][0][first:last]
        return sample_ids


def task_of(wanted: Wanted, *, serial: int) -> BatchTask:
    """Return the task of a request. `serial` is its number, which no other request of the pool has."""
    number = BatchNumber(
        seed=wanted.seed,
        epoch=wanted.epoch,
        start=serial,
        batch=wanted.bucket,
        topology=Topology(rank=0, world_size=1),
    )
    sample_ids = wanted.sample_ids.astype(np.int64, copy=False).tobytes()
    return BatchTask(numbers=number.numbers, num_samples=len(wanted.sample_ids), input=sample_ids)


def serial_of(task: tuple[int, ...]) -> int:
    """Return the number of the request that a task belongs to."""
    return BatchNumber.of(task).start


def sample_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arrays of a slot that hold samples."""
    return {name: array for name, array in arrays.items() if name != WANTED_IDS.name}
