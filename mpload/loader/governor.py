"""The governor: makes fewer batches ahead while memory is short, and more again afterwards."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from mpload.errors import warn
from mpload.memory.budget import WORKER_BYTES
from mpload.memory.machine import MemoryGauge, MemoryRoom
from mpload.memory.usage import anonymous_bytes
from mpload.units import GIB, MIB, format_bytes

__all__ = [
    "Governed",
    "GovernedCache",
    "GovernedRing",
    "Governor",
    "GovernorState",
    "Readings",
    "decide",
    "fitting_depth",
    "lacking_bytes",
    "reserve_bytes",
]

_INTERVAL_SECONDS = 1.0
_STALLED_FRACTION = 0.2
_CALM_STALLED_FRACTION = 0.05
_PATIENCE_CHECKS = 5
_MAX_PATIENCE_CHECKS = 60
_FIRST_DEPTH = 3
"""The least number of batches in flight at first when the size of a slot is not known and has to be measured."""
_AHEAD_BYTES = 256 * MIB
"""Batches made ahead take no more, except for the least number that keeps all workers busy."""


class GovernedRing(Protocol):
    """The interface of the slot ring that the governor needs."""

    @property
    def used_bytes(self) -> int:
        """Memory currently used by the slots."""

    @property
    def num_lent(self) -> int:
        """Number of slots that the consumer holds."""

    def drop_free_memory(self) -> None:
        """Return the memory of free slots to the kernel."""


class Governed(Protocol):
    """The interface of the worker pool that the governor needs."""

    depth: int
    """Maximum number of batches in flight."""

    @property
    def ring(self) -> GovernedRing:
        """The slots in which batches are made."""

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids by name. The first process is the one that the others were forked from."""


class GovernedCache(Protocol):
    """The interface of an in-memory (tmpfs) cache that the governor needs."""

    def used_bytes(self) -> int:
        """Return the memory that the cache currently uses."""

    def shrink(self, to_bytes: int) -> None:
        """Limit the cache to `to_bytes` from now on, except for parts that cannot be freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The measurements that a decision is based on."""

    limit_bytes: int
    free_bytes: int
    own_bytes: int
    """Memory used by slots, processes and a cache in memory."""
    budget_bytes: int
    used_slots_bytes: int
    num_lent: int
    slot_bytes: int
    stalled_fraction: float = 0.0
    """Fraction of the time since the last check during which a process of this container waited for memory."""
    num_new_oom_kills: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorState:
    """The state that one decision passes on to the next."""

    depth: int
    num_calm_checks: int = 0
    patience_checks: int = _PATIENCE_CHECKS
    """Consecutive calm checks before one more batch is made ahead; doubled if the last increase came too early."""
    has_grown: bool = False


def reserve_bytes(limit_bytes: int, slot_bytes: int) -> int:
    """Return the memory that must stay free: 1/16 of the limit, at most 1 GiB, plus one slot for the next batch."""
    return min(limit_bytes // 16, GIB) + slot_bytes


def lacking_bytes(readings: Readings) -> int:
    """Return how many bytes must be freed, to restore the reserve or to get back within the budget."""
    reserve = reserve_bytes(readings.limit_bytes, max(1, readings.slot_bytes))
    return max(reserve - readings.free_bytes, readings.own_bytes - readings.budget_bytes, 0)


def fitting_depth(readings: Readings, *, max_depth: int) -> int:
    """Return the initial number of batches in flight, in [1, max_depth]: as many as fit."""
    slot = max(1, readings.slot_bytes)
    room = readings.free_bytes - reserve_bytes(readings.limit_bytes, slot)
    left = min(room, readings.budget_bytes - readings.own_bytes) + readings.used_slots_bytes
    return max(1, min(max_depth, left // slot - readings.num_lent))


def decide(readings: Readings, state: GovernorState, *, max_depth: int) -> GovernorState:
    """Return how many batches to keep in flight from now on, in [1, max_depth].

    The depth shrinks at once, by as many slots as cover the lacking bytes, less the slots that will become free anyway
    because the depth was lowered before. It grows by one after two more slots would have fitted for several checks.
    """
    slot = max(1, readings.slot_bytes)
    reserve = reserve_bytes(readings.limit_bytes, slot)
    lacking = lacking_bytes(readings)
    num_coming = max(0, readings.used_slots_bytes // slot - readings.num_lent - state.depth)
    num_less = max(0, -(-lacking // slot) - num_coming)
    # Processes also wait for memory for other reasons, for example when another job fills the page cache.
    is_tight = readings.free_bytes < max(reserve, readings.limit_bytes // 4)
    if readings.stalled_fraction > _STALLED_FRACTION and is_tight:
        num_less = max(num_less, 1)
    if readings.num_new_oom_kills:
        num_less = max(num_less, state.depth // 2)
    depth = max(1, min(state.depth, max_depth) - num_less)
    if depth < state.depth:
        patience = state.patience_checks * 2 if state.has_grown else state.patience_checks
        return GovernorState(depth=depth, patience_checks=min(patience, _MAX_PATIENCE_CHECKS))
    is_calm = (
        not num_less
        and readings.free_bytes >= reserve + 2 * slot
        and readings.own_bytes + slot <= readings.budget_bytes
        and readings.stalled_fraction < _CALM_STALLED_FRACTION
    )
    num_calm = state.num_calm_checks + 1 if is_calm else 0
    if depth < max_depth and num_calm >= state.patience_checks:
        return replace(state, depth=depth + 1, num_calm_checks=0, has_grown=True)
    return replace(state, num_calm_checks=num_calm)


class Governor:
    """Samples memory about once a second, when polled, and sets the number of batches in flight.

    A check costs about 40 microseconds, plus about 5 per process. When the governor first lowers the depth, it issues
    an `MploadWarning`. A cache in memory shrinks before the depth does, because what it loses is merely read from its
    source again, while with fewer batches ahead the consumer may have to wait.
    """

    def __init__(
        self,
        governed: Governed,
        *,
        budget_bytes: int,
        slot_bytes: int | None = None,
        first_depth: int = 0,
        least_depth: int | None = None,
        cache: GovernedCache | None = None,
        read_memory: Callable[[], MemoryRoom] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Govern a pool. Its current depth becomes the maximum.

        Args:
            governed: the pool that makes batches ahead.
            budget_bytes: memory for its slots and processes together.
            slot_bytes: memory that a slot uses; None measures it, for values of varying shape.
            first_depth: batches in flight until it has been measured, if more than three.
            least_depth: how many batches may be in flight however large they are, unless memory is short; None means
                the maximum.
            cache: a cache in memory, whose bytes count as used.
            read_memory: returns the current memory of the machine; None uses a `MemoryGauge`.
            monotonic: the clock.
        """
        self._governed = governed
        self._budget_bytes = budget_bytes
        self._slot_bytes = slot_bytes
        self._least_slot_bytes = 0
        self._cache = cache
        self._has_warned_of_cache = False
        self._read_memory = read_memory or MemoryGauge().read
        self._monotonic = monotonic
        self._max_depth = governed.depth
        self._least_depth = self._max_depth if least_depth is None else least_depth
        self._state: GovernorState | None = None
        self._checked = monotonic()
        self._last = self._read_memory()
        self.num_shrinks = 0
        """Number of times that the depth was lowered."""
        if slot_bytes is None:
            governed.depth = min(governed.depth, max(first_depth, _FIRST_DEPTH))
        else:
            self._act(self._readings(self._last, slot_bytes=slot_bytes, seconds=1.0))

    def check(self) -> None:
        """Sample memory and adjust the depth, unless the last check was less than a second ago."""
        now = self._monotonic()
        seconds = now - self._checked
        if seconds < _INTERVAL_SECONDS:
            return
        slot_bytes = self._slot_bytes or self._measured_slot_bytes()
        room = self._read_memory()
        if slot_bytes:  # 0 if nothing has been written yet
            self._act(self._readings(room, slot_bytes=slot_bytes, seconds=seconds))
        self._checked, self._last = now, room

    def resize(self, max_depth: int, *, least_depth: int | None = None) -> None:
        """Set another maximum and least number, for other workers. As many batches are made ahead as fit then."""
        slot_bytes = self._slot_bytes or self._measured_slot_bytes()
        self._least_slot_bytes = slot_bytes  # the slots that are added now are still empty
        self._max_depth = max_depth
        self._least_depth = max_depth if least_depth is None else least_depth
        if not slot_bytes:
            return
        readings = self._readings(self._read_memory(), slot_bytes=slot_bytes, seconds=1.0)
        depth = fitting_depth(readings, max_depth=self._reasonable_depth(slot_bytes))
        if self._state is not None:
            self._state = replace(self._state, depth=depth)
        if depth < self._governed.depth:
            self._governed.ring.drop_free_memory()
        self._governed.depth = depth

    def num_affordable_workers(self) -> int:
        """Return how many workers fit into memory and the budget now, the present ones included."""
        present = max(1, len(self._governed.pids) - 1)
        room = self._read_memory()
        readings = self._readings(room, slot_bytes=self._slot_bytes or self._measured_slot_bytes(), seconds=1.0)
        worker_bytes = max(WORKER_BYTES, self._processes_bytes() // present)
        reserve = reserve_bytes(room.limit_bytes, readings.slot_bytes)
        left = min(room.free_bytes - reserve, readings.budget_bytes - readings.own_bytes)
        return present + max(0, left) // worker_bytes

    def _measured_slot_bytes(self) -> int:
        ring = self._governed.ring
        return max(self._least_slot_bytes, ring.used_bytes // (self._governed.depth + ring.num_lent))

    def _readings(self, room: MemoryRoom, *, slot_bytes: int, seconds: float) -> Readings:
        ring, last = self._governed.ring, self._last
        used_bytes = ring.used_bytes
        return Readings(
            limit_bytes=room.limit_bytes,
            free_bytes=room.free_bytes,
            own_bytes=used_bytes + self._processes_bytes() + (0 if self._cache is None else self._cache.used_bytes()),
            budget_bytes=self._budget_bytes,
            used_slots_bytes=used_bytes,
            num_lent=ring.num_lent,
            slot_bytes=slot_bytes,
            stalled_fraction=(room.stalled_seconds - last.stalled_seconds) / seconds,
            num_new_oom_kills=room.num_oom_kills - last.num_oom_kills,
        )

    def _act(self, readings: Readings) -> None:
        readings = self._relieved(readings)
        max_depth = self._reasonable_depth(readings.slot_bytes)
        before = max_depth if self._state is None else min(max_depth, self._state.depth)
        if self._state is None:
            self._state = GovernorState(depth=fitting_depth(readings, max_depth=max_depth))
        else:
            # Batches turned out to be larger than before: this is no sign that memory is short.
            self._state = decide(readings, replace(self._state, depth=before), max_depth=max_depth)
        depth = self._governed.depth = self._state.depth
        if depth < self._max_depth and readings.used_slots_bytes > (depth + readings.num_lent) * readings.slot_bytes:
            self._governed.ring.drop_free_memory()
        if depth < before:
            self.num_shrinks += 1
            if self.num_shrinks == 1:
                warn(_shrink_warning(readings, before, depth))

    def _reasonable_depth(self, slot_bytes: int) -> int:
        """Return how many batches of this size may be in flight, unless memory is short."""
        return min(self._max_depth, max(self._least_depth, _AHEAD_BYTES // max(1, slot_bytes)))

    def _relieved(self, readings: Readings) -> Readings:
        """Shrink the cache by the lacking bytes, and return the readings after that."""
        lacking = lacking_bytes(readings)
        if self._cache is None or not lacking:
            return readings
        used = self._cache.used_bytes()
        with suppress(OSError):  # its folder was deleted, so that it uses no memory
            self._cache.shrink(max(0, used - lacking))
        freed = max(0, used - self._cache.used_bytes())
        if freed and not self._has_warned_of_cache:
            self._has_warned_of_cache = True
            warn(
                f"memory is short: {_cause_and_remedy(readings)[0]}. Therefore the cache in memory gives up "
                f"{format_bytes(freed)} of {format_bytes(used)}, and does not grow again in this run. Batches stay the "
                "same. Lower the max_bytes of the cache, or keep it on a disk. Shown once"
            )
        return replace(readings, free_bytes=readings.free_bytes + freed, own_bytes=readings.own_bytes - freed)

    def _processes_bytes(self) -> int:
        """Return the approximate memory of the processes. Forked ones share unchanged pages with the first."""
        first, *others = [anonymous_bytes(pid) for pid in self._governed.pids.values() if pid] or [0]
        return first + sum(max(0, other - first) for other in others)


def _cause_and_remedy(readings: Readings) -> tuple[str, str]:
    """Return why memory is short, and what to do about it."""
    reserve = reserve_bytes(readings.limit_bytes, max(1, readings.slot_bytes))
    is_budget_first = readings.budget_bytes - readings.own_bytes < readings.free_bytes - reserve
    if readings.own_bytes > readings.budget_bytes or (is_budget_first and not readings.num_new_oom_kills):
        cause = (
            f"the loader uses {format_bytes(readings.own_bytes)}, and its memory_budget is "
            f"{format_bytes(readings.budget_bytes)}"
        )
        remedy = "raise memory_budget, or lower num_workers or batch_size"
    else:
        cause = (
            f"{format_bytes(readings.free_bytes)} of {format_bytes(readings.limit_bytes)} are left, and the loader "
            f"uses {format_bytes(readings.own_bytes)}"
        )
        remedy = "give the job more memory, or lower memory_budget, num_workers or batch_size"
    if readings.num_new_oom_kills:
        cause += "; the kernel has just killed a process for lack of memory"
    return cause, remedy


def _shrink_warning(readings: Readings, before: int, depth: int) -> str:
    cause, remedy = _cause_and_remedy(readings)
    return (
        f"memory is short: {cause}. Therefore {depth} batches are made ahead instead of {before}, and more again when "
        f"there is room. Batches stay the same. To avoid this, {remedy}. Shown once"
    )
