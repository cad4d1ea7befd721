"""`MemoryMonitor`: the memory of a process tree over time, and which of its processes grow.

PSS is the figure to watch. RSS counts a page once for each process that maps it. Workers that share an index or a ring
of slots therefore look many times larger than they are, and a shared page that one worker after another touches looks
like a leak in each of them. PSS divides each page by the number of processes that map it, so its sum over the tree is
the memory that the tree uses.
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
_CORE_SHARE = 0.0085  # fraction of one core spent on reading the processes
_NUM_WINDOWS = 8
_T_95 = 2.45  # two-sided Student's t, 95 %, for _NUM_WINDOWS - 2 degrees of freedom
_MIN_GROWTH_BYTES = 2 * MIB  # allocators, caches and lazy imports add less; that is not a leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The memory of every process in a tree at about the same moment."""

    seconds: float
    """Time since the monitor was made."""
    processes: tuple[ProcessMemory, ...]
    """One entry per process."""
    usage: SystemUsage | None = None
    """What uses the memory of the container that the root of the tree is in."""

    @property
    def total(self) -> ProcessMemory:
        """The sum over all processes. In the sum of RSS, shared pages count repeatedly."""
        return sum_memory(self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A process whose private memory grows steadily."""

    pid: int
    """Id of the process."""
    name: str
    """Name of the process, as `ps` shows it."""
    bytes_per_second: float
    """Rate of growth."""
    low_bytes_per_second: float
    """Lower end of the 95 % confidence interval."""
    high_bytes_per_second: float
    """Upper end of the 95 % confidence interval."""

    def __str__(self) -> str:
        low, rate, high = (
            format_bytes(60 * value)
            for value in (self.low_bytes_per_second, self.bytes_per_second, self.high_bytes_per_second)
        )
        return f"{self.name} (pid {self.pid}) grows by {rate}/min (95 %: {low} to {high})"


class MemoryMonitor:
    r"""Samples the memory of a process and all its descendants at regular intervals, in a thread.

        with mpload.MemoryMonitor(interval_seconds=1.0) as monitor:
            train()
        print(monitor.peak.pss_bytes, *monitor.growth(), sep="\n")

    It uses less than 1 % of a core. The kernel takes 0.1 to 1 ms to compute the PSS of one process, so in a large tree
    the processes take turns. A process whose RSS has changed is read more often; the others keep their last figures.

    Args:
        pid: id of the root of the tree; None means this process.
        interval_seconds: time between two readings.

    Memory: at most 4,096 readings. When that is reached, every second one is dropped and from then on only every second
        new reading is kept, and so on.
    Process: can watch any process of the same user. Outside Linux, PSS may be RSS (see `process_memory`).

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
        """The maximum so far of each figure, summed over the tree. Dropped readings count too."""
        self._readings: list[Reading] = []
        self._stride = 1
        self._num_read = 0
        self._gauge = MemoryGauge(cgroup_members=Path(f"/proc/{self.pid}/cgroup"))
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="mpload-monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def readings(self) -> Sequence[Reading]:
        """All readings that were kept, oldest first."""
        return tuple(self._readings)

    def growth(self) -> list[Growth]:
        """Return the processes whose memory grows steadily; see `find_growth`."""
        return find_growth(self._readings)

    def read(self) -> Reading:
        """Take a reading now. The thread calls this at each interval."""
        processes = self._tree.read(max_seconds=self.interval_seconds * _CORE_SHARE)
        seconds = time.monotonic() - self._started
        reading = Reading(seconds=seconds, processes=processes, usage=self._gauge.usage())
        total = reading.total
        peak = {
            field: max(getattr(self.peak, field), getattr(total, field))
            for field in ("rss_bytes", "pss_bytes", "uss_bytes", "swap_bytes", "clean_bytes")
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
        while not self._stop.wait(self.interval_seconds):
            self.read()


def find_growth(readings: Iterable[Reading]) -> list[Growth]:
    """Return the processes whose private memory grows, the fastest first.

    The first third of a process's readings is ignored as warm-up. The rest is divided into eight windows. A line is
    fitted to the smallest USS of each window, which ignores memory that the process allocates and frees again. Pages of
    mapped files are left out if the kernel can drop them: see `ProcessMemory.clean_bytes`. A process grows if the slope
    is positive with 95 % confidence (Student's t), each window's value is higher than the previous one's, and the total
    rise exceeds 2 MiB.
    """
    times: dict[tuple[int, str], list[float]] = {}
    sizes: dict[tuple[int, str], list[int]] = {}
    latest: dict[tuple[int, str], ProcessMemory] = {}
    for reading in readings:
        for process in reading.processes:
            key = process.pid, process.name
            if latest.get(key) is not process:  # the same object means that it was not read again
                latest[key] = process
                times.setdefault(key, []).append(reading.seconds)
                sizes.setdefault(key, []).append(process.uss_bytes - process.clean_bytes)
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
    """Write a CSV file with one line per process and reading.

    Columns: `seconds`, the fields of `ProcessMemory`, and the fields of the reading's `SystemUsage`, prefixed with
    `system_` (empty if there is none). All figures but seconds and pid are in bytes.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(_rows(readings))


def write_parquet(readings: Iterable[Reading], path: Path) -> None:
    """Write the table of `write_csv` as a Parquet file: `seconds` is float64, `name` string, and the rest int64."""
    # Imported here because the import starts a thread, and the monitored process may fork workers.
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
    """Return the slope of the line, its 95 % margin, and whether each window's minimum is above the previous one's."""
    windows = np.array_split(np.arange(len(seconds)), _NUM_WINDOWS)
    lowest = np.array([window[np.argmin(sizes[window])] for window in windows])
    x, y = seconds[lowest], sizes[lowest]
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residuals = y - y.mean() - slope * centred
    error = math.sqrt(float(residuals @ residuals) / (len(x) - 2) / spread)
    return slope, _T_95 * error, bool(np.all(np.diff(y) > KIB))
