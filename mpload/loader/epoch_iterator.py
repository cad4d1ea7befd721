"""One iteration of an `MPDataset` in one process, and its position."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import SampleError
from mpload.index.index import records_of
from mpload.loader.epochs import Epoch
from mpload.loader.frameworks import samples_of_a_batch
from mpload.loader.index_runs import IndexRuns
from mpload.loader.planned import warn_if_all_is_dropped
from mpload.loader.sample_errors import is_outage
from mpload.plan.plan import Plan

if TYPE_CHECKING:
    from mpload.index.index import Record

__all__ = ["Cursor", "EpochIterator"]

_BLOCK_SAMPLES = 256  # without batch_size, this many samples are looked up in the index at a time


@dataclass(slots=True, kw_only=True)
class Cursor:
    """The position of an iteration in this process."""

    epoch: Epoch
    """The current epoch, from the position where the iteration began."""
    next_batch: int
    """Number of the next batch; without batch_size, the number of samples that this worker has yielded."""
    is_read_ahead: bool
    """Whether the reader may have taken more batches than the user has received."""


class EpochIterator(Iterator[Any]):
    """One worker's part of an epoch: every `num_workers`-th batch of this rank."""

    def __init__(self, runs: IndexRuns, cursor: Cursor, *, worker: int, num_workers: int) -> None:
        self._runs = runs
        self._cursor = cursor
        self._worker = worker
        self._num_workers = num_workers
        self._has_begun = False
        self._begin()
        self._run.pipeline.bad.begin()

    def _begin(self) -> None:
        self._run = self._runs.of(self._cursor.epoch)
        if self._worker:  # of a DataLoader: the first one tells the user
            self._run.pipeline.notices.turn_off()
        self._plan = self._run.plan_of(self._cursor.epoch)
        self._order = self._run.order_of(self._cursor.epoch)
        self._run_samples = 0  # length of a run of consecutive samples for this worker; set at the first sample
        # Without batch_size: the next samples, each with the number of samples yielded up to and including it.
        self._block: deque[tuple[int, Record]] = deque()

    def __next__(self) -> Any:
        start = self._cursor.next_batch
        if not self._has_begun:  # not earlier: a DataLoader's worker ends if it cannot begin to iterate
            self._run.check_weights(self._worker)
            self._has_begun = True
            if not self._worker:
                warn_if_all_is_dropped(self._cursor.epoch, self._plan, name=self._run.index.path)
        try:
            return self._next_batch() if self._run.batch_size else self._next_sample()
        except SampleError as error:
            if is_outage(error):
                self._cursor.next_batch = start
                self._block.clear()
            raise

    def _next_batch(self) -> Any:
        cursor = self._cursor
        if cursor.next_batch >= self._plan.num_batches:
            raise StopIteration
        number = cursor.next_batch
        self._run.use_batch(self._plan, number)
        cursor.next_batch += self._num_workers  # advanced first, so that a failed batch is not repeated
        return self._run.batch(
            self._sample_ids(number),
            seed=cursor.epoch.seed,
            epoch=cursor.epoch.number,
            following=lambda: self._sample_ids(cursor.next_batch),
        )

    def _sample_ids(self, batch: int) -> NDArray[np.int64]:
        positions = self._plan.positions(batch) if batch < self._plan.num_batches else np.empty(0, np.int64)
        return self._order.sample_ids(positions)

    def _next_sample(self) -> Any:
        cursor = self._cursor
        pipeline = self._run.pipeline
        while self._block or self._look_up_block():
            cursor.next_batch, record = self._block.popleft()
            with pipeline.lent_generators():
                made = pipeline.sample(record, seed=cursor.epoch.seed, epoch=cursor.epoch.number)
            if made is not None:
                return self._run.presenter.present_sample(made[1])
        raise StopIteration

    def _look_up_block(self) -> bool:
        """Look up this worker's next samples, and return whether there are any."""
        cursor = self._cursor
        self._run_samples = self._run_samples or samples_of_a_batch()
        before = np.arange(cursor.next_batch, cursor.next_batch + _BLOCK_SAMPLES)
        runs, places = np.divmod(before, self._run_samples)
        numbers = (runs * self._num_workers + self._worker) * self._run_samples + places
        numbers = numbers[numbers < self._plan.num_batches]
        assert isinstance(self._plan, Plan), "buckets have a batch size"
        sample_ids = self._order.sample_ids(self._plan.single_positions(numbers))
        records = records_of(self._run.index, sample_ids)
        if self._run.pipeline.ahead.is_active:
            self._run.pipeline.plan_ahead(records)
        self._block.extend(zip((before + 1).tolist(), records, strict=False))
        if not self._block:
            cursor.next_batch += len(numbers)  # a ragged last sample belongs to another rank
        return bool(self._block)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker, for torchdata's StatefulDataLoader."""
        return {"start": self._runs.state_at(self._cursor.epoch), "next_batch": self._cursor.next_batch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the saved position of this worker. The number of workers must be the same."""
        epoch = self._runs.restored(state_dict["start"])
        epoch = self._runs.epochs.enter(epoch, worker=self._worker, num_workers=self._num_workers)
        self._cursor.epoch, self._cursor.next_batch = epoch, state_dict["next_batch"]
        self._begin()
