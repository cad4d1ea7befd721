"""Commands work the same if stdin, stdout or stderr is closed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.photos import make_photo_tree
from tests.support.programs import REPOSITORY

pytestmark = pytest.mark.processes


def run(command: str, closed: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = f'exec "$0" -m mpload {command} {closed}'
    return subprocess.run(
        ["sh", "-c", program, sys.executable], capture_output=True, text=True, timeout=60, cwd=folder, check=False,
        env={"PYTHONPATH": str(REPOSITORY), "HOME": str(folder)},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_works_with_closed_streams(closed: str, tmp_path: Path) -> None:
    make_photo_tree(tmp_path / "photos", num_images=4, num_classes=2, seed=0)
    made = run("index photos -o all.txt", closed, tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert bool(made.stdout) is (closed == "2>&-")
    lines = (tmp_path / "all.txt").read_text().splitlines()
    assert sum(not line.startswith("#") for line in lines) == 4
    failed = run("inspect missing.txt", closed, tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert bool(failed.stderr) is (closed == ">&-")


def test_what_a_command_starts_writes_into_no_file_of_ours(tmp_path: Path) -> None:
    ran = run("monitor --json --csv all.csv -- echo hello", "<&- >&- 2>&-", tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert "hello" not in (tmp_path / "all.csv").read_text()


def test_the_version_is_asked_for_with_closed_streams(tmp_path: Path) -> None:
    assert run("--version", ">&-", tmp_path).returncode == 0
