"""The parent's side of the zygote: starts it, requests workers, reads how they ended, and shuts it down."""

import contextlib
import errno
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing import spawn
from pathlib import Path

from mpload.errors import ArgumentError, RefusedError, WorkerError, warn
from mpload.transport.changed_code import warn_of_changed_code
from mpload.transport.forking import JEMALLOC, ForkedProcess, Forks, fork_zygote
from mpload.transport.hash_order import warn_of_hash_order
from mpload.transport.interrupts import interrupts_held
from mpload.transport.limits import os_errors_as_refused, shared_memory
from mpload.transport.pickling import pickle_work
from mpload.transport.settings import interpreter_flags
from mpload.transport.worker import Work, WorkerSetup

__all__ = [
    "WorkerEnded",
    "WorkerForked",
    "WorkerRefused",
    "ZygoteDiedError",
    "ZygoteProcess",
    "describe_status",
]

_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
"""Libraries read these variables on import. Unset, they would start threads in a process that is about to fork."""
_HASH_SEED = "0"
"""Modules that number the items of a set number them alike in all workers, also in those that replace others."""
_MESSAGE_BYTES = 1 << 16
_END_SECONDS = 2.0
_UNKNOWN_CAUSE = "cause unknown: this process ignores SIGCHLD"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForked:
    """A worker has started."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnded:
    """A worker has ended."""

    worker: int
    pid: int
    status: int
    """Exit status, or the negative number of the signal that killed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRefused:
    """The system refused to start a worker, with this error number."""

    worker: int
    error_number: int


class ZygoteDiedError(WorkerError):
    """A zygote died while it was starting."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"workers cannot start: the zygote died while it loaded the work ({cause})")
        self.is_from_outside = cause in {describe_status(-signal.SIGKILL), _UNKNOWN_CAUSE}
        """Whether it was killed by SIGKILL, or may have been."""


class ZygoteProcess:
    """The zygote of one pool. `start` also replaces one that has died.

    Process: only the process that made this object may use it. A forked child calls `abandon` to close its copies.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        *,
        starts_fresh: bool,
        start_timeout_seconds: float,
        work: Work,
        forks: Forks,
        release: Callable[[], object],
    ) -> None:
        """Prepare, but do not start.

        Args:
            setup: what workers need.
            starts_fresh: whether each worker is a new process instead of a fork.
            start_timeout_seconds: time limit for loading the work.
            work: what workers do; `setup` may lack it.
            forks: whether the zygote is a fork of this process.
            release: closes what belongs to this process only, in a fork.
        """
        self._setup = setup
        self._starts_fresh = starts_fresh
        self._timeout_seconds = start_timeout_seconds
        self._work = work
        self._forks = forks
        self._release = release
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._control: socket.socket | None = None
        self._has_warned = False
        self._launcher_may_exit = threading.Event()
        self._setup_fd = -1

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        assert self._process is not None
        return self._process.pid

    @property
    def control(self) -> socket.socket:
        """The socket to poll: it is readable when `read` has something to return."""
        assert self._control is not None
        return self._control

    def start(self) -> None:
        """Start the process and wait until it has loaded the work.

        Raises:
            WorkerError: it could not load the work, or took longer than `start_timeout_seconds`.
            ZygoteDiedError: it died while loading the work.
            RefusedError: the system refuses a process or descriptor. A later call may succeed.
        """
        with os_errors_as_refused("workers cannot start"):
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before, self._control = self._control, control  # from now on, `kill` ends what is started
        try:
            with theirs, os_errors_as_refused("workers cannot start"):
                self._launch_from_lasting_thread(theirs.fileno())
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        finally:
            if before is not None:
                before.close()

    def _launch_from_lasting_thread(self, control_fd: int) -> None:
        """Start the zygote from a thread that outlives it, because the kernel kills it when that thread ends.

        The main thread does. If another thread calls, a thread of our own starts the zygote and waits until it is dead.
        """
        if threading.get_native_id() == os.getpid():
            self._launch(control_fd)
            return
        launched: Future[None] = Future()
        may_exit = self._launcher_may_exit = threading.Event()

        def run() -> None:
            try:
                self._launch(control_fd)
                launched.set_result(None)
            except BaseException as error:  # noqa: BLE001  `launched.result()` raises it
                launched.set_exception(error)
            else:
                may_exit.wait()  # no time limit: `kill` sets it, and a daemon thread does not delay exit

        try:
            threading.Thread(target=run, name="mpload-launch", daemon=True).start()
        except RuntimeError as error:
            raise BlockingIOError(errno.EAGAIN, str(error)) from error
        launched.result()

    def _launch(self, control_fd: int) -> None:
        limits = dict.fromkeys(_THREAD_LIMITS, "1")
        if self._forks.applies() or not self._is_pickled():
            with socket.socket(fileno=os.dup(control_fd)) as theirs, interrupts_held():
                self._process = fork_zygote(self._setup, self._work, theirs, release=self._release, environment=limits)
            return
        warn_of_changed_code()
        self._write_setup()
        arguments = [_interpreter(), *interpreter_flags(), "-m", "mpload.transport.zygote"]
        arguments += [str(number) for number in (control_fd, self._setup_fd, os.getpid(), int(self._starts_fresh))]
        package_folder = str(Path(__file__).resolve().parents[2])
        paths = [package_folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **limits, "PYTHONPATH": os.pathsep.join(paths)}
        if environment.get("PYTHONHASHSEED") in {None, "", "random"}:
            environment["PYTHONHASHSEED"] = _HASH_SEED
        with interrupts_held():
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(*self._setup.fds, self._setup_fd, control_fd),
            )

    def _is_pickled(self) -> bool:
        """Return whether the work is pickled. Try it now if it is not: the process could be forked, but now cannot."""
        if not self._setup.work:
            with contextlib.suppress(ArgumentError):
                work, shared_fds = pickle_work(self._work)
                self._setup = replace(self._setup, work=work, shared_fds=shared_fds)
        return bool(self._setup.work)

    def _write_setup(self) -> None:
        if self._setup_fd < 0:
            pickled = pickle.dumps(self._setup)
            self._setup_fd = shared_memory("mpload-setup", len(pickled))
            with open(self._setup_fd, "wb", closefd=False) as file:
                file.write(pickled)

    def _await_ready(self) -> None:
        if not _is_readable(self.control, self._timeout_seconds):
            raise WorkerError(
                f"workers did not start: the zygote (process {self.pid}) has not loaded the work within "
                f"{self._timeout_seconds:g} s. Do less work at import, or raise start_timeout_seconds"
            )
        message = self._receive()
        if not message:
            raise ZygoteDiedError(self.end_cause())  # not in a variable: its frames may reference user's batches
        reply = json.loads(message)
        if "error" in reply:  # raised by mpload, with the cause and the next step
            raise WorkerError(f"workers cannot start: {reply['error']}")
        if "failed" in reply:
            raise WorkerError(
                "workers cannot start: the work does not load in a new process. A module that it needs may be missing "
                f"there, or may need something that only the parent has:\n{reply['failed'].rstrip()}"
            )
        warn_of_hash_order(reply.get("digests", {}))

    def fork(self, worker: int) -> bool:
        """Request worker number `worker`; return False if the request cannot be sent."""
        return self._send({"fork": worker})

    def kill_worker(self, worker: int) -> bool:
        """Have worker number `worker` killed, if it is alive; return False if the request cannot be sent."""
        return self._send({"kill": worker})

    def _send(self, request: dict[str, int]) -> bool:
        try:
            self.control.send(json.dumps(request).encode(), socket.MSG_DONTWAIT)
        except OSError:  # dead, or stopped so long that its socket is full: the pool handles both
            return False
        return True

    def read(self) -> list[WorkerForked | WorkerRefused | WorkerEnded]:
        """Return the events that the zygote has reported since the last call, without waiting."""
        events: list[WorkerForked | WorkerRefused | WorkerEnded] = []
        while _is_readable(self.control, 0) and (message := self._receive()):
            report = json.loads(message)
            if "forked" in report:
                self._warn_of(report["threads"])
                events.append(WorkerForked(worker=report["forked"], pid=report["pid"]))
            elif "refused" in report:
                events.append(WorkerRefused(worker=report["refused"], error_number=report["errno"]))
            else:
                events.append(WorkerEnded(worker=report["ended"], pid=report["pid"], status=report["status"]))
        return events

    def _receive(self) -> bytes:
        try:
            return self.control.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # it died before it read all our messages
            return b""

    def _warn_of(self, threads: list[str]) -> None:
        is_fork = isinstance(self._process, ForkedProcess)  # it has only threads that are ready for forks
        threads = sorted({*threads} - {JEMALLOC})
        if threads and not self._has_warned and not is_fork:
            self._has_warned = True
            warn(
                f"modules that workers import started {len(threads)} thread(s) ({', '.join(threads)}). "
                f"Forking a process with threads may hang its workers. Import these modules later, in the workers, or "
                "use MPLoader(..., options=mpload.PoolOptions(starts_fresh=True))"
            )

    def is_dead(self) -> bool:
        """Whether the zygote has ended."""
        assert self._process is not None
        return self._process.poll() is not None

    def end_cause(self) -> str:
        """Return the cause of the zygote's death, waiting for it briefly. One that lives on is killed."""
        assert self._process is not None
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it has closed its socket but lives on
            self._process.kill()
            self._process.wait()
            return "it closed its connection but kept running"
        if not status and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            return _UNKNOWN_CAUSE
        return describe_status(status)

    def kill(self) -> None:
        """Kill the zygote and its workers, and wait until all are gone. May be called again."""
        if self._process is not None and self._control is not None:
            self._process.kill()
            self._process.wait()
            self._await_end(_END_SECONDS)
        self._launcher_may_exit.set()

    def close(self) -> None:
        """Ask the zygote and its workers to exit, then kill them, and release everything. May be called again."""
        if self._process is not None and self._control is not None and not self.is_dead():
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            self._await_end(_END_SECONDS)
        self.kill()
        self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptors, without effect on other processes."""
        if self._setup_fd >= 0:
            os.close(self._setup_fd)
            self._setup_fd = -1
        if self._control is not None:
            self._control.close()
            self._control = None

    def _await_end(self, limit_seconds: float) -> None:
        """Read until end of file, which comes when the zygote and all workers are gone: all hold the other end."""
        deadline = time.monotonic() + limit_seconds
        while _is_readable(self.control, max(0.0, deadline - time.monotonic())):
            if not self._receive():
                return


def describe_status(status: int) -> str:
    """Return an exit status as text: `SIGSEGV`, `exit status 3`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # a real-time signal
        return f"signal {-status}"


def _is_readable(sock: socket.socket, limit_seconds: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(limit_seconds * 1000))


def _interpreter() -> str:
    """Return the path of Python: that of this process, or what a program that embeds Python has set."""
    found = os.fsdecode(spawn.get_executable() or sys.executable or b"")
    if not found:
        raise RefusedError(
            f"workers cannot be started: sys.executable is {sys.executable!r}, so there is no Python to start them "
            "with. Call multiprocessing.set_executable with the path of one"
        )
    return found
