"""`mpload select`: its options choose the samples that they name, and wrong ones are refused."""

from itertools import chain
from pathlib import Path

import pytest

from mpload import open_index
from tests.support.programs import mpload

pytestmark = pytest.mark.processes


@pytest.fixture
def index(tmp_path: Path) -> Path:
    lines = "".join(f"{'night' if n % 4 == 0 else 'day'}/{n}.jpg\t{n % 2}\n" for n in range(40))
    header = "#mpload 1\n#root /data\n#columns image:path label:int\n#classes cat\tdog\n"
    (tmp_path / "a.txt").write_text(header + lines)
    (tmp_path / "keys.txt").write_text("day/1.jpg\r\nnight/8.jpg\n\n")
    (tmp_path / "lines.txt").write_text("5\n44\n")
    return tmp_path / "a.txt"


def numbers(path: Path) -> list[int]:
    return [int(str(record["image"]).split("/")[1].removesuffix(".jpg")) for record in open_index(path)]


def test_samples_are_selected_by_conditions_keys_and_lines(index: Path) -> None:
    folder = index.parent

    def selected(*options: str) -> list[int]:
        ran = mpload("select", "a.txt", "-o", "b.txt", *options, cwd=folder)
        assert (ran.returncode, ran.stderr) == (0, "")
        found = numbers(folder / "b.txt")
        assert ran.stdout == f"{folder / 'b.txt'}: {len(found)} sample{'s' * (len(found) > 1)} of 40\n"
        return found

    assert selected("--where", "label == 'dog' and 'night' not in image") == list(range(1, 40, 2))
    assert selected("--keys", "keys.txt") == [1, 8]
    assert selected("--lines", "lines.txt") == [0, 39]
    assert selected("--lines", "lines.txt", "--where", "label == 0") == [0]
    assert len(selected("--share", "0.25", "--stratify", "label", "--seed", "3")) == 10
    folds = [selected("--folds", "3", "--fold", str(number)) for number in range(3)]
    assert sorted(chain(*folds)) == list(range(40))
    assert selected("--folds", "3", "--fold", "1", "--rest") == [n for n in range(40) if n not in folds[1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--where lable==1", "has no column lable. Do you mean label?"),
        ("--folds 5", "--folds and --fold go together: --folds 5 --fold 0"),
        ("--fold 0", "--folds and --fold go together"),
        ("--share 0.5 --folds 5 --fold 0", "--share and --folds exclude each other"),
        ("--stratify label", "--stratify is for --share and --folds"),
        ("--rest", "--rest is for --folds"),
        ("--share 2", "a share must be in (0, 1], got 2.0"),
        ("--folds 3 --fold 3", "number must be in [0, 3), got 3"),
        ("--key-column image", "Add --keys FILE"),
        ("--lines keys.txt", "'day/1.jpg' is not the number of a sample's line in"),
    ],
)
def test_wrong_options_are_refused_with_the_next_step(index: Path, options: str, message: str) -> None:
    ran = mpload("select", "a.txt", "-o", "b.txt", *options.split(), cwd=index.parent)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (index.parent / "b.txt").exists()


def test_line_numbers_are_not_taken_for_those_of_a_list_of_parts(index: Path) -> None:
    (index.parent / "parts.txt").write_text("#mpload 1\n#parts\na.txt\na.txt\n")
    ran = mpload("select", "parts.txt", "-o", "b.txt", "--lines", "lines.txt", cwd=index.parent)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "parts.txt: lists parts, which have lines of their own. Pass --lines of one part" in ran.stderr
    assert not (index.parent / "b.txt").exists()
