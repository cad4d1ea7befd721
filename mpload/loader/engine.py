"""A loader's workers: how many, with how many slots, inside the budget, both adjusted while they run."""

from dataclasses import dataclass
from typing import Self

from mpload.loader.governor import Governor
from mpload.loader.scaling import Scaler
from mpload.loader.source import Source
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES, MemoryBudget, divide
from mpload.memory.machine import address_space_bytes, num_oom_kills
from mpload.storage.read_ahead import DEFAULT_AHEAD_BYTES
from mpload.telemetry.stats import LoaderStats
from mpload.transport.batches import PoolOptions
from mpload.transport.board import MAX_WORKERS
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, RaggedField, SlotLayout

__all__ = ["Engine", "WorkerRange"]

_SAMPLES_AHEAD = 64
"""Samples that are under way for each worker, so that none waits for the consumer."""
_WORKERS_PER_CORE = 8
_MAX_WORKERS = 64
"""More than cores, that is: those that wait for storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRange:
    """How many workers there are, and how many there may come to be."""

    now: int
    most: int

    @classmethod
    def auto(cls, budget: MemoryBudget, *, num_cores: int, least_slots_bytes: int) -> Self:
        """Begin with one a core; up to eight a core may come to be, within half of the budget.

        Args:
            budget: of slots and workers.
            num_cores: that they have.
            least_slots_bytes: what slots take at least.
        """
        room = (budget.total_bytes - least_slots_bytes) // WORKER_BYTES
        now = max(1, min(num_cores, room, MAX_WORKERS))
        return cls(now=now, most=max(now, min(_WORKERS_PER_CORE * num_cores, _MAX_WORKERS, room // 2)))


class Engine:
    """The pool of a loader, and what adjusts it."""

    def __init__(
        self,
        source: Source,
        fields: tuple[Field | RaggedField, ...],
        *,
        num_workers: int | None,
        num_cores: int,
        budget: MemoryBudget,
        options: PoolOptions,
    ) -> None:
        """Start workers.

        Args:
            source: what they make.
            fields: of a slot.
            num_workers: how many; None: as many as help.
            num_cores: that they have.
            budget: of all that they take.
            options: how they are treated.
        """
        self._source = source
        self._budget = budget
        self._layout = SlotLayout(num_samples=source.batch_size, fields=fields)
        self._is_ragged = any(isinstance(field, RaggedField) for field in fields)
        # Slots of values of varying shape reserve far more than they come to use.
        self._slot_bytes = 0 if self._is_ragged else self._layout.slot_bytes
        if num_workers is None:
            workers = WorkerRange.auto(budget, num_cores=num_cores, least_slots_bytes=MIN_SLOTS * self._slot_bytes)
        else:
            workers = WorkerRange(now=num_workers, most=num_workers)
        ahead_bytes = self._read_ahead_bytes(workers.most)
        plan = divide(
            budget,
            num_slots=_depth(workers.most, source.batch_size),
            slot_bytes=self._slot_bytes,
            num_workers=workers.most,
            slot_address_bytes=self._layout.slot_bytes,
            address_bytes=address_space_bytes(),
            read_ahead_bytes=ahead_bytes,
        )
        self.pool = WorkerPool(
            source.work(read_ahead_bytes=max(1, ahead_bytes), decode_bytes=plan.decode_bytes),
            self._layout,
            num_slots=plan.num_slots,
            num_workers=workers.now,
            options=options,
            on_killed=source.instead_of,
            count_oom_kills=num_oom_kills,
        )
        self.governor = self._govern()
        self._scaler: Scaler | None = None
        if workers.most > workers.now:
            self._scaler = Scaler(self._resize, num_workers=workers.now, max_workers=workers.most)

    def adjust(self, stats: LoaderStats) -> None:
        """Adjust the number of batches made ahead and of workers to what was seen since the last call."""
        self.governor.check()
        if self._scaler is not None:
            self._scaler.check(stats)

    def _govern(self) -> Governor:
        self.pool.depth = min(self.pool.ring.num_slots, _depth(self.pool.num_workers, self._source.batch_size))
        return Governor(
            self.pool,
            budget_bytes=self._budget.total_bytes,
            slot_bytes=self._slot_bytes or None,
            cache=self._source.cache_in_memory,
        )

    def _resize(self, num_workers: int) -> None:
        self.pool.num_workers = num_workers
        self.governor = self._govern()

    def _read_ahead_bytes(self, num_workers: int) -> int:
        """What each worker may have read ahead: 16 MiB, or all of them a quarter of what the least slots leave."""
        if not self._source.reads_ahead:
            return 0
        least_bytes = num_workers * WORKER_BYTES + MIN_SLOTS * self._slot_bytes
        spare_bytes = max(0, self._budget.total_bytes - least_bytes)
        return min(DEFAULT_AHEAD_BYTES, spare_bytes // (4 * num_workers))


def _depth(num_workers: int, batch_size: int) -> int:
    return MIN_SLOTS + -(-_SAMPLES_AHEAD * num_workers // batch_size)
