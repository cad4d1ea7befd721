"""The workers' part of a map-style dataset with the user's `collate_fn` or sampler: they make whole batches."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from mpload.errors import FAILURES, cause_of
from mpload.plan.batch_number import NUM_NUMBERS, BatchNumber
from mpload.plan.batching import Batching
from mpload.samples.batch import listed_samples
from mpload.samples.counts import DECODE_NS
from mpload.samples.handlers import raise_if_from_handler
from mpload.samples.parcel import pack
from mpload.samples.policy import ErrorAction, substitute_for
from mpload.samples.seeded_dataset import SeededDataset
from mpload.transport.messages import details_of
from mpload.transport.queue import MAX_TASK_NUMBERS
from mpload.transport.slots import RaggedField
from mpload.transport.worker import ChunkReport
from mpload.units import MIB

__all__ = ["ASKED", "BATCH", "BadItem", "BatchFailedError", "BatchWork", "Wanted", "without"]

ASKED = RaggedField(name="asked", max_sample_bytes=16 * MIB, is_input=True)
"""The field for what a sampler asks for: a pickled `Wanted`."""
BATCH = "batch"
"""Name of the field for the batch: a parcel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The samples of a batch."""

    indices: Sequence[Any]
    """What the dataset is asked for, in order."""
    keys: Sequence[int]
    """By sample: the key of its random numbers."""

    @property
    def key(self) -> int:
        """The key of random numbers that belong to the whole batch."""
        return self.keys[0] if self.keys else 0


_NO_SAMPLE = -1


def without(task: tuple[int, ...], place: int) -> tuple[int, ...] | None:
    """Return a task for the same batch that does not make the sample at `place`; None if there are too many of them."""
    return (*task, place) if len(task) < MAX_TASK_NUMBERS else None


class KilledError(Exception):
    """Stands for the error of a sample that is not made again, because it kills its worker."""


class BatchFailedError(Exception):
    """A batch could not be made."""

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(what, error)
        self.what = what
        """What failed: `sample 7`."""
        self.error = error
        """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadItem:
    """A sample that could not be made, and was skipped or substituted."""

    index: Any
    key: int
    error: BaseException

    @property
    def sample_id(self) -> int:
        """The index if it is a number, else the key."""
        return self.index if isinstance(self.index, int) else self.key

    @property
    def cause(self) -> str | None:
        """Why it is bad; None if it kills its worker, because then only the parent knows the cause."""
        return None if isinstance(self.error, KilledError) else cause_of(self.error)


@dataclass(kw_only=True)
class BatchWork:
    """Makes whole batches. What travels is a value of any form, as a parcel.

    Process: pickled by value once, then forked; or forked from the process of the loader.
    """

    dataset: SeededDataset
    batching: Batching | None
    """Which samples a batch holds; None if each task brings its `Wanted` with it."""
    collate: Callable[[Any], Any] | None
    """Makes a batch from a list of samples, or from one sample if `is_single`; None leaves them as they are."""
    is_single: bool
    """Whether batches are single samples."""
    action: ErrorAction
    """What happens to a sample that cannot be made. If `__getitems__` or `collate` fails, the batch does."""

    def open(self, worker: int) -> None:
        """Prepare the dataset. It opens its own files."""
        self.dataset.open(worker)

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make the batch `task`, which is the only one in its slot; making its samples is timed as decoding."""
        del last
        number = BatchNumber.of(task[:NUM_NUMBERS])
        if self.batching is None:
            # The bytes come from the parent, through the loader's own memory, so it is safe to unpickle them.
            wanted = pickle.loads(arrays[ASKED.name][first])  # noqa: S301
        else:
            sample_ids = self.batching.sample_ids(number).tolist()
            wanted = Wanted(indices=sample_ids, keys=sample_ids)
        report.tally.num_samples = len(wanted.indices)
        bad: list[BadItem] = []
        try:
            killers = task[NUM_NUMBERS:]
            batch = self.make(wanted, seed=number.seed, epoch=number.epoch, bad=bad, report=report, killers=killers)
            with _named(f"the batch of {listed_samples(wanted.indices)}"):
                pack(batch, lambda num_bytes: arrays[BATCH].room(first, (num_bytes,)))
        except BatchFailedError as failed:
            report.failed(first, cause_of(failed.error), {**details_of(failed.error), "what": failed.what})
            return
        if bad:
            listed = [(item.sample_id, repr(item.index), item.cause) for item in bad]
            report.failed(first, cause_of(bad[0].error), {**details_of(bad[0].error), "handled": True, "bad": listed})

    def make(
        self,
        wanted: Wanted,
        *,
        seed: int,
        epoch: int,
        bad: list[BadItem],
        report: ChunkReport | None = None,
        killers: Sequence[int] = (),
    ) -> Any:
        """Return a batch, and add the samples that were skipped or substituted to `bad`.

        Args:
            wanted: the samples.
            seed: the run's seed.
            epoch: number of the epoch.
            bad: where bad samples are noted.
            report: notes the sample that is made next; None outside of workers.
            killers: places of samples that count as failed, since they kill their worker.

        Raises:
            BatchFailedError: the user's code raised an error.
        """
        dataset, started_ns = self.dataset, perf_counter_ns()
        samples: Any
        at: Callable[[int], None] = (lambda _: None) if report is None else report.at
        if hasattr(dataset.dataset, "__getitems__") and not self.is_single:
            at(_NO_SAMPLE)  # a death is no single sample's fault
            with _named(listed_samples(wanted.indices)):
                samples = dataset.samples(list(wanted.indices), seed=seed, epoch=epoch, key=wanted.key)
        else:
            samples = []
            for place, (index, key) in enumerate(zip(wanted.indices, wanted.keys, strict=True)):
                at(place)
                try:
                    if place in killers:
                        raise KilledError
                    samples.append(dataset.sample(index, seed=seed, epoch=epoch, key=key))
                except FAILURES as error:
                    raise_if_from_handler(error)
                    if self.action is ErrorAction.RAISE:
                        raise BatchFailedError(f"sample {index!r:.80}", error) from error
                    bad.append(BadItem(index=index, key=key, error=error))
                    if self.action is ErrorAction.SUBSTITUTE:
                        samples.append(self._substitute(wanted, place, seed=seed, epoch=epoch, bad=bad))
            if bad and not samples:
                raise BatchFailedError(f"all of {listed_samples(wanted.indices)}", bad[0].error) from bad[0].error
        at(_NO_SAMPLE)
        if report is not None:
            report.tally.counts[DECODE_NS] += perf_counter_ns() - started_ns
        batch = samples[0] if self.is_single else samples
        if self.collate is None:
            return batch
        with _named(f"collate_fn on {listed_samples(wanted.indices)}"):
            return dataset.collated(self.collate, batch, seed=seed, epoch=epoch, key=wanted.key)

    def _substitute(self, wanted: Wanted, place: int, *, seed: int, epoch: int, bad: list[BadItem]) -> Any:
        """Return another sample: of the whole dataset, or of the same batch if a sampler chose its samples."""
        others: list[tuple[Any, int]]
        if self.batching is None:
            others = list(zip(wanted.indices, wanted.keys, strict=True))
            others = others[place + 1 :] + others[:place]
        else:
            num_samples = self.batching.num_samples
            found = substitute_for(wanted.keys[place], range(num_samples), seed=seed, epoch=epoch)
            others = list(zip(found, found, strict=True))
        first = bad[-1]
        for index, key in others:
            try:
                return self.dataset.sample(index, seed=seed, epoch=epoch, key=key)
            except FAILURES as error:
                raise_if_from_handler(error)
                bad.append(BadItem(index=index, key=key, error=error))
        what = f"sample {first.index!r:.80} and all {len(others)} substitutes for it"
        raise BatchFailedError(what, first.error) from first.error


class _named:  # noqa: N801  used like a function
    """Turns an error into a `BatchFailedError` that says what failed."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, FAILURES):
            raise_if_from_handler(error)
            raise BatchFailedError(self._what, error) from error
