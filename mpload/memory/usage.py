"""How much of the machine's memory processes really use.

RSS counts a shared page once per process, so ten workers that share one index look ten times as large as they are, and
a shared index looks like a leak. PSS divides each shared page by the number of processes that map it, so its sum over a
process tree is the memory that the tree uses. USS counts only pages that no other process shares: the memory that would
be freed if the process ended.
"""

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpload.units import KIB

__all__ = [
    "ProcessMemory",
    "anonymous_bytes",
    "anonymous_pss_bytes",
    "memory_of",
    "process_memory",
    "sum_memory",
    "swapped_bytes",
    "tree_memory",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The memory of one process, or the sum over several, at one moment."""

    pid: int
    """Id of the process; in a sum, of the first process."""
    name: str
    """Name of the process, as `ps` shows it; in a sum, the number of processes."""
    rss_bytes: int
    """Resident pages, including shared ones."""
    pss_bytes: int
    """Resident pages, each shared one divided by the number of processes that share it."""
    uss_bytes: int
    """Resident pages that no other process maps."""
    swap_bytes: int
    """Pages that are swapped out."""
    clean_bytes: int = 0
    """The part of `uss_bytes` that the kernel can drop at any time: pages of mapped files. 0 outside Linux.

    Pages that were not yet written to the disk are not part of it, and neither are those of files in a tmpfs.
    """


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Return the memory of the process `pid`; None means this process.

    On Linux it is read from `/proc/PID/smaps_rollup` in about 0.1 ms. Elsewhere it comes from psutil, and PSS is RSS if
    the system does not report PSS.

    Raises:
        psutil.NoSuchProcess: the process does not exist, or has just ended.
        psutil.AccessDenied: the process belongs to another user.
    """
    return memory_of(psutil.Process(pid))


def memory_of(process: psutil.Process) -> ProcessMemory:
    """Return the memory of a process for which a psutil object exists; see `process_memory`."""
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
    except ProcessLookupError:  # the process has just ended
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
        clean_bytes=fields["Private_Clean"],
    )


def tree_memory(pid: int | None = None) -> list[ProcessMemory]:
    """Return the memory of a process and all its descendants. Those that end in the meantime are left out."""
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
    """Return the sum over `processes`, with the pid of the first. In the sum of RSS, shared pages count repeatedly."""
    found = list(processes)
    return ProcessMemory(
        pid=found[0].pid if found else 0,
        name=f"{len(found)} processes",
        rss_bytes=sum(process.rss_bytes for process in found),
        pss_bytes=sum(process.pss_bytes for process in found),
        uss_bytes=sum(process.uss_bytes for process in found),
        swap_bytes=sum(process.swap_bytes for process in found),
        clean_bytes=sum(process.clean_bytes for process in found),
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


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous resident memory of a process, or 0 if it has ended. Takes a few microseconds.

    Memory that a forked process still shares with its parent counts fully for both.
    """
    try:
        words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:  # the process has ended, or this is not Linux
        return 0
    return max(0, int(words[1]) - int(words[2])) * mmap.PAGESIZE


def anonymous_pss_bytes(pid: int) -> int:
    """Return the anonymous PSS of a process, or 0 if it has ended. Takes about 0.1 ms.

    Memory that a forked process still shares with its parent is divided between them.
    """
    try:
        return _smaps_rollup(pid)["Pss_Anon"]
    except (OSError, KeyError):  # the process has ended or belongs to another user, or the kernel is older than 5.4
        return anonymous_bytes(pid)


def swapped_bytes(pid: int) -> int:
    """Return the memory of a process that is swapped out, or 0 if it has ended. Takes about 0.1 ms."""
    try:
        return _smaps_rollup(pid).get("SwapPss", 0)
    except OSError:  # the process has ended or belongs to another user, or this is not Linux
        return 0
