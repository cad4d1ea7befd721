"""The parent's side of the zygote: starts it, asks it for workers, hears how they ended, and ends it."""

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
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]

from mpload.errors import ArgumentError, MploadWarning, WorkerError
from mpload.transport.limits import shared_memory, told_as_refused
from mpload.transport.worker import Work, WorkerSetup

__all__ = [
    "WorkerEnded",
    "WorkerForked",
    "WorkerRefused",
    "ZygoteDiedError",
    "ZygoteProcess",
    "describe_status",
    "pickle_work",
]

_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
"""Libraries read these when they are imported, and would start threads in a process that is about to fork."""
_MESSAGE_BYTES = 1 << 16
_END_SECONDS = 2.0
_UNKNOWN_END = "it is not known how: this process ignores SIGCHLD"


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
    """Exit status, or minus the number of the signal that killed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRefused:
    """A worker could not be started, for this error of the system's."""

    worker: int
    error_number: int


class ZygoteDiedError(WorkerError):
    """A zygote died while it started."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"workers cannot start: the zygote died while it loaded the work ({cause})")
        self.is_from_outside = cause in {describe_status(-signal.SIGKILL), _UNKNOWN_END}
        """Whether it was killed (SIGKILL)."""


class ZygoteProcess:
    """The zygote of one pool, restarted under the same object where it dies.

    Process: only the process that made it may use it; in a forked child `abandon` closes the child's copies.
    """

    def __init__(self, setup: WorkerSetup, *, starts_fresh: bool, start_timeout_seconds: float) -> None:
        self._fds = setup.fds
        self._starts_fresh = starts_fresh
        self._timeout_seconds = start_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._has_warned = False
        self._let_go = threading.Event()
        pickled = pickle.dumps(setup)
        self._setup_fd = shared_memory("mpload-setup", len(pickled))
        with open(self._setup_fd, "wb", closefd=False) as file:
            file.write(pickled)

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def control(self) -> socket.socket:
        """Readable when there is something to `read`."""
        assert self._control is not None
        return self._control

    def start(self) -> None:
        """Start the process and wait until it has loaded the work.

        Raises:
            WorkerError: it could not load the work, or took longer than `start_timeout_seconds`.
            ZygoteDiedError: it died over it.
            RefusedError: the system gives no process or descriptor. It may be tried again.
        """
        with told_as_refused("workers cannot start"):
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    self._from_lasting_thread(theirs.fileno())
                except BaseException:
                    control.close()
                    raise
        if self._control is not None:
            self._control.close()
        self._control = control
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def _from_lasting_thread(self, control_fd: int) -> None:
        """Start the process from a thread that lives as long as this process, since it is killed when that ends.

        That is the main thread. In place of any other, one of our own starts it, and waits until the zygote is dead.
        """
        if threading.get_native_id() == os.getpid():
            self._launch(control_fd)
            return
        launched: Future[None] = Future()
        let_go = self._let_go = threading.Event()

        def run() -> None:
            try:
                self._launch(control_fd)
                launched.set_result(None)
            except BaseException as error:  # noqa: BLE001  raised by who waits for it
                launched.set_exception(error)
            else:
                let_go.wait()  # no limit: whoever sees the zygote dead sets it, and a daemon thread keeps nobody

        try:
            threading.Thread(target=run, name="mpload-launch", daemon=True).start()
        except RuntimeError as error:
            raise BlockingIOError(errno.EAGAIN, str(error)) from error
        launched.result()

    def _launch(self, control_fd: int) -> None:
        arguments = [sys.executable, "-P", "-m", "mpload.transport.zygote"]
        arguments += [str(number) for number in (control_fd, self._setup_fd, os.getpid(), int(self._starts_fresh))]
        package_folder = str(Path(__file__).resolve().parents[2])
        paths = [package_folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **dict.fromkeys(_THREAD_LIMITS, "1"), "PYTHONPATH": os.pathsep.join(paths)}
        # A child inherits what is blocked: Ctrl-C cannot hit the zygote before it has said that it ignores it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(*self._fds, self._setup_fd, control_fd),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _await_ready(self) -> None:
        if not _readable(self.control, self._timeout_seconds):
            raise WorkerError(
                f"workers did not start: the zygote (process {self.pid}) has not loaded the work in "
                f"{self._timeout_seconds:g} s. Do less when modules are imported, or raise start_timeout_seconds"
            )
        message = self._receive()
        if not message:
            raise ZygoteDiedError(self.end_cause())  # no variable keeps it: its frames may hold a user's batches
        told = json.loads(message)
        if "error" in told:  # by mpload, which says why and what to do
            raise WorkerError(f"workers cannot start: {told['error']}")
        if "failed" in told:
            raise WorkerError(
                "workers cannot start: the work does not load in a new process. A module that it needs may be missing "
                f"there, or may need what only the parent has:\n{told['failed'].rstrip()}"
            )

    def fork(self, worker: int) -> bool:
        """Ask for worker number `worker`; return False where the zygote is dead."""
        return self._send({"fork": worker})

    def kill_worker(self, worker: int) -> bool:
        """Have worker number `worker` killed, if it lives; return False where the zygote is dead."""
        return self._send({"kill": worker})

    def _send(self, request: dict[str, int]) -> bool:
        try:
            self.control.send(json.dumps(request).encode(), socket.MSG_DONTWAIT)
        except OSError:  # dead, or stopped for so long that nothing more fits in: both are the pool's to handle
            return False
        return True

    def read(self) -> list[WorkerForked | WorkerRefused | WorkerEnded]:
        """Return what the zygote has told since the last call, without waiting."""
        events: list[WorkerForked | WorkerRefused | WorkerEnded] = []
        while _readable(self.control, 0) and (message := self._receive()):
            told = json.loads(message)
            if "forked" in told:
                self._warn_of(told["threads"])
                events.append(WorkerForked(worker=told["forked"], pid=told["pid"]))
            elif "refused" in told:
                events.append(WorkerRefused(worker=told["refused"], error_number=told["errno"]))
            else:
                events.append(WorkerEnded(worker=told["ended"], pid=told["pid"], status=told["status"]))
        return events

    def _receive(self) -> bytes:
        try:
            return self.control.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # it died with messages of ours unread
            return b""

    def _warn_of(self, threads: list[str]) -> None:
        if threads and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"modules that workers import started {len(threads)} thread(s) ({', '.join(sorted(set(threads)))}). "
                f"Forking a process with threads may hang its workers. Import these modules later, in the workers, or "
                "use MPLoader(..., options=mpload.PoolOptions(starts_fresh=True))",
                MploadWarning,
                stacklevel=2,
            )

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        assert self._process is not None
        return self._process.poll() is not None

    def end_cause(self) -> str:
        """Return how the process ended, which it must have or be about to."""
        assert self._process is not None
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it has closed its socket, and lives on
            self._process.kill()
            self._process.wait()
            return "it closed its connection, and went on"
        if not status and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            return _UNKNOWN_END
        return describe_status(status)

    def kill(self) -> None:
        """Kill the zygote, and its workers with it, and wait until all are gone. May be called again."""
        if self._process is not None and self._control is not None:
            self._process.kill()
            self._process.wait()
            self._await_end(_END_SECONDS)
        self._let_go.set()

    def close(self) -> None:
        """End the zygote and its workers, politely at first, and let go of everything. May be called again."""
        if self._setup_fd < 0:
            return
        if self._process is not None and self._control is not None and not self.is_dead():
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            self._await_end(_END_SECONDS)
        self.kill()
        self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptors; other processes do not notice."""
        if self._setup_fd >= 0:
            os.close(self._setup_fd)
            self._setup_fd = -1
        if self._control is not None:
            self._control.close()
            self._control = None

    def _await_end(self, limit_seconds: float) -> None:
        """Read until end of file: the zygote and all workers hold the other end."""
        deadline = time.monotonic() + limit_seconds
        while _readable(self.control, max(0.0, deadline - time.monotonic())):
            if not self._receive():
                return


def pickle_work(work: Work) -> bytes:
    """Return `work` as bytes from which the zygote makes a copy.

    Raises:
        ArgumentError: it cannot be pickled.
    """
    try:
        pickled: bytes = cloudpickle.dumps(work)
    except Exception as error:
        raise ArgumentError(
            f"workers cannot get a copy of {type(work).__name__}: {type(error).__name__}: {error}. "
            "Open files, and make locks, clients and generators, in the worker, when they are first used"
        ) from error
    return pickled


def describe_status(status: int) -> str:
    """Return an exit status in words: `SIGSEGV`, `exit status 3`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # a real-time signal
        return f"signal {-status}"


def _readable(sock: socket.socket, limit_seconds: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(limit_seconds * 1000))
