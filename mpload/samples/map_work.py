"""The workers' part of a map-style dataset: they write its samples, leaf by leaf, into the arrays of a slot."""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Protocol

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.plan.sample_rng import SampleRng
from mpload.samples.counts import DECODE_NS
from mpload.samples.leaf_arrays import LeafWriter
from mpload.samples.leaves import NUMBER_TYPES, as_array, marked, pairs, template_of
from mpload.samples.transforms import seed_opencv
from mpload.transport.worker import ChunkReport

__all__ = ["MapDataset", "MapWork", "kept_generators"]

_STREAM = 2  # of a sample's randomness; the pipeline of an index uses 0, 1 and 3


class MapDataset(Protocol):
    """A map-style dataset, in torch's terms."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, sample_id: int, /) -> Any:
        """Return a sample."""
        ...


@dataclass(kw_only=True)
class MapWork:
    """Reads the samples of a batch from a dataset and writes them into the batch's slot.

    The global generators of `random`, NumPy, OpenCV and (if it is imported) torch are seeded for each sample. The
    numbers that `__getitem__` draws from them therefore depend on seed, epoch and sample alone.

    Process: pickled by value once, then forked.
    """

    dataset: MapDataset
    batching: Batching
    template: Any = None
    _rng: SampleRng = field(default_factory=lambda: SampleRng(seed=0, epoch=0), repr=False)

    def open(self) -> None:
        """Do nothing: the dataset opens its own files."""

    def sample(self, sample_id: int, *, seed: int, epoch: int) -> Any:
        """Return a sample of an epoch."""
        if (self._rng.seed, self._rng.epoch) != (seed, epoch):
            self._rng = SampleRng(seed=seed, epoch=epoch)
        words = self._rng.for_sample(sample_id, stream=_STREAM).integers(0, 1 << 32, size=3).tolist()
        while True:
            random.seed(words[0])
            np.random.seed(words[1])  # noqa: NPY002  the generator that datasets draw from
            torch = sys.modules.get("torch")
            if torch is not None:
                torch.default_generator.manual_seed(words[2])
            seed_opencv(seed=seed, epoch=epoch, sample_id=sample_id)
            sample = self.dataset[sample_id]
            if torch is sys.modules.get("torch"):
                return sample
            # `__getitem__` has just imported torch and may have drawn from its unseeded generator. Call it again.

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples `first` to `last` (exclusive) of the batch `task`; `__getitem__` is timed as decoding."""
        number, counts = BatchNumber.of(task), report.tally.counts
        writer = LeafWriter(self.template, arrays)
        for place, sample_id in enumerate(self.batching.sample_ids(number, first, last).tolist(), first):
            report.at(place)
            start_ns = perf_counter_ns()
            sample = self.sample(sample_id, seed=number.seed, epoch=number.epoch)
            counts[DECODE_NS] += perf_counter_ns() - start_ns
            writer.store(place, sample)

    def probe(self) -> bytes:
        """Return the samples' pickled template, derived from the first, second, middle and last sample."""
        num_samples = self.batching.num_samples
        template: Any = None
        shapes: dict[int, set[tuple[int, ...]]] = {}
        types: dict[int, set[type]] = {}
        for sample_id in sorted({0, min(1, num_samples - 1), num_samples // 2, num_samples - 1}):
            sample = self.sample(sample_id, seed=0, epoch=0)
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


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore this process's global generators afterwards, so that making a sample does not affect the script's."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(states[2])
