"""The workers' part of an `MPDataset` with `collate`: samples are made as ever, then one worker makes the batch."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import FAILURES, ArgumentError, OutageError, cause_of
from mpload.images.opencv import load_opencv
from mpload.plan.batch_number import BatchNumber
from mpload.samples.joins import Join
from mpload.samples.parcel import pack, unpack
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorAction
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import Field, RaggedField
from mpload.transport.worker import ChunkReport, SharingWork, Work

__all__ = ["MADE", "CollateSlot", "CollatedWork", "SampleWork", "unpacked", "whole_field"]

MADE = Field(name="made samples", dtype=np.bool_)
"""The field that says which samples of a batch were made."""
_BATCH = "whole batch"


def whole_field(*, max_bytes: int) -> RaggedField:
    """Return the field for a batch that a callable of the user's has made: a parcel."""
    return RaggedField(name=_BATCH, max_sample_bytes=max_bytes, is_whole=True)


class CollateSlot(Protocol):
    """Calls the user's `collate` with the samples in a slot."""

    def __call__(
        self, arrays: Mapping[str, Any], kept: NDArray[np.int64] | None, *, seed: int, epoch: int, first_id: int
    ) -> Any:
        """Return the batch.

        Args:
            arrays: The arrays of the slot.
            kept: Places of the samples; None for all.
            seed: The run's seed.
            epoch: The epoch's number.
            first_id: The sample_id of the batch's first sample, also if that was skipped.
        """
        ...


class SampleWork(Work, Protocol):
    """Makes the samples of an `MPDataset`, as `PipelineWork` does."""

    @property
    def pipeline(self) -> Pipeline:
        """What makes a sample."""
        ...

    def unpacked(self, number: BatchNumber, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prepare for a batch, and return the arrays of its slot in the shape that its samples have."""
        ...

    def sample_ids(self, number: BatchNumber, first: int, last: int) -> NDArray[np.int64]:
        """Return the sample_ids at places `first` to `last` (exclusive) of a batch."""
        ...


@dataclass(kw_only=True)
class CollatedWork:
    """Makes the samples of a batch, and as its last step the batch, in the same slot.

    Process: as `PipelineWork`.
    """

    samples: SampleWork
    joins: Sequence[Join]
    collate: CollateSlot | None
    """The user's callable; None if all is said by `joins`."""

    def share(self) -> None:
        """Share what the work of samples shares, and OpenCV, which is seeded before the user's callable is called."""
        if self.collate is not None:
            with suppress(OutageError):  # raised again for each batch
                load_opencv()
        if isinstance(self.samples, SharingWork):
            self.samples.share()

    def open(self, worker: int) -> None:
        """Prepare this process."""
        self.samples.open(worker)

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples, and note which were made."""
        made = arrays[MADE.name]
        made[first:last] = True
        self.samples.fill(task, arrays, first, last, report)
        for failure in report.failures:
            if failure.details.get("skipped"):
                made[failure.sample] = False

    def finish(self, task: tuple[int, ...], arrays: Mapping[str, Any], num_samples: int, report: ChunkReport) -> None:
        """Make the batch. If a failed sample makes the batch fail, there is nothing to do."""
        made = arrays[MADE.name]
        places = np.flatnonzero(made[:num_samples])
        action = self.samples.pipeline.policy.action
        if not len(places) or (len(places) < num_samples and action is ErrorAction.RAISE):
            return
        for join in self.joins:
            join.write(arrays, places)
        if self.collate is not None:
            number = BatchNumber.of(task)
            private = arrays if report.private_arrays is None else report.private_arrays()
            batch = self.collate(
                self.samples.unpacked(number, private),
                None if len(places) == len(made) else places,
                seed=number.seed,
                epoch=number.epoch,
                first_id=int(self.samples.sample_ids(number, 0, 1)[0]),
            )
            _pack(batch, arrays[_BATCH])


def _pack(batch: Any, parcel: RaggedArray) -> None:
    parcel.begin(0, 1)
    try:
        pack(batch, lambda num_bytes: parcel.room(0, (num_bytes,)))
    except FAILURES as error:
        raise ArgumentError(
            f"the batch cannot be passed to the training process: {cause_of(error)}. Return tensors, arrays and values "
            "that can be pickled"
        ) from error


def unpacked(arrays: Mapping[str, Any]) -> Any:
    """Return the batch that the user's callable has made. Its tensors are views of the slot."""
    return unpack(arrays[_BATCH][0])
