"""`MemoryMonitor`: the memory of a process tree over time, and which of its processes grow.

PSS is what to look at. RSS counts a page once per process that maps it, so workers that share one index or one ring of
slots look many times as large as they are, and a shared page that is touched by one worker after another looks like a
leak in each of them. PSS divides each page among those who map it, and its sum over the tree is what the tree takes.
"""

import csv
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.memory.machine import MemoryGauge, SystemUsage
from mpload.memory.process_tree import ProcessTree
from mpload.memory.usage import ProcessMemory, sum_memory
from mpload.units import KIB, MIB, format_bytes

__all__ = ["Growth", "MemoryMonitor", "Reading", "find_growth", "write_csv", "write_parquet"]

_MAX_READINGS = 4096
_CORE_SHARE = 0.0085  # of one core, for reading the processes
_NUM_WINDOWS = 8
_T_95 = 2.45  # two-sided Student's t, 95 %, for _NUM_WINDOWS - 2 degrees of freedom
_MIN_GROWTH_BYTES = 2 * MIB  # what allocators, caches and lazy imports add is no leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The memory of every process of a tree at about one moment."""

    seconds: float
    """Since the monitor was started."""
    processes: tuple[ProcessMemory, ...]
    """One entry for each process."""
    usage: SystemUsage | None = None
    """Of the container around the root of the tree."""

    @property
    def total(self) -> ProcessMemory:
        """The sum over all processes; that of RSS counts shared pages repeatedly."""
        return sum_memory(self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A process whose private memory grows steadily."""

    pid: int
    """Of the process."""
    name: str
    """Of the process, as `ps` shows it."""
    bytes_per_second: float
    """How fast it grows."""
    low_bytes_per_second: float
    """Lower end of the 95 % confidence interval."""
    high_bytes_per_second: float
    """Its upper end."""

    def __str__(self) -> str:
        low, rate, high = (
            format_bytes(60 * value)
            for value in (self.low_bytes_per_second, self.bytes_per_second, self.high_bytes_per_second)
        )
        return f"{self.name} (pid {self.pid}) grows by {rate}/min (95 %: {low} to {high})"


class MemoryMonitor:
    r"""Reads the memory of a process and all its descendants at intervals, in a thread.

        with mpload.MemoryMonitor(interval_seconds=1.0) as monitor:
            train()
        print(monitor.peak.pss_bytes, *monitor.growth(), sep="\n")

    It keeps below 1 % of a core. Reading the PSS of one process takes the kernel 0.1 to 1 ms, so in a large tree the
    processes take turns, those whose RSS has changed more often; the others keep their last figures for a while.

    Args:
        pid: the root of the tree; None is this process.
        interval_seconds: time between two readings.

    Memory: at most 4,096 readings; when they are full every second one is dropped, and so ever after.
    Process: watches any process of the same user, on Linux in full; elsewhere PSS may be RSS (see `process_memory`).

    Raises:
        ArgumentError: `interval_seconds` is not positive.
    """

    def __init__(self, pid: int | None = None, *, interval_seconds: float = 1.0) -> None:
        if not 0 < interval_seconds < math.inf:
            raise ArgumentError(f"interval_seconds must be positive, got {interval_seconds}")
        self._tree = ProcessTree(pid)
        self.pid = self._tree.pid
        self.interval_seconds = interval_seconds
        self.peak = ProcessMemory(pid=self.pid, name="peak", rss_bytes=0, pss_bytes=0, uss_bytes=0, swap_bytes=0)
        """Of each figure of the whole tree the largest so far, dropped readings included."""
        self._readings: list[Reading] = []
        self._stride = 1
        self._num_read = 0
        self._gauge = MemoryGauge(cgroup_members=Path(f"/proc/{self.pid}/cgroup"))
        self._started = time.monotonic()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._wanted.clear()
        self._thread = threading.Thread(target=self._run, name="mpload-monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def readings(self) -> Sequence[Reading]:
        """What was read so far, oldest first."""
        return tuple(self._readings)

    def growth(self) -> list[Growth]:
        """Return the processes that leak; see `find_growth`."""
        return find_growth(self._readings)

    def read(self) -> Reading:
        """Read now; the thread does this at each interval."""
        processes = self._tree.read(max_seconds=self.interval_seconds * _CORE_SHARE)
        seconds = time.monotonic() - self._started
        reading = Reading(seconds=seconds, processes=processes, usage=self._gauge.usage())
        total = reading.total
        peak = {
            field: max(getattr(self.peak, field), getattr(total, field))
            for field in ("rss_bytes", "pss_bytes", "uss_bytes", "swap_bytes")
        }
        self.peak = ProcessMemory(pid=self.pid, name="peak", **peak)
        if self._num_read % self._stride == 0:
            self._readings.append(reading)
        self._num_read += 1
        if len(self._readings) >= _MAX_READINGS:
            self._readings = self._readings[::2]
            self._stride *= 2
        return reading

    def _run(self) -> None:
        while not self._wanted.wait(self.interval_seconds):
            self.read()


def find_growth(readings: Iterable[Reading]) -> list[Growth]:
    """Return the processes whose private memory grows, the fastest first.

    The first third of a process's life is warming up and left out. The rest is cut into eight windows, of each the
    smallest USS is taken (what a process allocates and frees again says nothing), and a line laid through the eight. A
    process grows where the line's slope is positive with 95 % confidence (Student's t), each window is above the one
    before, and the rise is more than 2 MiB.
    """
    times: dict[tuple[int, str], list[float]] = {}
    sizes: dict[tuple[int, str], list[int]] = {}
    latest: dict[tuple[int, str], ProcessMemory] = {}
    for reading in readings:
        for process in reading.processes:
            key = process.pid, process.name
            if latest.get(key) is not process:  # figures that were kept from the reading before say nothing new
                latest[key] = process
                times.setdefault(key, []).append(reading.seconds)
                sizes.setdefault(key, []).append(process.uss_bytes)
    found = []
    for (pid, name), seconds in times.items():
        warm = np.asarray(seconds) >= seconds[0] + (seconds[-1] - seconds[0]) / 3
        if np.count_nonzero(warm) < 2 * _NUM_WINDOWS:
            continue
        slope, margin, rises = _slope(np.asarray(seconds)[warm], np.asarray(sizes[pid, name], np.float64)[warm])
        grown = slope * (seconds[-1] - seconds[0]) * 2 / 3
        if slope - margin > 0 and rises and grown > _MIN_GROWTH_BYTES:
            found.append(
                Growth(
                    pid=pid,
                    name=name,
                    bytes_per_second=slope,
                    low_bytes_per_second=slope - margin,
                    high_bytes_per_second=slope + margin,
                )
            )
    return sorted(found, key=lambda growth: -growth.bytes_per_second)


def write_csv(readings: Iterable[Reading], path: Path) -> None:
    """Write a line for each process of each reading.

    Columns: `seconds`, the fields of `ProcessMemory`, and those of the reading's `SystemUsage` with `system_` before
    their names (empty where it has none). All but seconds, pid and name are bytes.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(_rows(readings))


def write_parquet(readings: Iterable[Reading], path: Path) -> None:
    """Write what `write_csv` writes as a Parquet file: `seconds` float64, `name` string, all else int64."""
    # Its import starts a thread, which a process that is monitored and forks workers should not have.
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    types: dict[str, pa.DataType] = {"seconds": pa.float64(), "name": pa.string()}
    schema = pa.schema([(column, types.get(column, pa.int64())) for column in _COLUMNS])
    parquet.write_table(pa.Table.from_pylist(list(_rows(readings)), schema=schema), path)


_PROCESS_FIELDS, _SYSTEM_FIELDS = (tuple(field.name for field in fields(kind)) for kind in (ProcessMemory, SystemUsage))
_COLUMNS = ("seconds", *_PROCESS_FIELDS, *(f"system_{name}" for name in _SYSTEM_FIELDS))


def _rows(readings: Iterable[Reading]) -> Iterator[dict[str, Any]]:
    for reading in readings:
        system = {f"system_{name}": getattr(reading.usage, name, None) for name in _SYSTEM_FIELDS}
        for process in reading.processes:
            yield {"seconds": round(reading.seconds, 3), **asdict(process), **system}


def _slope(seconds: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float, bool]:
    """Return the slope through the smallest size of each window, its 95 % margin, and whether all windows rise."""
    windows = np.array_split(np.arange(len(seconds)), _NUM_WINDOWS)
    lowest = np.array([window[np.argmin(sizes[window])] for window in windows])
    x, y = seconds[lowest], sizes[lowest]
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residuals = y - y.mean() - slope * centred
    error = math.sqrt(float(residuals @ residuals) / (len(x) - 2) / spread)
    return slope, _T_95 * error, bool(np.all(np.diff(y) > KIB))
