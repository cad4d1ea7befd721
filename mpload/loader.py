"""`MPLoader`: the batches of an `MPDataset` through shared memory, made by worker processes that cost little."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mpload.budget import MIN_SLOTS, MemoryBudget
from mpload.dataset import MPDataset
from mpload.errors import ArgumentError, SampleError, TooManyBadSamples
from mpload.governor import Governor
from mpload.memory import MemoryGauge, address_space_bytes, num_oom_kills, num_usable_cores
from mpload.policy import ErrorAction, substitute_for
from mpload.progress import Epoch
from mpload.tensors import as_tensors
from mpload.transport.batches import BatchTask, FilledBatch, KilledSample, PoolOptions
from mpload.transport.messages import Timings
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import RaggedField, SlotLayout
from mpload.work import BatchNumber, Form, PipelineWork, columns_of, forms_of

__all__ = ["LoaderStats", "MPLoader"]

_SAMPLES_AHEAD = 64
"""Samples that are under way for each worker, so that none waits for the consumer."""


@dataclass(slots=True, kw_only=True)
class LoaderStats:
    """What an `MPLoader` has done since it was made."""

    num_batches: int = 0
    num_samples: int = 0
    wait_seconds: float = 0.0
    """Time that the consumer waited for batches."""
    elapsed_seconds: float = 0.0
    """Time from the start of each iteration to the last batch that it handed out."""
    timings: Timings = field(default_factory=Timings)
    """Time of all workers, stage by stage."""
    num_copied_batches: int = 0
    """Batches that were copied because the consumer held on to the slots of earlier ones."""
    num_deaths: int = 0
    """Worker processes that died and were replaced."""

    @property
    def samples_per_second(self) -> float:
        """Samples handed out per second."""
        return self.num_samples / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the consumer waited."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0


class MPLoader:
    """Iterates an `MPDataset` by worker processes that write samples straight into shared memory.

    The same batches as the dataset gives alone or in a stock DataLoader, bit for bit, whatever `num_workers` is and
    whichever workers die: a dead one is replaced and its part done again. A batch is a view of its slot, which is used
    again when the last of its tensors has died. Hold as many as you like: beyond the slots they are copies.

    Iterating again goes on to the next epoch. `with MPLoader(...) as loader`, or `close()`, ends the workers; so does
    the loader's own end.

    Args:
        dataset: with a `batch_size`.
        num_workers: processes; `"auto"`: one per core that this process may use; 0 makes batches in this process.
        memory_budget: bytes, or a text like `"4GiB"`, for slots and workers together; `"auto"`: half of what is
            available. Bounds the number of batches made ahead; fewer are, and a warning says so, while memory runs
            short.
        options: how workers are treated: timeouts, restarts, fresh processes in place of forks.

    Memory: slots as the budget allows, and some MB for each worker, whatever the script has imported.
    Process: belongs to the process and thread that made it. Linux only, except with `num_workers=0`.

    Raises:
        ArgumentError: an argument breaks a rule, the budget is too small, or the pipeline cannot be pickled.
        SampleError: none of the first samples could be made, where one has to be made to know its shape.
        WorkerError: workers cannot be started.
    """

    def __init__(
        self,
        dataset: MPDataset,
        *,
        num_workers: int | str = "auto",
        memory_budget: int | str = "auto",
        options: PoolOptions | None = None,
    ) -> None:
        if dataset.batch_size is None:
            raise ArgumentError("MPLoader makes whole batches: pass batch_size= to the MPDataset")
        if num_workers == "auto":
            num_workers = num_usable_cores()
        if not isinstance(num_workers, int) or num_workers < 0:
            raise ArgumentError(f"num_workers must be 'auto' or at least 0, got {num_workers!r}")
        self.dataset = dataset
        self.num_workers = num_workers
        self.memory_budget = MemoryBudget.parse(memory_budget, available_bytes=MemoryGauge().look().free_bytes)
        self._options = options or PoolOptions()
        self._batch_size = dataset.batch_size
        self._epoch: Epoch | None = None
        self._num_received = 0
        self.iteration = 0
        """Number of the iteration that is under way."""
        self._stream: Generator[FilledBatch, None, None] | None = None
        self._last_asked: float | None = None
        self._stats = LoaderStats()
        self._forms: list[Form] = []
        self._pool: WorkerPool | None = None
        self._governor: Governor | None = None
        self._is_closed = False
        if num_workers:
            self._forms = forms_of(dataset.pipeline)
            self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of batches that the next iteration yields."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        if self._is_closed:
            raise ArgumentError("the loader is closed. Make a new one")
        self._stop()
        self._epoch = epoch = self.dataset.progress.begin(worker=0, num_workers=1)
        self._num_received = 0
        return _Iteration(self, self._made_by_workers(epoch) if self.num_workers else self._made_here(epoch))

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next iteration reads; see `MPDataset.set_epoch`."""
        self.dataset.set_epoch(epoch)
        self._epoch = None

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that were received, not those made ahead."""
        return self.dataset.state_dict(None if self._epoch is None else self._num_received)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken; see `MPDataset.load_state_dict`."""
        self._stop()
        self.dataset.load_state_dict(state_dict)
        self._epoch = None

    def stats(self) -> LoaderStats:
        """Return a copy of what was done so far."""
        stats = replace(self._stats, timings=replace(self._stats.timings))
        if self._pool is not None:
            stats.num_copied_batches += self._pool.stats.num_copied_batches
            stats.num_deaths += self._pool.num_deaths
        return stats

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the zygote and the workers, by the names that `ps` shows."""
        return {} if self._pool is None else self._pool.pids

    def release(self) -> None:
        """Give workers and slots back until the next iteration, which starts them anew (some 0.3 s).

        For a validation loader between two validations. Batches that are still held keep their memory.
        """
        self._stop()
        self._stats = self.stats()
        if self._pool is not None:
            self._pool.close()
            self._pool = self._governor = None

    def close(self) -> None:
        """End the workers for good. May be called again."""
        self._is_closed = True
        self.release()

    def take(self, batches: Iterator[Sequence[Any]], *, iteration: int) -> Any:
        """Return the next of an iteration's batches, as tensors."""
        if iteration != self.iteration:
            raise ArgumentError("a newer iteration of this loader was begun, or it was released: use that one")
        asked = time.monotonic()
        if self._governor is not None:
            self._governor.look()
        columns = next(batches)
        now = time.monotonic()
        # Nothing here may keep a batch: its slot is free as soon as the user lets go of it.
        self._stats.wait_seconds += now - asked
        self._stats.elapsed_seconds += now - (self._last_asked or asked)
        self._last_asked = now
        self._stats.num_batches += 1
        self._num_received += 1
        return as_tensors(columns)

    def _stop(self) -> None:
        """End the iteration that is under way, and whatever was made ahead for it."""
        self.iteration += 1
        self._last_asked = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _made_here(self, epoch: Epoch) -> Iterator[Sequence[Any]]:
        dataset = self.dataset
        plan, order = dataset.plan_of(epoch), dataset.order_of(epoch)
        for number in range(plan.num_batches):
            sample_ids = order.sample_ids(plan.positions(number))
            self._stats.num_samples += len(sample_ids)
            yield dataset.pipeline.batch(sample_ids, seed=epoch.seed, epoch=epoch.number).columns

    def _made_by_workers(self, epoch: Epoch) -> Iterator[Sequence[Any]]:
        pool = self._pool or self._start()
        plan, batch_size = self.dataset.plan_of(epoch), self._batch_size
        # All batches but a ragged last one are full; an empty one is nothing for a worker.
        last_size = len(plan.positions(plan.num_batches - 1)) if plan.num_batches else 0
        num_tasks = plan.num_batches - (not last_size and plan.num_batches > 0)
        numbers = (
            BatchNumber(seed=epoch.seed, epoch=epoch.number, start=epoch.position, batch=batch)
            for batch in range(num_tasks)
        )
        self._stream = pool.stream(
            BatchTask(
                numbers=number.numbers, num_samples=batch_size if number.batch < plan.num_batches - 1 else last_size
            )
            for number in numbers
        )
        empty = (
            self.dataset.pipeline.batch(np.empty(0, np.int64), seed=epoch.seed, epoch=epoch.number).columns
            for _ in range(plan.num_batches - num_tasks)
        )
        return chain(map(self._columns, self._stream), empty)

    def _columns(self, filled: FilledBatch) -> list[Any]:
        self._stats.num_samples += filled.task.num_samples
        self._stats.timings.add(filled.timings)
        return columns_of(self._forms, filled.arrays, self._kept(filled))

    def _kept(self, filled: FilledBatch) -> NDArray[np.int64] | None:
        """Return the samples of a batch that were made, None where all were; raise where that is the policy."""
        if not filled.failures:
            return None
        number = BatchNumber.of(filled.task.numbers)
        for failure in filled.failures:
            if failure.details.get("skipped"):
                continue
            if failure.details.get("type") == TooManyBadSamples.__name__:
                raise TooManyBadSamples(failure.cause)
            if not failure.details.get("killed"):
                raise SampleError(failure.cause)
            (sample_id,) = self._work().sample_ids(number, failure.sample, failure.sample + 1).tolist()
            bad = self.dataset.pipeline.describe(self.dataset.index[sample_id], failure.cause)
            if self.dataset.pipeline.policy.action is ErrorAction.RAISE:
                raise SampleError(str(bad))
            self.dataset.pipeline.write_down(bad, epoch=number.epoch)
        failed = [failure.sample for failure in filled.failures]
        kept = np.setdiff1d(np.arange(filled.task.num_samples), failed)
        if not kept.size:
            raise SampleError(f"{self.dataset.index.path}: all {len(failed)} samples of a batch failed")
        return kept

    def _instead_of(self, killed: KilledSample) -> tuple[int, ...] | None:
        """Return the task that fills the place of a sample which kills workers, None to leave it a failure."""
        if self.dataset.pipeline.policy.action is not ErrorAction.SUBSTITUTE:
            return None
        number = BatchNumber.of(killed.task)
        if number.substitute >= 0:
            return None  # a substitute that kills too: two are enough
        (sample_id,) = self._work().sample_ids(number, killed.sample, killed.sample + 1).tolist()
        bad = self.dataset.pipeline.describe(self.dataset.index[sample_id], killed.cause)
        self.dataset.pipeline.write_down(bad, epoch=number.epoch)
        others = substitute_for(sample_id, num_samples=len(self.dataset.index), seed=number.seed, epoch=number.epoch)
        return replace(number, substitute=others[0]).numbers

    def _work(self) -> PipelineWork:
        dataset = self.dataset
        return PipelineWork(
            pipeline=dataset.pipeline,
            order=dataset.shuffle,
            batch_size=self._batch_size,
            topology=dataset.topology,
            tail=dataset.tail,
        )

    def _start(self) -> WorkerPool:
        layout = SlotLayout(num_samples=self._batch_size, fields=tuple(form.field for form in self._forms))
        self._pool = WorkerPool(
            self._work(),
            layout,
            num_slots=self._num_slots(layout),
            num_workers=self.num_workers,
            options=self._options,
            on_killed=self._instead_of,
            count_oom_kills=num_oom_kills,
        )
        self._governor = Governor(
            self._pool,
            budget_bytes=self.memory_budget.total_bytes,
            slot_bytes=None if self._is_ragged else layout.slot_bytes,
        )
        return self._pool

    @property
    def _is_ragged(self) -> bool:
        return any(isinstance(form.field, RaggedField) for form in self._forms)

    def _num_slots(self, layout: SlotLayout) -> int:
        plan = self.memory_budget.divide(
            num_slots=MIN_SLOTS + -(-_SAMPLES_AHEAD * self.num_workers // self._batch_size),
            slot_bytes=0 if self._is_ragged else layout.slot_bytes,  # such slots reserve far more than they come to use
            num_workers=self.num_workers,
            slot_address_bytes=layout.slot_bytes,
            address_bytes=address_space_bytes(),
        )
        return plan.num_slots


class _Iteration(Iterator[Any]):
    """One iteration of a loader, which lives as long as this is in use."""

    def __init__(self, loader: MPLoader, batches: Iterator[Sequence[Any]]) -> None:
        self._loader = loader
        self._batches = batches
        self._number = loader.iteration

    def __next__(self) -> Any:
        return self._loader.take(self._batches, iteration=self._number)
