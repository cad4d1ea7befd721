"""Makes the chunks of a batch in this process, as a worker does."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from mpload import MPDataset
from mpload.loader.forms import columns_of
from mpload.loader.index_source import IndexSource
from mpload.plan.batch_number import BatchNumber
from mpload.plan.topology import Topology
from mpload.transport.chunks import Chunk
from mpload.transport.messages import Failure
from mpload.transport.ring import SlotRing
from mpload.transport.slots import SlotLayout
from mpload.transport.worker import ChunkReport, _fill
from tests.support.late_storages import FarFiles

__all__ = ["OneWorker"]


class OneWorker:
    """One worker without a process of its own, and one slot for its batches.

    With `is_far`, files are behind a network, so they are read ahead.
    """

    def __init__(
        self, dataset: MPDataset, *, is_far: bool = False, read_ahead_bytes: int = 1 << 24, outage_every: int = 0
    ) -> None:
        self.source = IndexSource(dataset._runs)
        layout = SlotLayout(num_samples=self.source.batch_size, fields=self.source.prepare())
        self._ring = SlotRing(num_slots=1, layout=layout)
        self.work = self.source.sample_work(read_ahead_bytes=read_ahead_bytes, decode_bytes=1 << 26)
        if is_far:
            pipeline = self.work.pipeline
            pipeline.opened_storage = self.far = FarFiles(pipeline.opened_storage, outage_every=outage_every)
        self.work.open(0)
        self.arrays = self._ring.views(0)
        weakref.finalize(self, self._ring.close)

    def without_bulk(self) -> "OneWorker":
        """Make every sample alone from now on."""
        self.work._bulk = None
        return self

    def fill(
        self,
        batch: int,
        first: int,
        last: int,
        *,
        at: Callable[[int], None] | None = None,
        cell: "memoryview[int] | None" = None,
    ) -> ChunkReport:
        """Make a chunk of a batch of epoch 0. `cell` holds the sample that the worker says it is at, without `at`."""
        cell = memoryview(bytearray(8)).cast("q") if cell is None else cell
        report = ChunkReport(
            at=at or (lambda sample: cell.__setitem__(0, sample)),
            sample=cell,
        )
        number = BatchNumber(seed=0, epoch=0, start=0, batch=batch, topology=Topology())
        chunk = Chunk(batch=batch, slot=0, first=first, last=last, task=number.numbers)
        _fill(self.work, chunk, self.arrays, report)
        return report

    def batch(self, batch: int, *, chunk_samples: int) -> tuple[list[Any], list[Failure]]:
        """Make a batch, and return its columns without the samples that failed, and the failures."""
        size, failures = self.source.batch_size, []
        for first in range(0, size, chunk_samples):
            failures += self.fill(batch, first, min(first + chunk_samples, size)).failures
        kept = np.setdiff1d(np.arange(size), [failure.sample for failure in failures])
        return columns_of(self.source._forms, self.arrays, kept), failures
