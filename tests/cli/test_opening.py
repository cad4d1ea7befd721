"""Commands that are given a path where there is no index."""

from pathlib import Path

import pytest

from tests.support.programs import mpload

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "command",
    ["inspect", "inspect --check", "select -o out.txt", "merge -o out.txt", "pack -o out", "doctor", "bench decode"],
)
def test_all_commands_refuse_a_missing_index_with_the_same_message_and_exit_code(tmp_path: Path, command: str) -> None:
    path = tmp_path / "missing.txt"
    ran = mpload(*command.split(), path, cwd=tmp_path)
    message = f"mpload: There is no index at '{path}'. Make one: mpload index FOLDER -o {path}\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["inspect --check", "merge -o out.txt"])
def test_commands_refuse_a_folder_with_the_same_message_and_exit_code(tmp_path: Path, command: str) -> None:
    path = tmp_path / "photos"
    path.mkdir()
    ran = mpload(*command.split(), path, cwd=tmp_path)
    message = f"mpload: {path}: is a directory. Make an index of it: mpload index {path} -o train.txt\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", message)
    assert list(tmp_path.iterdir()) == [path]
