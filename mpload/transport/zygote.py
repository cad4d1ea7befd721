"""The process from which workers are forked: `python -m mpload.transport.zygote`, started by `launch`.

It loads the work once, exempts it from garbage collection (`gc.freeze`), and then forks a worker whenever the parent
asks for one. A fork takes milliseconds and shares all memory that stays unchanged. The zygote runs no user code except
imports and unpickling, has no threads of its own, reaps its workers and reports to the parent how they ended.

It exchanges JSON with the parent over a socket, one object per message:

    to the zygote     {"fork": worker}   {"kill": worker}   end of file: let workers finish, then exit
    to the parent     {"ready": true}    {"failed": text}   {"error": text}   (an error of mpload, with the next step)
                      {"forked": worker, "pid": pid, "threads": [name, ...]}
                      {"refused": worker, "errno": of the fork}
                      {"ended": worker, "pid": pid, "status": exit status, or negative signal number}

Workers keep the zygote's end of the socket open, so the parent reads end of file when all of them are gone.
"""

import gc
import io
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from mpload.errors import MploadError
from mpload.transport.hash_order import digests_of_globals
from mpload.transport.kernel import die_with_parent, set_process_name, thread_names, trim_heap
from mpload.transport.settings import interpreter_flags
from mpload.transport.worker import WorkerSetup, Workplace, run_worker

__all__ = ["begin", "flush_output", "main", "serve"]

_EXIT_SECONDS = 0.25
"""Time that workers have to finish their chunk when the pool closes."""
_MESSAGE_BYTES = 1 << 16


class _Zygote:
    def __init__(self, control: socket.socket, *, setup_fd: int, place: Workplace | None) -> None:
        self._control = control
        self._setup_fd = setup_fd
        self._place = place  # None: workers start as new processes
        self._workers: dict[int, tuple[int, int]] = {}  # by pidfd: number, pid
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> int:
        """Serve the parent until it closes the socket. If it dies, the kernel kills this process and its workers."""
        while True:
            # No time limit: everything that can happen here is polled, and an idle loader uses no CPU time.
            for fd, _ in self._poll.poll():
                if fd in self._workers:
                    self._reap(fd)
                elif fd == self._control.fileno():
                    message = self._receive()
                    if not message:
                        return self._finish()
                    self._handle(json.loads(message))

    def _receive(self) -> bytes:
        try:
            return self._control.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # the parent closed the socket before it read all our messages
            return b""

    def _handle(self, request: dict[str, int]) -> None:
        if "fork" in request:
            number = request["fork"]
            try:
                threads = thread_names()
                pid = self._start(number)
            except OSError as error:
                self._send({"refused": number, "errno": error.errno})
            else:
                self._send({"forked": number, "pid": pid, "threads": threads})
        else:
            for number, pid in self._workers.values():
                if number == request["kill"]:
                    os.kill(pid, signal.SIGKILL)

    def _start(self, number: int) -> int:
        pid = self._fork(number) if self._place else self._spawn(number)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # no free descriptor
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._workers[pidfd] = number, pid
        self._poll.register(pidfd, select.POLLIN)
        return pid

    def _fork(self, number: int) -> int:
        assert self._place is not None
        zygote_pid = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the parent gets their names and warns
            pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            for fd in self._workers:
                os.close(fd)
            status = run_worker(number, self._place, parent_pid=zygote_pid)
        except BaseException:  # noqa: BLE001  the child must never return into the zygote's loop
            traceback.print_exc()
        finally:
            flush_output()
            os._exit(status)

    def _spawn(self, number: int) -> int:
        arguments = [sys.executable, *interpreter_flags(), "-m", "mpload.transport.fresh"]
        arguments += map(str, (self._setup_fd, self._control.fileno(), number, os.getpid()))
        return os.posix_spawn(sys.executable, arguments, os.environ)

    def _reap(self, pidfd: int) -> None:
        number, pid = self._workers.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._send({"ended": number, "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any]) -> None:
        if not _send_message(self._control, message):
            self._poll.unregister(self._control)
            self._finish()
            os._exit(1)

    def _finish(self) -> int:
        """Give workers a moment to finish their chunk, then kill those that remain."""
        deadline = time.monotonic() + _EXIT_SECONDS
        for limit in (deadline, None):
            for pidfd, (_, pid) in list(self._workers.items()):
                if limit is None:
                    os.kill(pid, signal.SIGKILL)
                left_ms = None if limit is None else max(0.0, 1000 * (limit - time.monotonic()))
                ended = select.poll()  # `select.select` refuses descriptors above 1023
                ended.register(pidfd, select.POLLIN)
                if ended.poll(left_ms):
                    os.waitpid(pid, 0)
                    del self._workers[pidfd]
        return 0


def _send_message(control: socket.socket, message: dict[str, Any]) -> bool:
    """Send a message to the parent; return False if it has closed the socket."""
    try:
        control.send(json.dumps(message).encode())
    except ConnectionError:
        return False
    return True


def begin(parent_pid: int) -> None:
    """Make this process a zygote of the process `parent_pid`."""
    die_with_parent(parent_pid)
    # A signal that the parent ignores stays ignored across exec. With SIGCHLD ignored, exit statuses are lost: those of
    # our workers, and those of processes that a library starts in a worker.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # the parent has blocked it until now
    set_process_name("mpload-zygote")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that output is not lost when a worker is killed


def flush_output() -> None:
    """Write out what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "flush"):  # None in a daemon; the user's own object may have no such method
            stream.flush()


def serve(
    control: socket.socket, *, setup_fd: int, place: Workplace | None, digests: Mapping[str, Any] | None = None
) -> int:
    """Fork workers on demand until the parent closes the socket; return the exit status.

    Args:
        control: the socket.
        setup_fd: the descriptor of the setup, for new processes.
        place: the loaded work; None starts workers as new processes.
        digests: those of `digests_of_globals`, if this process has imported the user's modules.
    """
    gc.freeze()
    if not _send_message(control, {"ready": True, "digests": digests or {}}):
        return 1
    return _Zygote(control, setup_fd=setup_fd, place=place).run()


def main(arguments: Sequence[str]) -> int:
    """Run the zygote of the process that started this one; return the exit status."""
    control_fd, setup_fd, parent_pid, starts_fresh = map(int, arguments)
    begin(parent_pid)
    place = None
    with socket.socket(fileno=control_fd) as control:
        if not starts_fresh:
            try:
                setup = WorkerSetup.read(setup_fd)
                os.set_inheritable(control_fd, False)
                os.close(setup_fd)
                place = Workplace.enter(setup)
                del setup
            except MploadError as error:
                _send_message(control, {"error": str(error)[:8000]})
                return 1
            except BaseException:  # noqa: BLE001  importing the user's modules may raise anything
                _send_message(control, {"failed": traceback.format_exc()[-8000:]})
                return 1
        gc.collect()
        trim_heap()
        if place is None:
            return serve(control, setup_fd=setup_fd, place=None)
        with place.answers:
            return serve(control, setup_fd=setup_fd, place=place, digests=digests_of_globals())


if __name__ == "__main__":
    status = main(sys.argv[1:])
    flush_output()
    os._exit(status)  # the user's modules might block a normal exit, and nothing is left to clean up
