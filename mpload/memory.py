"""What processes really take from the machine's memory.

RSS counts a shared page once per process, so ten workers that share one index look ten times as large as they are: a
shared index looks like a leak. PSS divides each shared page by the processes that map it, so that the sum over a tree
is what the tree takes. USS is what no other process shares: what would come free if the process ended.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpload.units import KIB

__all__ = [
    "ProcessMemory",
    "available_bytes",
    "num_usable_cores",
    "process_memory",
    "sum_memory",
    "tree_memory",
]

_MEMORY_FILES = (  # a cgroup's limit and usage, and the name of its coldest page cache: version 2, then version 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The memory of one process, or of several together, at one moment."""

    pid: int
    name: str
    rss_bytes: int
    """Resident pages, shared ones included."""
    pss_bytes: int
    """Resident pages, each shared one divided by the number of processes that share it."""
    uss_bytes: int
    """Resident pages that no other process has."""
    swap_bytes: int


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Return the memory of a process; None is this one.

    Linux: from `/proc/PID/smaps_rollup`, about 0.1 ms; elsewhere from psutil, where PSS is RSS if the system knows no
    PSS.

    Raises:
        psutil.NoSuchProcess: there is no such process, or it has just ended.
        psutil.AccessDenied: it belongs to another user.
    """
    process = psutil.Process(pid)
    try:
        fields = _smaps_rollup(process.pid)
    except FileNotFoundError:
        if not process.is_running() or Path("/proc/self/smaps_rollup").exists():
            raise psutil.NoSuchProcess(process.pid) from None
        full = process.memory_full_info()
        return ProcessMemory(
            pid=process.pid,
            name=process.name(),
            rss_bytes=full.rss,
            pss_bytes=getattr(full, "pss", full.rss),
            uss_bytes=full.uss,
            swap_bytes=getattr(full, "swap", 0),
        )
    except ProcessLookupError:  # what reading the file of a process that has just ended gives
        raise psutil.NoSuchProcess(process.pid) from None
    except PermissionError:
        raise psutil.AccessDenied(process.pid) from None
    return ProcessMemory(
        pid=process.pid,
        name=process.name(),
        rss_bytes=fields["Rss"],
        pss_bytes=fields["Pss"],
        uss_bytes=fields["Private_Clean"] + fields["Private_Dirty"] + fields.get("Private_Hugetlb", 0),
        swap_bytes=fields.get("Swap", 0),
    )


def tree_memory(pid: int | None = None) -> list[ProcessMemory]:
    """Return the memory of a process and of all its descendants; those that end meanwhile are left out."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    found = []
    for process in processes:
        try:
            found.append(process_memory(process.pid))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def sum_memory(processes: Iterable[ProcessMemory]) -> ProcessMemory:
    """Return the sum over `processes`, with the pid of the first one. The sum of RSS counts shared pages repeatedly."""
    found = list(processes)
    return ProcessMemory(
        pid=found[0].pid if found else 0,
        name=f"{len(found)} processes",
        rss_bytes=sum(process.rss_bytes for process in found),
        pss_bytes=sum(process.pss_bytes for process in found),
        uss_bytes=sum(process.uss_bytes for process in found),
        swap_bytes=sum(process.swap_bytes for process in found),
    )


def _smaps_rollup(pid: int) -> dict[str, int]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    if not text:  # a zombie has no memory
        raise ProcessLookupError(pid)
    fields = {}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * KIB
    return fields


def available_bytes(
    *, cgroup_folder: Path = Path("/sys/fs/cgroup"), cgroup_members: Path = Path("/proc/self/cgroup")
) -> int:
    """Return how much memory this process may still take: of the machine, and of each container around it.

    Page cache that has not been used lately counts as free, as the kernel gives it up first: what a loader has read
    from disk would soon fill any container otherwise.

    Args:
        cgroup_folder: Where the system shows its control groups.
        cgroup_members: The file that names those of this process.
    """
    available = int(psutil.virtual_memory().available)
    for folder in _cgroups(cgroup_folder, cgroup_members):
        for limit_name, usage_name, cache_name in _MEMORY_FILES:
            limit, usage = _read(folder / limit_name), _read(folder / usage_name)
            if limit.isdigit() and usage.isdigit():  # "max" is no limit
                cache = _statistic(folder / "memory.stat", cache_name)
                available = min(available, max(0, int(limit) - max(0, int(usage) - cache)))
    return available


def num_usable_cores(
    *, cgroup_folder: Path = Path("/sys/fs/cgroup"), cgroup_members: Path = Path("/proc/self/cgroup")
) -> int:
    """Return how many cores this process may keep busy: by its affinity, and by the quota of each container.

    A part of a core counts as one. The arguments are those of `available_bytes`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroups(cgroup_folder, cgroup_members):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:  # version 1
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # "max" and "-1" are no quota
            cores = min(cores, -(-int(quota) // int(period)))
    return max(1, cores)


def _cgroups(root: Path, members: Path) -> Iterator[Path]:
    """Yield the folders of the cgroups of a process, from its own up to the root: version 2, and 1 by controller."""
    for line in _read(members).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or {"memory", "cpu"} & set(controllers.split(",")):
            base = root / controllers
            inner = base / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _statistic(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()  # cgroups have any name
    except OSError:
        return ""
