"""The governor: keeps fewer batches ahead while memory runs short, and more again when it does not."""

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from mpload.errors import MploadWarning
from mpload.memory.machine import MemoryGauge, MemoryRoom
from mpload.memory.usage import anonymous_bytes
from mpload.units import GIB, format_bytes

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
"""Batches to measure slots by where nobody knows before what they will take."""


class GovernedRing(Protocol):
    """The slots, as the governor sees them."""

    @property
    def used_bytes(self) -> int:
        """Memory that they take now."""

    @property
    def num_lent(self) -> int:
        """Slots that the consumer holds."""

    def drop_free_memory(self) -> None:
        """Give the memory of free slots back to the kernel."""


class Governed(Protocol):
    """What makes batches ahead."""

    depth: int
    """Batches under way at most."""

    @property
    def ring(self) -> GovernedRing:
        """Where they are made."""

    @property
    def pids(self) -> Mapping[str, int]:
        """Its processes by name, the one that the others were forked from first."""


class GovernedCache(Protocol):
    """A cache that lies in memory (tmpfs)."""

    def used_bytes(self) -> int:
        """Memory that it takes now."""

    def shrink(self, to_bytes: int) -> None:
        """Take at most this much from now on, beside what cannot be given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What a decision is made from."""

    limit_bytes: int
    free_bytes: int
    own_bytes: int
    """What slots, processes and a cache in memory take."""
    budget_bytes: int
    used_slots_bytes: int
    num_lent: int
    slot_bytes: int
    stalled_fraction: float = 0.0
    """Share of the time since the last check in which a process of this container waited for memory."""
    num_new_oom_kills: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorState:
    """What a decision leaves for the next one."""

    depth: int
    num_calm_checks: int = 0
    patience_checks: int = _PATIENCE_CHECKS
    """Calm checks in a row before one more batch is made ahead; doubled when growing turned out too early."""
    has_grown: bool = False


def reserve_bytes(limit_bytes: int, slot_bytes: int) -> int:
    """Return what must stay free: a sixteenth of the limit, a gigabyte at most, and the batch that is begun next."""
    return min(limit_bytes // 16, GIB) + slot_bytes


def lacking_bytes(readings: Readings) -> int:
    """Return how many bytes are to be given back: of the reserve, or what is taken beyond the budget."""
    reserve = reserve_bytes(readings.limit_bytes, max(1, readings.slot_bytes))
    return max(reserve - readings.free_bytes, readings.own_bytes - readings.budget_bytes, 0)


def fitting_depth(readings: Readings, *, max_depth: int) -> int:
    """Return how many batches can be under way here, in [1, max_depth]: where to begin."""
    slot = max(1, readings.slot_bytes)
    room = readings.free_bytes - reserve_bytes(readings.limit_bytes, slot)
    left = min(room, readings.budget_bytes - readings.own_bytes) + readings.used_slots_bytes
    return max(1, min(max_depth, left // slot - readings.num_lent))


def decide(readings: Readings, state: GovernorState, *, max_depth: int) -> GovernorState:
    """Return how many batches to keep ahead from now on, in [1, max_depth].

    Shrinks at once, by as many slots as the bytes that are lacking, less those slots that will come free anyway because
    the depth was lowered before. Grows by one, when two more would have fitted for some checks.
    """
    slot = max(1, readings.slot_bytes)
    reserve = reserve_bytes(readings.limit_bytes, slot)
    lacking = lacking_bytes(readings)
    num_coming = max(0, readings.used_slots_bytes // slot - readings.num_lent - state.depth)
    num_less = max(0, -(-lacking // slot) - num_coming)
    # Waiting for memory has other causes too, such as page cache that somebody else fills.
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
    """Reads the memory about once a second, when asked, and sets the depth of what it governs.

    A check costs some 40 microseconds and some 5 a process. The first time that it lowers the depth it says so, by a
    `MploadWarning`. A cache in memory gives way first: what it loses is read from its source, while with fewer batches
    ahead the consumer may wait.
    """

    def __init__(
        self,
        governed: Governed,
        *,
        budget_bytes: int,
        slot_bytes: int | None = None,
        cache: GovernedCache | None = None,
        read_memory: Callable[[], MemoryRoom] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take charge of `governed`, whose depth now is the most that it will have.

        Args:
            governed: what makes batches ahead.
            budget_bytes: what its slots and processes may take together.
            slot_bytes: what a slot takes; None: as measured (values of varying shape).
            cache: one that lies in memory, whose bytes count too.
            read_memory: None: a `MemoryGauge` does.
            monotonic: the clock.
        """
        self._governed = governed
        self._budget_bytes = budget_bytes
        self._slot_bytes = slot_bytes
        self._cache = cache
        self._has_warned_of_cache = False
        self._read_memory = read_memory or MemoryGauge().read
        self._monotonic = monotonic
        self._max_depth = governed.depth
        self._state: GovernorState | None = None
        self._checked = monotonic()
        self._last = self._read_memory()
        self.num_shrinks = 0
        """How often the depth was lowered."""
        if slot_bytes is None:
            governed.depth = min(governed.depth, _FIRST_DEPTH)
        else:
            self._act(self._readings(self._last, slot_bytes=slot_bytes, seconds=1.0))

    def check(self) -> None:
        """Read the memory and act on it, unless the last check was less than a second ago."""
        now = self._monotonic()
        seconds = now - self._checked
        if seconds < _INTERVAL_SECONDS:
            return
        ring = self._governed.ring
        slot_bytes = self._slot_bytes or ring.used_bytes // (self._governed.depth + ring.num_lent)
        room = self._read_memory()
        if slot_bytes:  # else nothing was written yet
            self._act(self._readings(room, slot_bytes=slot_bytes, seconds=seconds))
        self._checked, self._last = now, room

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
        before = self._max_depth if self._state is None else self._state.depth
        if self._state is None:
            self._state = GovernorState(depth=fitting_depth(readings, max_depth=self._max_depth))
        else:
            self._state = decide(readings, self._state, max_depth=self._max_depth)
        depth = self._governed.depth = self._state.depth
        if depth < self._max_depth and readings.used_slots_bytes > (depth + readings.num_lent) * readings.slot_bytes:
            self._governed.ring.drop_free_memory()
        if depth < before:
            self.num_shrinks += 1
            if self.num_shrinks == 1:
                warnings.warn(_say(readings, before, depth), MploadWarning, stacklevel=4)

    def _relieved(self, readings: Readings) -> Readings:
        """Have the cache give up what is lacking; return the readings after that."""
        lacking = lacking_bytes(readings)
        if self._cache is None or not lacking:
            return readings
        used = self._cache.used_bytes()
        with suppress(OSError):  # deleted by somebody: then it takes nothing
            self._cache.shrink(max(0, used - lacking))
        freed = max(0, used - self._cache.used_bytes())
        if freed and not self._has_warned_of_cache:
            self._has_warned_of_cache = True
            warnings.warn(
                f"memory runs short: {_why(readings)[0]}. So the cache in memory gives up {format_bytes(freed)} of "
                f"{format_bytes(used)}, and grows no more in this run; batches stay the same. Lower its max_bytes, or "
                "keep it on a disk. Shown once",
                MploadWarning,
                stacklevel=5,
            )
        return replace(readings, free_bytes=readings.free_bytes + freed, own_bytes=readings.own_bytes - freed)

    def _processes_bytes(self) -> int:
        """Return about what its processes take: forked ones share with the first what they have not changed."""
        first, *others = [anonymous_bytes(pid) for pid in self._governed.pids.values() if pid] or [0]
        return first + sum(max(0, other - first) for other in others)


def _why(readings: Readings) -> tuple[str, str]:
    """Return why memory runs short, and what helps."""
    if readings.own_bytes > readings.budget_bytes:
        why = (
            f"the loader takes {format_bytes(readings.own_bytes)}, its memory_budget is "
            f"{format_bytes(readings.budget_bytes)}"
        )
        remedy = "raise memory_budget, or lower num_workers or batch_size"
    else:
        why = (
            f"{format_bytes(readings.free_bytes)} of {format_bytes(readings.limit_bytes)} are left, and the loader "
            f"takes {format_bytes(readings.own_bytes)}"
        )
        remedy = "give the job more memory, or lower memory_budget, num_workers or batch_size"
    if readings.num_new_oom_kills:
        why += "; the kernel has just killed for lack of memory"
    return why, remedy


def _say(readings: Readings, before: int, depth: int) -> str:
    why, remedy = _why(readings)
    return (
        f"memory runs short: {why}. So {depth} batches are made ahead instead of {before}, and more again when there "
        f"is room; batches stay the same. To avoid this, {remedy}. Shown once"
    )
