"""A process that runs mpload's commands, each in a fork of itself, which saves the seconds that imports take."""

import atexit
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from mpload.transport.kernel import die_with_parent

__all__ = ["run_forked"]

_REPOSITORY = Path(__file__).parents[2]


def run_forked(
    arguments: list[str], cwd: Path, environment: Mapping[str, str], timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command in a fork of a process that has imported mpload and torch.

    Raises:
        TimeoutError: The command did not end in time. It is killed when the tests end.
    """
    sys.audit("subprocess.Popen", sys.executable, arguments, cwd, None)  # for tests.support.no_processes
    server = _server()
    server.settimeout(timeout_seconds)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        asked = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": dict(environment),
            "outputs": [*map(str, outputs)],
        }
        server.sendall(json.dumps(asked).encode() + b"\n")
        code = int(server.recv(64))
        stdout, stderr = (path.read_text() for path in outputs)
    return subprocess.CompletedProcess(arguments, code, stdout, stderr)


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.run(
            [sys.executable, "-m", __name__, str(theirs.fileno())], cwd=_REPOSITORY, check=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    atexit.register(ours.close)  # ends the process
    return ours


def _serve(connection: socket.socket) -> None:
    """Return in the fork for each command, with everything set up to run it; end this process when the tests end."""
    with suppress(ConnectionError), connection.makefile("rb") as lines:
        for line in lines:
            asked = json.loads(line)
            parent, pid = os.getpid(), os.fork()
            if not pid:
                die_with_parent(parent)
                connection.detach()
                return _become(**asked)
            connection.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[str]) -> None:
    for number, path in enumerate(outputs, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["mpload", *arguments]
    sys.path[0] = cwd


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # many tests count the children of their process, which this one must not be

    import torch  # noqa: F401  takes longest

    import mpload.cli
    from mpload.cli.main import main

    for module in iter_modules(mpload.cli.__path__):
        import_module(f"mpload.cli.{module.name}")
    gc.freeze()  # forks would copy what a collection touches
    _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        main()
    except SystemExit as end:  # as at the end of any interpreter, but without freeing what was imported
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)
