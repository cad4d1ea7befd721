"""The workers and slots of a loader. Their numbers fit the memory budget, and are adjusted while the loader runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from mpload.errors import warn
from mpload.loader.governor import Governor
from mpload.loader.outages import OutageWarnings
from mpload.loader.scaler import Scaler
from mpload.loader.source import Source
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES, MemoryBudget, divide
from mpload.memory.machine import address_space_bytes, knows_free_memory, num_oom_kills
from mpload.samples.map_work import PARCELS
from mpload.storage.parquet import ROW_GROUPS_BYTES
from mpload.storage.read_ahead import DEFAULT_AHEAD_BYTES
from mpload.telemetry.counting import Waited
from mpload.transport.batches import PoolOptions
from mpload.transport.board import MAX_WORKERS
from mpload.transport.chunks import CHUNK_SAMPLES
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, RaggedField, SlotLayout

__all__ = ["Engine", "WorkerRange"]

_CHECK_SECONDS = 0.2
_WORKERS_PER_CORE = 8
_UNKNOWN_MEMORY = (
    "nothing says how much memory is free, as /proc is not mounted. Therefore the loader makes no fewer batches ahead "
    "when memory is short. Mount it: mount -t proc proc /proc"
)
_MAX_WAITING = 64
"""The limit for workers that mostly wait, however few cores there are. With many cores it is two per core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRange:
    """The initial number of workers and its upper limit."""

    initial: int
    limit: int

    @classmethod
    def auto(
        cls, budget: MemoryBudget, *, num_cores: int, least_slots_bytes: int, worker_bytes: int = WORKER_BYTES
    ) -> Self:
        """Start with one worker per core, and allow more for work that waits.

        Up to eight per core may take half of the budget. If there are few cores, 64 may take a quarter of it.

        Args:
            budget: memory for slots and workers.
            num_cores: cores available to the workers.
            least_slots_bytes: minimum memory for slots, in bytes.
            worker_bytes: memory for a worker.
        """
        num_fitting = (budget.total_bytes - least_slots_bytes) // worker_bytes
        initial = max(1, min(num_cores, num_fitting, MAX_WORKERS))
        useful = min(max(_MAX_WAITING, 2 * num_cores), MAX_WORKERS)
        limit = min(useful, max(min(_WORKERS_PER_CORE * num_cores, num_fitting // 2), num_fitting // 4))
        return cls(initial=initial, limit=max(initial, limit))


class Engine:
    """The worker pool of a loader, and the governor and scaler that adjust it."""

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
        """Start the workers.

        Args:
            source: the source of the batches.
            fields: the fields of a slot.
            num_workers: number of workers; None adjusts it while the loader runs.
            num_cores: cores available to the workers.
            budget: memory for slots, workers and read-ahead.
            options: how workers are treated.
        """
        if not knows_free_memory():
            warn(_UNKNOWN_MEMORY)
        self._source = source
        self._budget = budget
        self._layout = SlotLayout(num_samples=source.slot_samples, fields=fields)
        self._slot_bytes = _known_slot_bytes(self._layout)
        if num_workers is None:
            workers = WorkerRange.auto(
                budget,
                num_cores=num_cores,
                least_slots_bytes=MIN_SLOTS * self._slot_bytes,
                worker_bytes=WORKER_BYTES + source.row_group_bytes,
            )
        else:
            workers = WorkerRange(initial=num_workers, limit=num_workers)
        ahead_bytes = self._read_ahead_bytes(workers.limit)
        plan = divide(
            budget,
            num_slots=_depth(workers.limit, source),
            slot_bytes=self._slot_bytes,
            num_workers=workers.limit,
            slot_address_bytes=self._layout.slot_bytes,
            address_bytes=address_space_bytes(),
            read_ahead_bytes=ahead_bytes,
            keeps_row_groups=source.row_group_bytes > 0,
        )
        self.pool = WorkerPool(
            source.work(read_ahead_bytes=max(1, ahead_bytes), decode_bytes=plan.decode_bytes),
            self._layout,
            num_slots=plan.num_slots,
            num_workers=workers.initial,
            options=replace(options, sample_timeout_seconds=options.sample_timeout_seconds + source.max_read_seconds),
            on_killed=source.instead_of,
            count_oom_kills=num_oom_kills,
            on_notice=OutageWarnings(),
            forks=source.forks,
        )
        self.governor = self._govern()
        self.pool.announce_up_to(source.samples_announced * workers.initial)
        self._due = 0.0
        self._scaler: Scaler | None = None
        if workers.limit > workers.initial:
            self._scaler = Scaler(self.pool, num_cores=num_cores, max_workers=workers.limit)

    def adjust(self, waited: Callable[[], Waited]) -> None:
        """Adjust the number of batches made ahead and the number of workers, if that is due.

        Args:
            waited: returns how long the consumer has waited.
        """
        if (now := time.monotonic()) < self._due or self.pool.is_closed:
            return
        self._due = now + _CHECK_SECONDS
        self.governor.check()
        if self._scaler is None:
            return
        wanted = self._scaler.check(waited(), affordable=self.governor.num_affordable_workers)
        if wanted != self.pool.num_workers:
            self.pool.num_workers = wanted
            self.pool.announce_up_to(self._source.samples_announced * wanted)
            depth = min(self.pool.ring.num_slots, _depth(wanted, self._source))
            self.governor.resize(depth, least_depth=_least_depth(wanted, self._source))

    def note_layout(self) -> None:
        """Take the size of slots into account as soon as the first batches have shown what is in them."""
        if self._layout is not self.pool.ring.newest_layout:
            self._layout = self.pool.ring.newest_layout
            self._slot_bytes = _known_slot_bytes(self._layout)
            self.governor = self._govern()

    def _govern(self) -> Governor:
        self.pool.depth = min(self.pool.ring.num_slots, _depth(self.pool.num_workers, self._source))
        first_depth = 0
        if self._source.starts_all_workers:
            num_chunks = -(-self._source.slot_samples // CHUNK_SAMPLES)
            first_depth = 1 - (-self.pool.num_workers // num_chunks)
        return Governor(
            self.pool,
            budget_bytes=self._budget.total_bytes,
            slot_bytes=self._slot_bytes or None,
            first_depth=first_depth,
            least_depth=_least_depth(self.pool.num_workers, self._source),
            cache=self._source.cache_in_memory,
        )

    def _read_ahead_bytes(self, num_workers: int) -> int:
        """Return the memory per worker for read-ahead and row groups: for all workers a quarter of the spare budget.

        Read-ahead gets at most 16 MiB, and row groups get at most 89 MiB, but always the room for one.
        """
        source = self._source
        if not source.reads_ahead:
            return 0
        least_bytes = num_workers * WORKER_BYTES + MIN_SLOTS * self._slot_bytes
        spare_bytes = max(0, self._budget.total_bytes - least_bytes)
        most_bytes = DEFAULT_AHEAD_BYTES + (ROW_GROUPS_BYTES if source.row_group_bytes else 0)
        return max(source.row_group_bytes, min(most_bytes, spare_bytes // (4 * num_workers)))


def _known_slot_bytes(layout: SlotLayout) -> int:
    """Return the memory that a slot uses; 0 if that is unknown: ragged fields reserve far more than they use.

    Those for parcels are empty as soon as there are fields for the samples.
    """
    ragged = {field.name for field in layout.fields if isinstance(field, RaggedField)}
    return 0 if ragged - {PARCELS} else layout.fixed_bytes


def _depth(num_workers: int, source: Source) -> int:
    return MIN_SLOTS + -(-source.samples_ahead * num_workers // source.slot_samples)


def _least_depth(num_workers: int, source: Source) -> int:
    """Return how many batches to make ahead however large they are."""
    return MIN_SLOTS + source.batches_ahead * num_workers
