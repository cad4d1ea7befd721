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
from mpload.samples.leaf_columns import ColumnWriter, are_small
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
    _templates: dict[bytes, tuple[Any, ColumnWriter | None]] = field(default_factory=dict, init=False)

    def open(self, worker: int) -> None:
        """Prepare the dataset. It opens its own files."""
        self.dataset.open(worker)

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples `first` to `last` (exclusive) of the batch `task`; `__getitem__` is timed as decoding.

        The first sample that fails ends the batch, as in a DataLoader. Small samples are written several at a time, so
        one that cannot be written may be noticed only after later ones were made.
        """
        number, counts = BatchNumber.of(task), report.tally.counts
        template, columns = (None, None) if report.layout is None else self._template(report.layout.meaning)
        writer = _Writer(template, columns, arrays)
        made: list[Any] = []
        place, failure = first, None
        for place, sample_id in enumerate(self.batching.sample_ids(number, first, last).tolist(), first):
            report.at(place)
            start_ns = perf_counter_ns()
            try:
                made.append(self.dataset.sample(sample_id, seed=number.seed, epoch=number.epoch))
            except BaseException as error:  # noqa: BLE001  anything that user code raises is a failure
                failure = error
                break  # those before it are written first, since the first failure ends a batch
            counts[DECODE_NS] += perf_counter_ns() - start_ns
            if len(made) >= writer.num_at_once:
                if not writer.write(place + 1 - len(made), made, report):
                    return
                made.clear()
        place = last if failure is None else place
        if writer.write(place - len(made), made, report) and failure is not None:
            report.failed(place, cause_of(failure), details_of(failure))

    def _template(self, pickled: bytes) -> tuple[Any, ColumnWriter | None]:
        """Return a template, with its writer of several samples at a time if they are small."""
        if pickled not in self._templates:
            # The bytes come from the parent, through the loader's own memory, so it is safe to unpickle them.
            template = pickle.loads(pickled)  # noqa: S301
            self._templates[pickled] = template, ColumnWriter(template) if are_small(template) else None
        return self._templates[pickled]


class _Writer:
    """Writes samples into a slot: small ones several at a time, and those that differ from the template as parcels."""

    def __init__(self, template: Any, columns: ColumnWriter | None, arrays: Mapping[str, Any]) -> None:
        self._template = template
        self._columns = columns
        self._arrays = arrays
        self._leaves = None if template is None else LeafWriter(template, arrays)

    @property
    def num_at_once(self) -> int:
        """Samples to write together next."""
        return 1 if self._columns is None else self._columns.num_at_once

    def write(self, first: int, samples: list[Any], report: ChunkReport) -> bool:
        """Write the samples at place `first` and those after it. If one cannot be written, report it, return False."""
        if self._columns is not None and samples and self._columns.store(self._arrays, first, samples):
            return True
        for place, sample in enumerate(samples, first):
            if len(samples) > 1:
                report.at(place)
            try:
                if not self._is_stored(place, sample):
                    pack(sample, lambda num_bytes, at=place: self._arrays[PARCELS].room(at, (num_bytes,)))  # type: ignore[misc]
            except BaseException as error:  # noqa: BLE001  the sample's class is the user's
                report.failed(place, cause_of(error), details_of(error))
                return False
        return True

    def _is_stored(self, place: int, sample: Any) -> bool:
        """Write a sample into the arrays of its leaves; return False if it has another form."""
        if self._leaves is None or not has_form(self._template, sample):
            return False
        try:
            self._leaves.store(place, sample)
        except (ArgumentError, OverflowError):  # an int of more than 64 bits
            return False
        return True
