"""The workers' part of a map-style dataset: they write its samples, leaf by leaf, into the arrays of a slot."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from mpload.errors import ArgumentError, cause_of
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.samples.counts import DECODE_NS
from mpload.samples.leaf_arrays import LeafWriter
from mpload.samples.parcel import pack
from mpload.samples.sample_form import has_form
from mpload.samples.seeded_dataset import SeededDataset
from mpload.transport.messages import details_of
from mpload.transport.worker import ChunkReport

__all__ = ["PARCELS", "MapWork"]

PARCELS = "parcels"
"""Name of the field for samples that travel as parcels: the first ones, and those that differ in form."""


@dataclass(kw_only=True)
class MapWork:
    """Reads the samples of a batch from a dataset and writes them into the batch's slot.

    The meaning of the slot's layout is the pickled template of the samples, once the parent knows it.

    Process: pickled by value once, then forked; or forked from the process of the loader.
    """

    dataset: SeededDataset
    batching: Batching
    _templates: dict[bytes, Any] = field(default_factory=dict, init=False)

    def open(self, worker: int) -> None:
        """Prepare the dataset. It opens its own files."""
        self.dataset.open(worker)

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples `first` to `last` (exclusive) of the batch `task`; `__getitem__` is timed as decoding.

        The first sample that fails is the last one made, and is made once: its batch is lost, as in a DataLoader.
        """
        number, counts, parcels = BatchNumber.of(task), report.tally.counts, arrays[PARCELS]
        template = writer = None
        if report.layout is not None:
            template = self._template(report.layout.meaning)
            writer = LeafWriter(template, arrays)
        for place, sample_id in enumerate(self.batching.sample_ids(number, first, last).tolist(), first):
            report.at(place)
            start_ns = perf_counter_ns()
            try:
                sample = self.dataset.sample(sample_id, seed=number.seed, epoch=number.epoch)
                counts[DECODE_NS] += perf_counter_ns() - start_ns
                if writer is None or not has_form(template, sample) or not _is_stored(writer, place, sample):
                    pack(sample, lambda num_bytes, at=place: parcels.room(at, (num_bytes,)))  # type: ignore[misc]
            except BaseException as error:  # noqa: BLE001  anything that user code raises is a failure
                report.failed(place, cause_of(error), details_of(error))
                return

    def _template(self, pickled: bytes) -> Any:
        if pickled not in self._templates:
            # The bytes come from the parent, through the loader's own memory, so it is safe to unpickle them.
            self._templates[pickled] = pickle.loads(pickled)  # noqa: S301
        return self._templates[pickled]


def _is_stored(writer: LeafWriter, place: int, sample: Any) -> bool:
    """Write a sample into the arrays of its leaves; return False if a value has another shape or dtype."""
    try:
        writer.store(place, sample)
    except (ArgumentError, OverflowError):  # an int of more than 64 bits
        return False
    return True
