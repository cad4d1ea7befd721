"""A process and its descendants, whose memory is read again and again at a bounded cost.

Walking the machine's processes costs some 30 microseconds for each that it has, reading the PSS of one process 0.1 to
1 ms. So the walk is made only when a process was started somewhere, and PSS is read sooner where RSS, which costs 4
microseconds, says that something has changed. (It need not: a page that a forked process copies changes PSS alone.)
"""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpload.memory.usage import ProcessMemory, memory_of

__all__ = ["ProcessTree"]

_WALK_SHARE = 0.3  # of the processor time that a reading may take
_CHANGED_PAGES = 32  # a process that has changed by so many is read again twice as soon as one that has not


@dataclass(slots=True)
class _Member:
    process: psutil.Process
    memory: ProcessMemory | None = None
    pages: tuple[int, int] = (0, 0)
    """Resident, and shared of these, when `memory` was read."""
    num_missed: int = 0
    """Readings since then."""

    def urgency(self, pages: tuple[int, int]) -> float:
        if self.memory is None:
            return math.inf
        changed = max(abs(now - then) for now, then in zip(pages, self.pages, strict=True))
        return self.num_missed * (1 + changed / _CHANGED_PAGES)


class ProcessTree:
    """Knows the processes of a tree and their latest figures.

    Process: watches any process of the same user.

    Raises:
        psutil.NoSuchProcess: there is no process `pid`.
    """

    def __init__(self, pid: int | None = None) -> None:
        """Watch a process and its descendants; None is this one."""
        self._root = psutil.Process(pid)
        self._members: dict[int, _Member] = {}
        self._last_started = b""
        self._has_proc = Path("/proc/self/statm").exists()
        # Processor time that may be spent; below 0 where the last thing took longer than was left.
        self._walk_seconds = 0.0
        self._read_seconds = 0.0

    @property
    def pid(self) -> int:
        """Of the root."""
        return self._root.pid

    def read(self, *, max_seconds: float) -> tuple[ProcessMemory, ...]:
        """Return the memory of each process, the root first; nothing when that has ended.

        Args:
            max_seconds: of processor time, on average. Processes that are new are always read; of the others as many
                as this allows, in turn. Those not read keep the object of the reading before. Where the walk takes
                longer, those that are new are found some readings later.
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
        """Find new processes, where there may be some."""
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
        now = {pid: _num_pages(pid) if self._has_proc else (0, 0) for pid in self._members}
        for pid, pages in sorted(now.items(), key=lambda item: -self._members[item[0]].urgency(item[1] or (0, 0))):
            member = self._members[pid]
            if pages is not None and member.memory is not None and time.thread_time() > deadline:
                member.num_missed += 1
                continue
            try:
                if pages is None:
                    raise psutil.NoSuchProcess(pid)
                member.memory, member.pages, member.num_missed = memory_of(member.process), pages, 1
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                del self._members[pid]


def _num_pages(pid: int) -> tuple[int, int] | None:
    """Return how many pages a process has resident, and how many of these are shared; None where it has ended."""
    words = _read(f"/proc/{pid}/statm").split()
    # One that has ended, and that nobody has waited for, is there but has no memory.
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
