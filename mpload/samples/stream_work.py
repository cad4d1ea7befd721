"""The workers' part of an iterable dataset: each draws batches from an iterator of its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mpload.errors import FAILURES, cause_of
from mpload.plan.batch_number import BatchNumber
from mpload.samples.batch_work import BATCH
from mpload.samples.data_pipes import is_data_pipe, shared_pipe
from mpload.samples.parcel import pack
from mpload.samples.seeded_dataset import SeededDataset
from mpload.transport.messages import details_of
from mpload.transport.worker import ChunkReport

__all__ = ["Drawn", "StreamWork", "batches_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a worker draws for a task."""

    worker: int
    num_samples: int
    """0 if the worker's iterator is at its end."""
    batch: Any = None
    num_dropped: int = 0
    """Samples that were too few for the last batch."""


def batches_of(
    samples: Iterable[Any],
    *,
    batch_size: int | None,
    drop_last: bool,
    collate: Callable[[Any], Any] | None,
    on_dropped: Callable[[int], object],
) -> Iterator[tuple[int, Any]]:
    """Yield the number of samples and the batch of each batch; of each sample if `batch_size` is None.

    `on_dropped` is called with the number of samples that `drop_last` drops.
    """
    iterator = _each(samples)

    def draw() -> tuple[int, Any] | None:
        taken = list(islice(iterator, batch_size or 1))
        if taken and drop_last and batch_size is not None and len(taken) < batch_size:
            on_dropped(len(taken))
            return None
        if not taken:
            return None
        batch = taken[0] if batch_size is None else taken
        try:
            return len(taken), batch if collate is None else collate(batch)
        except StopIteration as error:  # `iter` would take it for the end
            raise RuntimeError("collate_fn raised StopIteration") from error

    # Nothing here refers to a batch or to its samples while the next ones are made.
    yield from iter(draw, None)


def _each(samples: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples with one call of `__iter__`. `islice` calls it for each batch, and some datasets start anew."""
    yield from samples


@dataclass(kw_only=True)
class StreamWork:
    """Draws the batches of an iterable dataset. A task names the epoch, and gets the worker's next batch.

    Process: pickled by value once, then forked; or forked from the process of the loader.
    """

    dataset: SeededDataset
    batch_size: int | None
    drop_last: bool
    collate: Callable[[Any], Any] | None
    _worker: int = field(default=0, init=False)
    _num_dropped: int = field(default=0, init=False)
    _epoch: tuple[int, int] | None = field(default=None, init=False)
    _batches: Iterator[tuple[int, Any]] = field(default_factory=lambda: iter(()), init=False)

    def open(self, worker: int) -> None:
        """Prepare the dataset."""
        self._worker = worker
        self.dataset.open(worker)

    def explain_end(self, death: str) -> str:
        """Return why a death of a worker ends the epoch, and what to do."""
        return (
            f"{type(self.dataset.dataset).__name__}: {death}. The samples of an iterable dataset that a worker had are "
            "lost with it, so it is not replaced. To find the cause, pass num_workers=0 or set PYTHONFAULTHANDLER=1. "
            "If a batch may take longer, pass timeout=. Or make the dataset map-style: its workers are replaced"
        )

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Draw the next batch of the epoch of `task`."""
        del last
        number = BatchNumber.of(task)
        try:
            drawn = self._drawn(number)
            pack(drawn, lambda num_bytes: arrays[BATCH].room(first, (num_bytes,)))
            report.tally.num_samples = drawn.num_samples
        except FAILURES as error:
            report.failed(first, cause_of(error), details_of(error))

    def _drawn(self, number: BatchNumber) -> Drawn:
        if (number.epoch, number.start) != self._epoch:
            self._epoch = number.epoch, number.start
            samples = self.dataset.begun(epoch=number.epoch, key=self._worker, collate=self.collate)
            if is_data_pipe(samples):
                count = self.dataset.num_workers
                samples = shared_pipe(
                    samples, seed=number.seed, epoch=number.epoch, worker=self._worker, num_workers=count
                )
            self._num_dropped = 0
            self._batches = batches_of(
                samples,
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                collate=self._collated,
                on_dropped=self._note_dropped,
            )
        num_samples, batch = next(self._batches, (0, None))
        return Drawn(worker=self._worker, num_samples=num_samples, batch=batch, num_dropped=self._num_dropped)

    def _note_dropped(self, num_samples: int) -> None:
        self._num_dropped = num_samples

    def _collated(self, samples: Any) -> Any:
        if self.collate is None:
            return samples
        with self.dataset.hidden():
            return self.collate(samples)
