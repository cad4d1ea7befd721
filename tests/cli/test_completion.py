"""Shell completion of the command line, in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
COMPLETE = """
{script}
COMP_WORDS=({words}) COMP_CWORD={number}
_mpload_completion mpload
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def bash(script: str, folder: Path) -> str:
    """Return the output of a script that finds `mpload` in `folder`."""
    command = folder / "mpload"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m mpload "$@"\n')
    command.chmod(0o755)
    search_paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment = {**os.environ, **search_paths}
    ran = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.fixture(scope="module")
def completion_script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script that a user adds to `.bashrc`."""
    return bash("mpload --show-completion; true", tmp_path_factory.mktemp("shown"))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "number", "completions"),
    [
        ("mpload in", 1, ["index", "inspect"]),
        ("mpload cache ver", 2, ["verify"]),
        ("mpload doctor --step", 2, ["--step-time"]),
        ("mpload pack --format l", 3, ["lmdb"]),
        ("mpload inspect tra", 2, []),  # bash itself completes file names
    ],
)
def test_bash_completes_commands_options_and_values(
    completion_script: str, words: str, number: int, completions: list[str], tmp_path: Path
) -> None:
    assert bash(COMPLETE.format(script=completion_script, words=words, number=number), tmp_path).split() == completions
