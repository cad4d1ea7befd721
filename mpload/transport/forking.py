"""The zygote as a fork of the process that makes the loader: whether that is safe, and how it is done.

A fork takes milliseconds, has imported what its parent has, and needs no pickling. But it has only the thread that
forked: a lock that another thread held stays locked for ever, and CUDA does not work in it. So a process is forked only
while it has no other threads that may hold locks. Threads that carry the process's own name are let pass: libraries for
numbers (OpenBLAS, OpenMP) start them, they are idle between calls, and workers compute with one thread.
"""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from multiprocessing.connection import wait
from pathlib import Path

from mpload.transport.kernel import thread_names
from mpload.transport.ring import without_lent
from mpload.transport.worker import Work, WorkerSetup, Workplace
from mpload.transport.zygote import begin, flush_output, serve

__all__ = ["JEMALLOC", "ForkedProcess", "Forks", "fork_zygote", "why_not_fork"]

JEMALLOC = "jemalloc_bg_thd"
"""A thread of the allocator of pyarrow, which MPDataset may import. The allocator has handlers for forks."""
_MAX_NAME = 15
"""The kernel knows the first characters of a thread's name, since Python 3.14."""


class Forks(Enum):
    """Whether the zygote is a fork of the process that makes the loader."""

    NEVER = auto()
    IF_SAFE = auto()
    ALWAYS = auto()
    """Even if `why_not_fork` has a reason, because the user says so."""

    def applies(self) -> bool:
        """Return whether to fork now."""
        return self is Forks.ALWAYS or (self is Forks.IF_SAFE and why_not_fork() is None)


def why_not_fork() -> str | None:
    """Return why forking this process is unsafe now; None if it is safe."""
    if threading.get_native_id() != os.getpid():
        return "the loader is not made in the main thread"
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    others = [thread.name for thread in threads if not _is_harmless(thread)]
    if not others:
        try:
            own = Path("/proc/self/comm").read_text().strip()
        except FileNotFoundError:
            return "the system does not tell which threads it has, as /proc is not mounted"
        others = sorted({*thread_names()} - {own, JEMALLOC, *(thread.name[:_MAX_NAME] for thread in threads)})
    if others:
        return f"this process has other threads ({', '.join(others)})"
    torch = sys.modules.get("torch")
    for device in ("cuda", "xpu"):
        if torch is not None and getattr(torch, device).is_initialized():
            return f"this process uses {device.upper()}"
    return None


def _is_harmless(thread: threading.Thread) -> bool:
    """Whether workers need no lock of a thread: it is that of a tqdm bar, or of the queues of a stock DataLoader."""
    return type(thread).__module__ == "tqdm._monitor" or thread.name == "QueueFeederThread"


class ForkedProcess:
    """A forked process, with the methods of `subprocess.Popen` that a `ZygoteProcess` calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:  # forbidden, or no free descriptor
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # this process ignores SIGCHLD
                os.waitpid(pid, 0)
            raise
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or the negative number of the signal that ended the process; None if it is alive."""
        if self._status is None and wait([self._pidfd], 0):
            try:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # this process ignores SIGCHLD, as subprocess handles it too
                self._status = 0
            os.close(self._pidfd)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its status."""
        if self._status is None and not wait([self._pidfd], timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired("mpload-zygote", timeout)
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        """Kill the process, if it is alive."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_zygote(
    setup: WorkerSetup,
    work: Work,
    control: socket.socket,
    *,
    release: Callable[[], object],
    environment: Mapping[str, str],
) -> ForkedProcess:
    """Fork a zygote that serves `control`.

    Args:
        setup: what its workers need; the pickled work is not used.
        work: their work.
        control: the zygote's end of the socket.
        release: closes what belongs to the parent only. Called in the zygote.
        environment: variables to set in the zygote.
    """
    flush_output()  # otherwise the zygote would print the rest of the buffer too
    parent_pid = os.getpid()
    opencv = sys.modules.get("cv2")
    num_threads = opencv.getNumThreads() if opencv else 1
    if opencv is not None:  # its threads stop; in a fork, where they are gone, OpenCV would wait for them for ever
        opencv.setNumThreads(1)
    pid = -1
    collects = gc.isenabled()
    gc.disable()  # what the parent is done with must not be collected in the fork: destructors may act on its processes
    try:
        with without_lent():
            pid = os.fork()
    finally:
        if pid and collects:
            gc.enable()
        if opencv is not None and pid:
            opencv.setNumThreads(num_threads)  # they start again when they are needed
    if pid:
        return ForkedProcess(pid)
    status = 1
    gc.freeze()
    if collects:
        gc.enable()
    try:
        status = _run(setup, work, control, parent_pid=parent_pid, release=release, environment=environment)
    except BaseException:  # noqa: BLE001  the child must never return into the parent's code
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(status)


def _run(
    setup: WorkerSetup,
    work: Work,
    control: socket.socket,
    *,
    parent_pid: int,
    release: Callable[[], object],
    environment: Mapping[str, str],
) -> int:
    begin(parent_pid)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # the parent's handler may save a checkpoint, for example
    signal.set_wakeup_fd(-1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    fds = setup.board
    board = replace(fds, board=os.dup(fds.board), tokens=os.dup(fds.tokens))
    setup = replace(setup, ring_fd=os.dup(setup.ring_fd), answers_fd=os.dup(setup.answers_fd), board=board)
    control = socket.socket(fileno=os.dup(control.fileno()))
    release()
    os.environ.update(environment)
    place = Workplace.of(setup, work)
    with control, place.answers:
        return serve(control, setup_fd=-1, place=place)
