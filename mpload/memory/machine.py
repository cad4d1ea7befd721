"""How much memory and how many cores the machine and its containers allow this process."""

import math
import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpload.units import KIB

__all__ = [
    "MemoryGauge",
    "MemoryRoom",
    "SystemUsage",
    "address_space_bytes",
    "available_bytes",
    "cpu_periods",
    "knows_free_memory",
    "num_allowed_cores",
    "num_oom_kills",
    "num_usable_cores",
    "pressure_seconds",
    "refaulted_bytes",
    "usable_cores",
]

_CGROUP_FOLDER = Path("/sys/fs/cgroup")
_CGROUP_MEMBERS = Path("/proc/self/cgroup")
_DEV_SHM = Path("/dev/shm")  # noqa: S108  only its usage is read


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """How much memory this process may still use, at one moment."""

    limit_bytes: int
    """The tightest limit, by free memory: of a container, of the machine, or of this process (`RLIMIT_AS`)."""
    free_bytes: int
    """Memory left under that limit. Page cache counts as free: it fills any container, but is evicted first."""
    stalled_seconds: float
    """Total time for which processes of the innermost container have waited for memory. It only increases."""
    num_oom_kills: int
    """Number of processes that the kernel has killed here for lack of memory. It only increases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemUsage:
    """What uses the memory of a container, or of the machine if no container has a limit, at one moment."""

    limit_bytes: int
    """Limit of the container with the least free memory, or the machine's memory."""
    anonymous_bytes: int
    """Memory that processes have allocated."""
    shmem_bytes: int
    """Shared memory, named or nameless, and files on a tmpfs."""
    file_bytes: int
    """Page cache, which the kernel evicts first."""
    page_cache_bytes: int
    """Page cache of the whole machine."""
    dev_shm_bytes: int
    """Space used in `/dev/shm`, where the workers of a stock DataLoader put their batches."""


class MemoryGauge:
    """Measures the memory of the machine and of each container that this process is in. Takes about 50 microseconds.

    It ignores how often a container reached its limit (`memory.failcnt`, `max` in `memory.events`). A healthy container
    that is full of page cache reaches its limit all the time.

    Process: it uses the containers of the process that made it. Child processes are in the same containers.
    """

    def __init__(self, *, cgroup_folder: Path = _CGROUP_FOLDER, cgroup_members: Path = _CGROUP_MEMBERS) -> None:
        """Find the containers of this process.

        Args:
            cgroup_folder: where the control groups are mounted.
            cgroup_members: the file that names the control groups of this process.
        """
        folders = list(_cgroups(cgroup_folder, cgroup_members))
        self._limited = [
            (folder, [str(folder / name) for name in limit_names])
            for folder in folders
            for limit_names in (("memory.max", "memory.high"), ("memory.limit_in_bytes",))
            if (folder / limit_names[0]).exists()
        ]
        self._kills = next(
            (path for folder in folders for name in _KILLS_FILES if (path := folder / name).exists()),
            Path("/proc/vmstat"),
        )
        pressures = [folder / "memory.pressure" for folder in folders]
        self._pressure = next((path for path in pressures if path.exists()), Path("/proc/pressure/memory"))

    def read(self) -> MemoryRoom:
        """Return the memory left under the tightest limit."""
        limit_bytes, free_bytes = self._machine()
        containers = ((limit, free) for _, limit, free in self._containers(limit_bytes))
        for limit, free in [*_process(), *containers]:
            if free < free_bytes:
                limit_bytes, free_bytes = limit, free
        return MemoryRoom(
            limit_bytes=limit_bytes,
            free_bytes=free_bytes,
            stalled_seconds=_stalled_seconds(_read(self._pressure)),
            num_oom_kills=self.num_oom_kills(),
        )

    def num_oom_kills(self) -> int:
        """Return how many processes the kernel has killed in the innermost container for lack of memory."""
        return _statistics(self._kills).get("oom_kill", 0)

    def page_cache_bytes(self) -> int:
        """Return how much page cache there is room for: what no process has allocated, here and in each container."""
        limit_bytes, free_bytes = self._machine()
        return min([free_bytes, *(free for _, _, free in self._containers(limit_bytes))])

    def usage(self) -> SystemUsage:
        """Return what uses the memory. Takes about 50 microseconds."""
        machine = _machine_statistics()
        limit_bytes, free_bytes = self._machine()
        found = machine
        for folder, limit, free in self._containers(limit_bytes):
            if free < free_bytes:
                limit_bytes, free_bytes, found = limit, free, _container_statistics(folder)
        return SystemUsage(
            limit_bytes=limit_bytes,
            **found,
            page_cache_bytes=machine["file_bytes"],
            dev_shm_bytes=_used_bytes(_DEV_SHM),
        )

    def _containers(self, machine_bytes: int) -> Iterator[tuple[Path, int, int]]:
        for folder, limit_files in self._limited:
            limits = [int(text) for name in limit_files if (text := _read(name)).isdigit()]  # "max" means no limit
            if limits and min(limits) < machine_bytes:
                yield folder, min(limits), max(0, min(limits) - _taken_bytes(folder))

    @staticmethod
    def _machine() -> tuple[int, int]:
        fields = {}
        for line in _read("/proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            fields[name] = value
            if name == "MemAvailable":
                return int(fields["MemTotal"].split()[0]) * KIB, int(value.split()[0]) * KIB
        try:
            memory = psutil.virtual_memory()
        except OSError:  # Linux without /proc, as in a chroot
            total_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
            return total_bytes, total_bytes // _UNKNOWN_DIVISOR
        return int(memory.total), int(memory.available)


_UNKNOWN_DIVISOR = 2
"""If nothing says how much memory is free, half of it counts as free."""
_KILLS_FILES = ("memory.events", "memory.oom_control")


def _process() -> Iterator[tuple[int, int]]:
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415  does not exist on Windows

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and (words := _read("/proc/self/statm").split()):
        yield limit, max(0, limit - int(words[0]) * mmap.PAGESIZE)


def _taken_bytes(folder: Path) -> int:
    """Return the memory of a container that the kernel cannot reclaim: all but page cache and reclaimable slab."""
    found = _statistics(folder / "memory.stat")
    if "anon" in found:  # cgroup version 2
        kernel = max(0, found.get("kernel", 0) - found.get("slab_reclaimable", 0))
        return found["anon"] + found.get("shmem", 0) + kernel
    if "total_rss" in found:  # cgroup version 1
        return found["total_rss"] + found.get("total_shmem", 0)
    usage = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
    return int(usage) if usage.isdigit() else 0


def _container_statistics(folder: Path) -> dict[str, int]:
    found = _statistics(folder / "memory.stat")
    anonymous, cache, shmem = (
        ("anon", "file", "shmem") if "anon" in found else ("total_rss", "total_cache", "total_shmem")
    )
    return _split(found.get(anonymous, 0), cache_bytes=found.get(cache, 0), shmem_bytes=found.get(shmem, 0))


def _machine_statistics() -> dict[str, int]:
    lines = (line.split() for line in _read("/proc/meminfo").splitlines())
    found = {words[0]: int(words[1]) * KIB for words in lines}
    if not found:
        try:
            used_bytes = int(psutil.virtual_memory().used)
        except OSError:  # Linux without /proc
            used_bytes = 0
        return _split(used_bytes, cache_bytes=0, shmem_bytes=0)
    cache_bytes = found.get("Cached:", 0) + found.get("Buffers:", 0)
    return _split(found.get("AnonPages:", 0), cache_bytes=cache_bytes, shmem_bytes=found.get("Shmem:", 0))


def _split(anonymous_bytes: int, *, cache_bytes: int, shmem_bytes: int) -> dict[str, int]:
    """Subtract shared memory from page cache, to which the kernel adds it."""
    return {
        "anonymous_bytes": anonymous_bytes,
        "shmem_bytes": shmem_bytes,
        "file_bytes": max(0, cache_bytes - shmem_bytes),
    }


def _used_bytes(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except (AttributeError, OSError):  # Windows has no statvfs, and other systems have no such folder
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _stalled_seconds(pressure: str) -> float:
    some = pressure.partition("\n")[0]
    total = some.rpartition("total=")[2]
    return int(total) / 1e6 if some.startswith("some") and total.isdigit() else 0.0


def available_bytes(*, cgroup_folder: Path = _CGROUP_FOLDER, cgroup_members: Path = _CGROUP_MEMBERS) -> int:
    """Return how much memory this process may still use, limited by the machine, its containers and `RLIMIT_AS`.

    Page cache counts as free. For the arguments, see `MemoryGauge`.
    """
    return MemoryGauge(cgroup_folder=cgroup_folder, cgroup_members=cgroup_members).read().free_bytes


def knows_free_memory() -> bool:
    """Return whether the system says how much memory is free. Linux without /proc does not."""
    return sys.platform != "linux" or Path("/proc/meminfo").exists()


def address_space_bytes() -> int | None:
    """Return how much address space this process may still reserve (`RLIMIT_AS`), or None if there is no limit."""
    return next((free for _, free in _process()), None)


def num_oom_kills() -> int:
    """Return how many processes the kernel has killed in this container for lack of memory."""
    return MemoryGauge().num_oom_kills()


def refaulted_bytes(*, cgroup_folder: Path = _CGROUP_FOLDER, cgroup_members: Path = _CGROUP_MEMBERS) -> int:
    """Return how many bytes had to be read again soon after the kernel evicted them from the page cache.

    The count only increases. It covers the innermost container that has one, or else the machine. It is 0 if the
    kernel does not report it. For the arguments, see `MemoryGauge`.
    """
    counts = (_statistics(folder / "memory.stat") for folder in _cgroups(cgroup_folder, cgroup_members))
    found = next((each for each in counts if "workingset_refault_file" in each), None)
    if found is None:
        found = _statistics(Path("/proc/vmstat"))
    return found.get("workingset_refault_file", 0) * mmap.PAGESIZE


def num_usable_cores(
    *, of: int | None = None, cgroup_folder: Path = _CGROUP_FOLDER, cgroup_members: Path = _CGROUP_MEMBERS
) -> int:
    """Return `usable_cores`, with a fraction of a core counted as a whole one."""
    return max(1, math.ceil(usable_cores(of=of, cgroup_folder=cgroup_folder, cgroup_members=cgroup_members)))


def usable_cores(
    *, of: int | None = None, cgroup_folder: Path = _CGROUP_FOLDER, cgroup_members: Path = _CGROUP_MEMBERS
) -> float:
    """Return how many cores this process may keep busy, limited by its affinity and by the quota of each container.

    Args:
        of: the number of cores to start from, instead of those in this process's affinity.
        cgroup_folder: as in `MemoryGauge`.
        cgroup_members: as in `MemoryGauge`.
    """
    cores = float(num_allowed_cores() if of is None else of)
    for folder in _cgroups(cgroup_folder, cgroup_members):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:  # cgroup version 1
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # "max" and "-1" mean no quota
            cores = min(cores, int(quota) / int(period))
    return cores


def cpu_periods() -> tuple[int, int]:
    """Return how many periods of a CPU quota there were in the innermost container, and in how many it was used up."""
    counts = (_statistics(folder / "cpu.stat") for folder in _cgroups(_CGROUP_FOLDER, _CGROUP_MEMBERS))
    found = next((each for each in counts if each.get("nr_periods")), {})
    return found.get("nr_periods", 0), found.get("nr_throttled", 0)


def pressure_seconds(resource: str) -> float:
    """Return for how long at least one process has waited for `resource`: memory or io.

    In the innermost container that counts it, or else on the machine. 0 if the kernel does not.
    """
    folders = _cgroups(_CGROUP_FOLDER, _CGROUP_MEMBERS)
    files = [*(folder / f"{resource}.pressure" for folder in folders), Path("/proc/pressure", resource)]
    return next((_stalled_seconds(text) for path in files if (text := _read(path))), 0.0)


def num_allowed_cores(pid: int = 0) -> int:
    """Return the number of cores in the affinity of process `pid`; 0 means this process."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:  # the process has ended
        return len(os.sched_getaffinity(0))


def _cgroups(root: Path, members: Path) -> Iterator[Path]:
    """Yield the folders of a process's cgroups, from its own up to the root: version 2, and version 1 by controller."""
    for line in _read(members).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or {"memory", "cpu"} & set(controllers.split(",")):
            base = root / controllers
            inner = base / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _statistics(path: Path) -> dict[str, int]:
    pairs = (line.split(" ") for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: Path | str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b"")).decode("utf-8", "surrogateescape").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)
