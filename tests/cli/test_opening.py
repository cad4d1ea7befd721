"""Commands that are given a path where there is no index."""

from pathlib import Path

import pytest

from tests.support.programs import mpload

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.txt", "mpload: There is no index at 'missing.txt'. Make one: mpload index FOLDER -o missing.txt\n"),
        ("photos", "mpload: photos: is a directory. Make an index of it: mpload index photos -o train.txt\n"),
    ],
)
@pytest.mark.parametrize(
    "command",
    ["inspect", "inspect --check", "merge -o out.txt", "pack -o out", "doctor", "tune", "bench decode"],
)
def test_all_commands_refuse_a_missing_index_with_the_same_message_and_exit_code(
    tmp_path: Path, command: str, path: str, message: str
) -> None:
    (tmp_path / "photos").mkdir()
    ran = mpload(*command.split(), path, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", message)
    assert [file.name for file in tmp_path.iterdir()] == ["photos"]
