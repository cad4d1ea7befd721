"""The workers' part of a map-style dataset: they write its samples, leaf by leaf, into the arrays of a slot."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.samples.counts import DECODE_NS
from mpload.samples.leaf_arrays import LeafWriter
from mpload.samples.leaves import NUMBER_TYPES, as_array, marked, pairs, template_of
from mpload.samples.seeded_dataset import SeededDataset
from mpload.transport.worker import ChunkReport

__all__ = ["MapWork"]


@dataclass(kw_only=True)
class MapWork:
    """Reads the samples of a batch from a dataset and writes them into the batch's slot.

    Process: pickled by value once, then forked.
    """

    dataset: SeededDataset
    batching: Batching
    template: Any = None

    def open(self, worker: int) -> None:
        """Prepare the dataset. It opens its own files."""
        self.dataset.open(worker)

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples `first` to `last` (exclusive) of the batch `task`; `__getitem__` is timed as decoding."""
        number, counts = BatchNumber.of(task), report.tally.counts
        writer = LeafWriter(self.template, arrays)
        for place, sample_id in enumerate(self.batching.sample_ids(number, first, last).tolist(), first):
            report.at(place)
            start_ns = perf_counter_ns()
            sample = self.dataset.sample(sample_id, seed=number.seed, epoch=number.epoch)
            counts[DECODE_NS] += perf_counter_ns() - start_ns
            writer.store(place, sample)

    def probe(self) -> bytes:
        """Return the samples' pickled template, derived from the first, second, middle and last sample."""
        num_samples = self.batching.num_samples
        template: Any = None
        shapes: dict[int, set[tuple[int, ...]]] = {}
        types: dict[int, set[type]] = {}
        for sample_id in sorted({0, min(1, num_samples - 1), num_samples // 2, num_samples - 1}):
            sample = self.dataset.sample(sample_id, seed=0, epoch=0)
            template = template_of(sample) if template is None else template
            for leaf, value in pairs(template, sample):
                found = as_array(value, leaf.path)
                shapes.setdefault(leaf.number, set()).add(() if found is None else found[0].shape)
                types.setdefault(leaf.number, set()).add(type(value))
        varying = {number for number, several in shapes.items() if len(several) > 1}
        mixed = {number for number, several in types.items() if len(several) > 1 and several <= set(NUMBER_TYPES)}
        # Pickled by value: classes of the user's script cannot be imported by name in the other process.
        pickled: bytes = cloudpickle.dumps(marked(template, varying, mixed))
        return pickled
