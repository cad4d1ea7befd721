"""A process of which zygotes are copies, which saves them the second that importing torch takes.

A copy replaces the new interpreter `python -m mpload.transport.zygote`: it gets the same descriptors, environment and
folder, loads the pickled work, imports the modules of the tests, and is a child of the process that asked for it.
"""

import array
import atexit
import ctypes
import fcntl
import gc
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from mpload.transport import launch, zygote
from mpload.transport.forking import ForkedProcess

__all__ = ["IS_SUPPORTED", "prepare_template", "stop_template", "subprocess_with_template", "template_pid"]

_CLONE_CALL = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), 0)
_CLONE_PARENT = 0x8000
_MESSAGE_BYTES = 1 << 18
_FREE_FDS = 500
_POLL_SECONDS = 5.0
IS_SUPPORTED = sys.platform == "linux" and _CLONE_CALL != 0


def subprocess_with_template() -> SimpleNamespace:
    """Return what `mpload.transport.launch` uses of the module `subprocess`, with zygotes that are copies."""
    return SimpleNamespace(Popen=_start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


def _start(
    arguments: list[str], *, stdin: int, env: Mapping[str, str], pass_fds: Sequence[int]
) -> "ForkedProcess | subprocess.Popen[bytes]":
    assert stdin == subprocess.DEVNULL
    name = arguments.index("-m") + 1  # after the interpreter's flags
    assert arguments[name] == zygote.__name__
    if not _makes_children_of_this_process():
        return subprocess.Popen(arguments, stdin=stdin, env=env, pass_fds=pass_fds)
    sys.audit("subprocess.Popen", sys.executable, arguments, None, env)  # for tests.support.no_processes
    fds = [1, 2, *pass_fds]
    asked = {
        "arguments": arguments[name + 1 :],
        "cwd": str(Path.cwd()),
        "environment": dict(env),
        "fds": fds,
        "cores": [*os.sched_getaffinity(0)],
    }
    connection = _template().connection
    message, passed = json.dumps(asked).encode(), array.array("i", fds)
    assert len(message) <= _MESSAGE_BYTES
    connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    return ForkedProcess(int(connection.recv(64)))


def _makes_children_of_this_process() -> bool:
    """Return whether a copy would be a child of this process, and live as long as its main thread."""
    if _template.cache_info().currsize:
        return _template().owner_pid == os.getpid()
    return threading.current_thread() is threading.main_thread()


def prepare_template() -> None:
    """Start the template if the running test uses one, before the test counts what its loaders leave."""
    if isinstance(vars(launch)["subprocess"], SimpleNamespace):
        _template()


def template_pid() -> int | None:
    """Return the process id of this process's template; None if there is none."""
    return _template().process.pid if _template.cache_info().currsize else None


@atexit.register
def stop_template() -> None:
    """End this process's template, if there is one: its memory would count as that of the loaders."""
    if _template.cache_info().currsize and _template().owner_pid == os.getpid():
        template = _template()
        template.connection.close()
        template.process.kill()
        template.process.wait(timeout=60)
        _template.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    connection: socket.socket
    process: "subprocess.Popen[bytes]"
    owner_pid: int


@cache
def _template() -> _Template:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    no_threads = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # pyarrow's allocator
    no_threads |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            env={**os.environ, **no_threads, "PYTHONPATH": str(Path(__file__).parents[2])},
            cwd="/", stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    ours.settimeout(60)
    assert ours.recv(64) == b"ready"
    return _Template(connection=ours, process=process, owner_pid=os.getpid())


def _serve(connection: socket.socket) -> list[str]:
    """Return, in a copy, the arguments of its zygote; end this process when the tests end."""
    folder = sys.path.pop(0)
    assert folder == str(Path(__file__).parents[2])
    connection.send(b"ready")
    parent_pid = os.getppid()
    connection.settimeout(_POLL_SECONDS)
    while True:
        try:
            message, passed, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 64)
        except TimeoutError:  # forks of the parent may keep its socket open
            message, passed = b"", []
            if os.getppid() == parent_pid:
                continue
        if not message:
            os._exit(0)
        asked = json.loads(message)
        if pid := _copy():
            connection.send(b"%d" % pid)
            for fd in passed:
                os.close(fd)
            continue
        connection.close()
        _become(passed=passed, **asked)
        arguments: list[str] = asked["arguments"]
        return arguments


def _copy() -> int:
    """Fork; the parent of the new process is the parent of this one, which has a single thread."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)  # both keep the interpreter's lock
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(_CLONE_CALL, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    assert pid >= 0
    return pid


def _become(
    *, passed: list[int], arguments: list[str], cwd: str, environment: dict[str, str], fds: list[int], cores: list[int]
) -> None:
    free = max(_FREE_FDS, *fds) + 1  # above all numbers that are taken below
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, free) for fd in passed]
    os.closerange(3, free)
    for fd, number in zip(moved, fds, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.sched_setaffinity(0, cores)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = [zygote.__file__, *arguments]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a zygote does

    import albumentations  # type: ignore[import-untyped]  # noqa: F401
    import cv2  # noqa: F401
    import hypothesis  # noqa: F401
    import PIL.Image  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401  takes longest

    import mpload.loader.loader  # noqa: F401

    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a copy has one thread only"
    gc.freeze()  # copies would copy what a collection touches
    code = zygote.main(_serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
