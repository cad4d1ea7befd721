"""Real control groups with a memory limit, if this machine allows making them."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Container", "cpu_container", "memory_container"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A control group, version 1 or 2."""

    folder: Path
    version: int

    @property
    def procs(self) -> Path:
        """The file that moves a process here: write its id, or 0 for the writing process."""
        return self.folder / "cgroup.procs"

    @property
    def anonymous_bytes(self) -> int:
        """Memory that the kernel cannot reclaim: anonymous and shared memory."""
        lines = (self.folder / "memory.stat").read_text().splitlines()
        found = {name: int(value) for name, value in (line.split() for line in lines)}
        names = ("total_rss", "total_shmem") if self.version == 1 else ("anon", "shmem")
        return sum(found[name] for name in names)

    @property
    def peak_bytes(self) -> int:
        """The highest memory usage so far, including page cache."""
        return int((self.folder / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")).read_text())

    @property
    def num_oom_kills(self) -> int:
        """Number of processes that the kernel has killed here for lack of memory."""
        lines = (self.folder / ("memory.oom_control" if self.version == 1 else "memory.events")).read_text()
        return int(next(line for line in lines.splitlines() if line.startswith("oom_kill ")).split()[1])


@contextmanager
def cpu_container(cores: float) -> Iterator[Container | None]:
    """Make a control group with a CPU quota, then kill its processes and remove it; yield None if not allowed."""
    yield from _until_empty(_make_cpu(cores))


@contextmanager
def memory_container(limit_bytes: int) -> Iterator[Container | None]:
    """Make a control group inside our own, then kill its processes and remove it; yield None if that is not allowed."""
    yield from _until_empty(_make(limit_bytes))


def _until_empty(container: Container | None) -> Iterator[Container | None]:
    if container is None:
        yield None
        return
    try:
        yield container
    finally:
        deadline = time.monotonic() + 10
        while pids := container.procs.read_text().split():
            for pid in pids:
                if int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{container.folder}: {pids} do not end")
            time.sleep(0.02)
        container.folder.rmdir()


def _make(limit_bytes: int) -> Container | None:
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in lines:
        if controllers == "memory":
            own, version, limit_name = Path("/sys/fs/cgroup/memory", path.lstrip("/")), 1, "memory.limit_in_bytes"
        elif not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            # A group with member processes cannot pass controllers on to children, so make a sibling.
            own, version, limit_name = Path("/sys/fs/cgroup", path.lstrip("/")).parent, 2, "memory.max"
        else:
            continue
        folder = own / f"mpload-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            return None
        try:
            (folder / limit_name).write_text(str(limit_bytes))
        except OSError:
            folder.rmdir()
            return None
        return Container(folder=folder, version=version)
    return None


def _make_cpu(cores: float) -> Container | None:
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in lines:
        if "cpu" in controllers.split(","):
            own, version, limits = Path("/sys/fs/cgroup", controllers, path.lstrip("/")), 1, ("cpu.cfs_quota_us", "")
        elif not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            own, version, limits = Path("/sys/fs/cgroup", path.lstrip("/")).parent, 2, ("cpu.max", " 100000")
        else:
            continue
        folder = own / f"mpload-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            (folder / limits[0]).write_text(f"{round(cores * 100_000)}{limits[1]}")
        except OSError:
            if folder.exists():
                folder.rmdir()
            return None
        return Container(folder=folder, version=version)
    return None
