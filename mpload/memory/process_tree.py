"""A process and its descendants, whose memory is sampled repeatedly at a bounded cost.

Finding the descendants takes about 30 microseconds for each process on the machine, so it is repeated only after a
process was started somewhere. Reading the PSS of one process takes 0.1 to 1 ms, so processes take turns. RSS takes only
4 microseconds, and a process whose RSS has changed gets its turn sooner. (PSS can change while RSS does not: when a
forked process copies a page, for example.)
"""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpload.memory.usage import ProcessMemory, memory_of

__all__ = ["ProcessTree"]

_WALK_SHARE = 0.3  # fraction of the CPU time of a reading that may be spent on finding processes
_CHANGED_PAGES = 32  # a process that has changed by so many pages is twice as urgent as an unchanged one


@dataclass(slots=True)
class _Member:
    process: psutil.Process
    memory: ProcessMemory | None = None
    pages: tuple[int, int] = (0, 0)
    """Resident pages, and how many of these are shared, when `memory` was read."""
    age: int = 0
    """Number of readings since then, counting from 1."""

    def urgency(self, pages: tuple[int, int]) -> float:
        if self.memory is None:
            return math.inf
        changed = max(abs(now - then) for now, then in zip(pages, self.pages, strict=True))
        return self.age * (1 + changed / _CHANGED_PAGES)


class ProcessTree:
    """Keeps the processes of a tree and their latest figures.

    Process: can watch any process of the same user.

    Raises:
        psutil.NoSuchProcess: no process has the id `pid`.
    """

    def __init__(self, pid: int | None = None) -> None:
        """Watch the process `pid` and its descendants; None means this process."""
        self._root = psutil.Process(pid)
        self._members: dict[int, _Member] = {}
        self._last_started = b""
        self._has_proc = Path("/proc/self/statm").exists()
        # CPU time left to spend. It is negative if the last reading exceeded it.
        self._walk_seconds = 0.0
        self._read_seconds = 0.0

    @property
    def pid(self) -> int:
        """Id of the root process."""
        return self._root.pid

    def read(self, *, max_seconds: float) -> tuple[ProcessMemory, ...]:
        """Return the memory of each process, the root first; an empty tuple if the root has ended.

        Args:
            max_seconds: average CPU time of a reading. New processes are always read, and of the others as many as
                this time allows, the most urgent first. A process that is not read keeps the same object as in the
                previous reading. If finding processes takes longer than this time, new ones appear some readings later.
        """
        if not self._root.is_running():
            self._members.clear()
            return ()
        walk_seconds, read_seconds = max_seconds * _WALK_SHARE, max_seconds * (1 - _WALK_SHARE)
        self._walk_seconds = min(walk_seconds, self._walk_seconds + walk_seconds)
        self._read_seconds = min(read_seconds, self._read_seconds + read_seconds)
        started = time.thread_time()
        if self._walk_seconds > 0 or not self._members:
            self._walk()
        walked = time.thread_time()
        self._walk_seconds -= walked - started
        self._update(deadline=walked + self._read_seconds)
        self._read_seconds -= time.thread_time() - walked
        return tuple(member.memory for member in self._members.values() if member.memory is not None)

    def _walk(self) -> None:
        """Find new processes, unless none was started since the last walk."""
        last_started = _read("/proc/loadavg").rpartition(b" ")[2]
        if self._members and last_started and last_started == self._last_started:
            return
        self._last_started = last_started
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        known, self._members = self._members, {}
        for process in processes:
            member = known.get(process.pid)
            self._members[process.pid] = member if member and member.process == process else _Member(process)

    def _update(self, *, deadline: float) -> None:
        """Read the processes, the most urgent first."""
        pages_of = {pid: _num_pages(pid) if self._has_proc else (0, 0) for pid in self._members}
        for pid, pages in sorted(pages_of.items(), key=lambda item: -self._members[item[0]].urgency(item[1] or (0, 0))):
            member = self._members[pid]
            if pages is not None and member.memory is not None and time.thread_time() > deadline:
                member.age += 1
                continue
            try:
                if pages is None:
                    raise psutil.NoSuchProcess(pid)
                member.memory, member.pages, member.age = memory_of(member.process), pages, 1
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                del self._members[pid]


def _num_pages(pid: int) -> tuple[int, int] | None:
    """Return how many pages of a process are resident, and how many of these are shared; None if it has ended."""
    words = _read(f"/proc/{pid}/statm").split()
    # A zombie still has the file, but no memory.
    return (int(words[1]), int(words[2])) if words and words[0] != b"0" else None


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)
