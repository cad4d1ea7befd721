"""Runs scripts and mpload's commands in separate processes."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.support.command_server import run_forked

__all__ = ["REPOSITORY", "Ran", "cache_command", "mpload", "run_as_nobody", "run_script", "told"]

REPOSITORY = Path(__file__).parents[2]
Ran = subprocess.CompletedProcess[str]


def run_script(text: str, *arguments: str, prefix: tuple[str, ...] = (), **environment: str) -> Ran:
    """Run a Python program in the repository's folder; `prefix` goes before the interpreter."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(text), *arguments],
        capture_output=True, text=True, timeout=60, cwd=REPOSITORY, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def run_as_nobody(code: str, *arguments: Path, warm_up: Path) -> str:
    """Run code as a user who is bound by file permissions, unlike root, and return everything that it prints.

    The index `warm_up` is opened first, so that all imports happen before permissions are dropped.
    """
    preamble = (
        f"import os, sys, mpload, mpload.index.sidecar_writing\nmpload.open_index({str(warm_up)!r})[0]\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", preamble + code, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return ran.stdout + ran.stderr


def mpload(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> Ran:
    """Run a command of mpload in a process of its own; it can also import modules of the repository.

    The process is a fork of one that has imported everything, or a new interpreter if the environment says how it runs.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    command = [*map(str, arguments)]
    if environment["PYTHONPATH"] == str(REPOSITORY):
        return run_forked(command, cwd or Path.cwd(), environment, timeout_seconds=100)
    return subprocess.run(
        [sys.executable, "-m", "mpload", *command], capture_output=True, text=True, timeout=100, cwd=cwd,
        env=environment, check=False,
    )  # fmt: skip


def told(ran: Ran) -> Any:
    """Return the JSON output of a command, which must have succeeded without messages."""
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)


def cache_command(*arguments: str | Path) -> tuple[int, Any, str]:
    """Run `mpload cache`; return its exit code, its output (with `--json` the list of caches) and its errors."""
    ran = mpload("cache", *arguments)
    return ran.returncode, json.loads(ran.stdout)["caches"] if "--json" in arguments else ran.stdout, ran.stderr
