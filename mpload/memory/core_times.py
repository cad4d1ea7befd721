"""How long processes run on a core, wait for one, and sleep, as the kernel counts it.

A process that sleeps waits for something other than a core: storage, a lock, a timer, or work. More processes than
cores make such work faster. They gain nothing if the processes run, or wait for a core.
"""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

__all__ = ["CoreShares", "CoreTimes", "core_shares", "read_core_times", "read_core_times_of"]

_CPUCLOCK_SCHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreTimes:
    """What the kernel has counted for one process until one moment. The delay only increases while threads live."""

    at_seconds: float
    """The moment, on the monotonic clock."""
    running_seconds: float
    """Time on a core, summed over the threads of the process."""
    delayed_seconds: float
    """Time in which a thread could have run, but had no core. 0 if the kernel does not count it.

    The core may have been busy with another process, or the CPU quota of a container may have been used up.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreShares:
    """How a process spent a span of time, as fractions of the span."""

    seconds: float
    """Length of the span."""
    running: float
    """On a core. More than 1 if several threads ran at the same time."""
    delayed: float
    """Able to run, but without a core. May exceed 1 in the same way."""

    @property
    def sleeping(self) -> float:
        """Neither running nor waiting for a core, in [0, 1]."""
        return max(0.0, 1.0 - self.running - self.delayed)


def read_core_times(pid: int) -> CoreTimes | None:
    """Return the times of a process, or None if it has ended. Takes about 20 microseconds for a process of one thread.

    The time on a core is that of all threads, also of those that have ended. The delay comes from
    `/proc/PID/task/*/schedstat`, which threads take with them when they end.
    """
    now, running_seconds = time.monotonic(), _cpu_seconds(pid)
    if running_seconds is None:
        return None
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  a Path takes longer than the rest of this function
    except OSError:
        threads = []
    delayed_ns = sum(_delayed_ns(f"/proc/{pid}/task/{thread}/schedstat") for thread in threads)
    return CoreTimes(at_seconds=now, running_seconds=running_seconds, delayed_seconds=delayed_ns * 1e-9)


def read_core_times_of(pids: Iterable[int]) -> dict[int, CoreTimes]:
    """Return the times of several processes by process id, without those that have ended."""
    found = ((pid, read_core_times(pid)) for pid in pids)
    return {pid: times for pid, times in found if times is not None}


def core_shares(before: Mapping[int, CoreTimes], after: Mapping[int, CoreTimes]) -> dict[int, CoreShares]:
    """Return how each process spent the time between two readings. Processes that are not in both are left out."""
    return {pid: _shares(before[pid], times) for pid, times in after.items() if pid in before}


def _shares(before: CoreTimes, after: CoreTimes) -> CoreShares:
    seconds = max(after.at_seconds - before.at_seconds, 1e-9)
    return CoreShares(
        seconds=seconds,
        running=max(0.0, after.running_seconds - before.running_seconds) / seconds,
        # A thread that has ended takes its delay with it.
        delayed=max(0.0, after.delayed_seconds - before.delayed_seconds) / seconds,
    )


def _cpu_seconds(pid: int) -> float | None:
    """Return the time of a process on cores. None if it has ended."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may not have this clock
            return time.clock_gettime(((~pid) << 3) | _CPUCLOCK_SCHED)  # as clock_getcpuclockid(3) does
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(used.user + used.system)


def _delayed_ns(path: str) -> int:
    """Return the nanoseconds of a thread without a core; 0 if it has ended, or if that is unknown."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        fields = os.read(fd, 256).split()
    except OSError:  # the thread has ended in the meantime
        return 0
    finally:
        os.close(fd)
    return int(fields[1]) if len(fields) >= 2 else 0
