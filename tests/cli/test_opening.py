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


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def made(): raise KeyError('no config')",
            "calling made() raised KeyError: 'no config' (FILE:1). Name a dataset, or",
        ),
        (
            "def made(path): ...",
            "calling made() raised TypeError: made() missing 1 required positional argument: 'path'. Name",
        ),
        ("x = 1\nmade = x / 0", "importing mine raised ZeroDivisionError: division by zero (FILE:2)"),
        ("made = = 3", "importing mine raised SyntaxError: invalid syntax (mine.py, line 1)"),
    ],
)
def test_the_doctor_says_what_the_users_module_raised_and_where(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    ran = mpload("doctor", "mine:made", cwd=tmp_path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
    assert f"mpload: DATASET mine:made: {message}".replace("FILE", str(tmp_path / "mine.py")) in ran.stderr


def test_a_plan_of_a_step_alone_names_the_options_that_are_missing(tmp_path: Path) -> None:
    ran = mpload("plan", "--batch-size", "8", "--step-time", "0.1", cwd=tmp_path)
    assert "give --iops, or --bandwidth with --sample-size, and --cores with --core-us" in ran.stdout
    ran = mpload("plan", "--batch-size", "8", "--step-time", "0.1", "--bandwidth", "50MB", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--bandwidth 50MB counts bytes, not samples. Give --sample-size too" in ran.stderr
    ran = mpload("plan", "--batch-size", "8", "--step-time", "0", cwd=tmp_path)
    assert ran.returncode == 2
    assert "--step-time" in ran.stderr
