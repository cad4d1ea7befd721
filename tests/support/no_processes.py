"""A test that is not marked `processes` starts none, so that `pytest -m "not processes"` stays fast."""

from pathlib import Path
from typing import Any

__all__ = ["refuse_processes", "unmarked"]

unmarked: list[str] = []
"""The test that is running, where it is not marked."""


def refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail the running test where it starts a process; an audit hook.

    What libraries start to find out about the machine is left to them, and so is `multiprocessing` by spawn, of which
    Python tells its audit hooks nothing.
    """
    is_python = event == "subprocess.Popen" and Path(str(arguments[0])).name.startswith(("python", "mpload"))
    if unmarked and (is_python or event in {"os.fork", "os.forkpty"}):
        raise AssertionError(f"{unmarked[0]} starts a process. Mark it with @pytest.mark.processes")
