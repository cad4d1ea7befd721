"""`BatchSource`: the batches of a map-style dataset, each made whole by one worker."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from mpload.errors import TooManyBadSamples, cause_of
from mpload.loader.default_batches import collate_on_cpu, convert_on_cpu
from mpload.loader.epochs import Epoch
from mpload.loader.map_run import MapRun
from mpload.loader.planned import BATCHES_AHEAD, num_tasks, warn_if_all_is_dropped
from mpload.loader.sample_errors import error_of_failure, sample_error
from mpload.plan.batch_number import NUM_NUMBERS, BatchNumber
from mpload.samples.batch_work import ASKED, BATCH, BadItem, BatchFailedError, BatchWork, Wanted, without
from mpload.samples.counts import DECODE_NS
from mpload.samples.parcel import unpack
from mpload.samples.policy import BadSample, BadSamples, ErrorAction, ErrorPolicy
from mpload.samples.seeded_dataset import SeededDataset
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample
from mpload.transport.forking import Forks
from mpload.transport.messages import Tally
from mpload.transport.ragged import sample_room_bytes
from mpload.transport.slots import Field, RaggedField

__all__ = ["BatchSource"]


class BatchSource:
    """The batches of a map-style dataset with a `collate_fn`, a sampler, `__getitems__` or `batch_size=None`.

    A worker makes the whole batch. What `collate_fn` returns may be anything: arrays and tensors travel as they are,
    and other values are pickled.
    """

    def __init__(
        self,
        run: MapRun,
        dataset: SeededDataset,
        *,
        collate_fn: Callable[[Any], Any] | None,
        is_single: bool,
        on_error: ErrorPolicy,
        batches_ahead: int | None,
        forks: Forks,
    ) -> None:
        """Make a source.

        Args:
            run: which samples each batch holds.
            dataset: makes the samples.
            collate_fn: makes a batch of samples; None uses `default_collate`, or `default_convert` if `is_single`.
            is_single: whether batches are single samples.
            on_error: how samples that cannot be made are handled.
            batches_ahead: batches in flight per worker; None uses 2, as a DataLoader does.
            forks: whether workers are forked from this process.
        """
        self._run = run
        self._converts = is_single and collate_fn is None
        collate = None if self._converts else collate_fn or collate_on_cpu
        self._work = BatchWork(
            dataset=dataset,
            batching=run.batching,
            collate=collate,
            is_single=is_single,
            action=ErrorAction(on_error.action),
        )
        self._bad = BadSamples(on_error, index_path=Path(run.name))
        self.name = run.name
        self.batch_size = run.batch_size
        self.slot_samples = 1
        self.samples_ahead = self.batches_ahead = batches_ahead or BATCHES_AHEAD
        self.samples_announced = 0
        self.epochs = run.epochs
        self.facts = run.facts
        self.plan_of = run.plan_of
        self.set_epoch = run.set_epoch
        self.state_after = run.state_after
        self.load_state_dict = run.load_state_dict
        self.forks = forks
        self.cache_in_memory = None
        self.reads_ahead = False
        self.row_group_bytes = 0
        self.starts_all_workers = True
        self.max_read_seconds = 0.0
        self.made_here = Tally()
        self._killed: dict[tuple[int, ...], dict[int, str]] = {}  # by batch and place: why workers died

    def image_excess(self) -> float:
        """Return 1: the ratio is unknown."""
        return 1.0

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any."""
        if not self._run.refresh():
            return False
        self._work = replace(self._work, batching=self._run.batching)
        return True

    def prepare(self) -> tuple[Field | RaggedField, ...]:
        """Return the fields of a slot: what is asked for, and the batch."""
        batch = RaggedField(name=BATCH, max_sample_bytes=sample_room_bytes(batch_size=1))
        return (batch,) if self._run.batching is not None else (ASKED, batch)

    def work(self, *, read_ahead_bytes: int, decode_bytes: int) -> BatchWork:
        """Return the work for the workers. The limits do not apply: the dataset itself reads and decodes."""
        del read_ahead_bytes, decode_bytes
        return self._work

    def tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for the workers."""
        self._begin(epoch)
        return self._run.whole_tasks(epoch)

    def batches(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch in this process. A failed batch does not end the iterator."""
        self._begin(epoch)
        return map(partial(self._make, epoch), self._run.wanted(epoch))

    def _begin(self, epoch: Epoch) -> None:
        self._bad.begin()
        if self._run.batching is not None:
            warn_if_all_is_dropped(epoch, self.plan_of(epoch), name=self._run.name)

    def rest(self, epoch: Epoch) -> Iterator[Any]:
        """Make the batches of an epoch that have no task: an empty one, of a rank that has no samples left."""
        plan = self.plan_of(epoch)
        num_left = plan.num_batches - num_tasks(plan) if self._run.batching is not None else 0
        return map(partial(self._make, epoch), [Wanted(indices=[], keys=[])] * num_left)

    def _make(self, epoch: Epoch, wanted: Wanted) -> Any:
        started_ns, bad = perf_counter_ns(), list[BadItem]()
        self._bad.count(len(wanted.indices), epoch=epoch.number)
        try:
            with self._work.dataset.kept_generators():
                batch = self._work.make(wanted, seed=epoch.seed, epoch=epoch.number, bad=bad)
        except BatchFailedError as failed:
            message = self._describe(failed.what, cause_of(failed.error))
            raise sample_error(message, failed.error) from failed.error
        for item in bad:
            self._note(item.sample_id, repr(item.index), cause_of(item.error), origin=item.error)
        busy_ns = perf_counter_ns() - started_ns
        tally = Tally(num_samples=len(wanted.indices), busy_ns=busy_ns)
        tally.counts[DECODE_NS] = busy_ns
        self.made_here.add(tally)
        return self._converted(batch)

    def present(self, epoch: Epoch, filled: FilledBatch) -> Any:
        """Return a batch made by the workers.

        Raises:
            SampleError: the batch could not be made.
            TooManyBadSamples: more samples failed than the error policy allows.
        """
        self._bad.count(filled.task.num_counted or 0, epoch=epoch.number)
        for failure in filled.failures:
            if failure.details.get("handled"):
                killed = self._killed.pop(filled.task.numbers, {})
                causes = iter(cause for _, cause in sorted(killed.items()))
                for sample_id, index, cause in failure.details.get("bad", [(-1, "?", failure.cause)]):
                    self._note(sample_id, index, cause or next(causes, "killed its worker"), origin=failure.origin)
                continue
            what = failure.details.get("what") or self._killer(filled, failure.details.get("at"))
            raise error_of_failure(self._describe(what, failure.cause), failure) from failure.origin
        return self._converted(unpack(filled.arrays[BATCH][0]))

    def instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return the same batch without the sample that killed its worker; None if that fails the batch."""
        if self._work.action is ErrorAction.RAISE or killed.at is None:
            return None
        if killed.at in killed.task[NUM_NUMBERS:]:
            return None  # the substitute kills workers as well: give up
        self._killed.setdefault(killed.task[:NUM_NUMBERS], {})[killed.at] = killed.cause
        return without(killed.task, killed.at)

    def _killer(self, filled: FilledBatch, at: int | None) -> str:
        """Return the name of the sample at place `at`, which killed its worker."""
        if at is None:
            return "a batch"
        if self._run.batching is not None:
            return f"sample {self._run.batching.sample_ids(BatchNumber.of(filled.task.numbers))[at]}"
        # The bytes come from this process.
        return f"sample {pickle.loads(filled.arrays[ASKED.name][0]).indices[at]!r:.80}"  # noqa: S301

    def _note(self, sample_id: int, index: str, cause: str, *, origin: BaseException | None) -> None:
        """Add a sample to the error report; raise if there are too many."""
        try:
            self._bad.add(
                BadSample(sample_id=sample_id, where=self.name, paths=(f"{self.name}[{index}]",), cause=cause)
            )
        except TooManyBadSamples as error:
            raise error from origin

    def _converted(self, batch: Any) -> Any:
        return convert_on_cpu(batch) if self._converts else batch

    def _describe(self, what: str, cause: str) -> str:
        return f"{what} of {self.name}: {cause}"
