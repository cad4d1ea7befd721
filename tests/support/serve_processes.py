"""Servers as users run them: `mpload serve` in processes of their own, and a proxy that breaks connections to them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import REPOSITORY

__all__ = ["Process", "fault_proxy", "serve_process"]


@dataclass
class Process:
    """A running server or proxy."""

    url: str
    pid: int

    def signal(self, number: int) -> None:
        """Send a signal to it and, if it is a server, to its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@contextmanager
def serve_process(index: Path, *options: str, port: int = 0, before: Sequence[str] = ()) -> Iterator[Process]:
    """Serve an index, and kill the server at the end. `before` is written before the command."""
    command = [sys.executable, "-m", "mpload", "serve", str(index), "--port", str(port), "--workers=1", *options]
    with _started([*before, *command]) as it:
        yield it


@contextmanager
def fault_proxy(url: str, fault: str) -> Iterator[Process]:
    """Start a proxy in front of a server: see `tests/support/fault_proxy.py`."""
    with _started([sys.executable, "-m", "tests.support.fault_proxy", url, fault]) as proxy:
        yield proxy


@contextmanager
def _started(command: list[str]) -> Iterator[Process]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        found = Process(url=url, pid=process.pid)
        try:
            yield found
        finally:
            found.signal(signal.SIGCONT)
            found.signal(signal.SIGKILL)
