"""What else takes the resources that a job needs: other processes, a CPU quota, swapping."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpload.memory.core_times import CoreShares, CoreTimes, core_shares
from mpload.memory.machine import cpu_periods, num_allowed_cores, pressure_seconds

__all__ = ["Contention", "PressureReading", "contention_between", "read_pressure", "shares_of_span"]

_VMSTAT = Path("/proc/vmstat")
_SWAP_COUNTERS = {"pswpin", "pswpout"}
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """What else took the resources of a job over a span of time."""

    neighbour_cores: float = 0.0
    """The cores that processes outside the job kept busy, of those that the job may use."""
    yielded_cores: float = 0.0
    """Of these, the cores that the job would get if it wanted to: others take what it leaves while its workers wait."""
    throttled_share: float = 0.0
    """The share of time in which the container's CPU quota was used up."""
    delayed_share: float = 0.0
    """The share of the workers' busy time in which they could have run but had no core. If they have several
    threads, that of the time in which these could run."""
    memory_pressure: float = 0.0
    """The share of time in which a process waited for memory."""
    swapped_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureReading:
    """What the kernel has counted until one moment. All but `at_seconds` only increase."""

    at_seconds: float
    """The moment, on the monotonic clock."""
    machine_seconds: float
    """CPU time that all processes used of the cores in this process's affinity."""
    own_seconds: float
    """CPU time that the job used."""
    num_periods: int
    num_throttled: int
    """Of so many periods of the quota, this many ended without any CPU time left."""
    memory_seconds: float
    swapped_bytes: int


def read_pressure(*, own_seconds: float) -> PressureReading:
    """Return what the kernel has counted so far. Takes about 200 microseconds.

    Args:
        own_seconds: the CPU time of the job so far.
    """
    num_periods, num_throttled = cpu_periods()
    return PressureReading(
        at_seconds=time.monotonic(),
        machine_seconds=_machine_seconds(),
        own_seconds=own_seconds,
        num_periods=num_periods,
        num_throttled=num_throttled,
        memory_seconds=pressure_seconds("memory"),
        swapped_bytes=_swapped_bytes(),
    )


def contention_between(before: PressureReading, after: PressureReading, *, num_cores: float) -> Contention:
    """Return the contention between two readings, for a job that may use `num_cores` of the cores."""
    seconds = max(after.at_seconds - before.at_seconds, 1e-9)
    own = max(0.0, after.own_seconds - before.own_seconds)
    others = max(0.0, after.machine_seconds - before.machine_seconds - own) / seconds
    spare = max(0.0, num_allowed_cores() - num_cores)  # cores that the job may not use anyway
    num_periods = after.num_periods - before.num_periods
    return Contention(
        neighbour_cores=max(0.0, others - spare),
        throttled_share=(after.num_throttled - before.num_throttled) / num_periods if num_periods > 0 else 0.0,
        memory_pressure=min(1.0, (after.memory_seconds - before.memory_seconds) / seconds),
        swapped_bytes_per_second=max(0, after.swapped_bytes - before.swapped_bytes) / seconds,
    )


def shares_of_span(
    before: Mapping[int, CoreTimes], after: Mapping[int, CoreTimes], *, begun_seconds: float
) -> dict[int, CoreShares]:
    """Return how each process spent a span that began at `begun_seconds`; some may have started in it."""
    started = CoreTimes(at_seconds=begun_seconds, running_seconds=0.0, delayed_seconds=0.0)
    return core_shares({pid: before.get(pid, started) for pid in after}, after)


def _machine_seconds() -> float:
    """Return how long the cores that this process may use have run; 0 if nothing says so, as in a chroot."""
    try:
        allowed = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else None
        times = psutil.cpu_times(percpu=True)
    except (psutil.Error, OSError):
        return 0.0
    chosen = times if allowed is None else [times[core] for core in allowed if core < len(times)]
    return sum(sum(each) - each.idle - getattr(each, "iowait", 0.0) - _counted_twice(each) for each in chosen)


def _counted_twice(times: object) -> float:
    """Return the time of guests, which the kernel adds to the time of users too."""
    return float(getattr(times, "guest", 0.0)) + float(getattr(times, "guest_nice", 0.0))


def _swapped_bytes() -> int:
    try:
        lines = _VMSTAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return _PAGE_BYTES * sum(int(value) for name, value in map(str.split, lines) if name in _SWAP_COUNTERS)
