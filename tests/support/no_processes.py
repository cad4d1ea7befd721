"""Keeps tests without the mark `processes` from starting processes, so that `pytest -m "not processes"` stays fast."""

from pathlib import Path
from typing import Any

__all__ = ["refuse_processes", "unmarked"]

unmarked: list[str] = []
"""The running test, if it does not have the mark."""


def refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail the running test if it starts a process (an audit hook).

    Other programs are allowed, since libraries run them to inspect the machine. Processes that `multiprocessing` spawns
    are not noticed, since they raise no audit event.
    """
    is_python = event == "subprocess.Popen" and Path(str(arguments[0])).name.startswith(("python", "mpload"))
    if unmarked and (is_python or event in {"os.fork", "os.forkpty"}):
        raise AssertionError(f"{unmarked[0]} starts a process. Mark it with @pytest.mark.processes")
