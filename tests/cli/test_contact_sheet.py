"""The contact sheet of `mpload inspect --grid`: it shows every sample, and names in any script."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import open_index
from mpload.cli.grid import read_sheet
from tests.support.programs import mpload, told

pytestmark = pytest.mark.processes

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 210)}


def solid(colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    return np.full((90, 120, 3), colour[::-1], np.uint8)


def num_pixels_like(sheet: NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    return int((np.abs(sheet.astype(int) - colour).max(axis=2) <= 3).sum())


def test_the_contact_sheet_shows_each_sample_or_the_reason_why_it_cannot(tmp_path: Path) -> None:
    for name, colour in COLOURS.items():
        cv2.imwrite(str(tmp_path / f"{name}.png"), solid(colour))
    lines = "".join(f"{name}.png\t{label}\n" for label, name in enumerate([*COLOURS, "missing"]))
    (tmp_path / "index.txt").write_text("#mpload 1\n#columns image:path label:int\n" + lines)
    ran = mpload("inspect", tmp_path / "index.txt", "--grid", tmp_path / "sheet.png")
    assert (ran.returncode, ran.stderr) == (0, "")
    sheet = np.asarray(cv2.imread(str(tmp_path / "sheet.png")), np.uint8)[..., ::-1]
    areas = {name: num_pixels_like(sheet, colour) for name, colour in COLOURS.items()}
    assert min(areas.values()) > 10_000
    assert max(areas.values()) == min(areas.values())  # each sample appears once
    assert num_pixels_like(sheet, (240, 128, 112)) > 100  # the reason why one sample is missing


def test_the_contact_sheet_of_pairs_shows_both_images(tmp_path: Path) -> None:
    for name, colour in COLOURS.items():
        cv2.imwrite(str(tmp_path / f"{name}.png"), solid(colour))
    (tmp_path / "pairs.txt").write_text("#mpload 1\n#columns low:path high:path\nred.png\tblue.png\n")
    sheet = read_sheet(open_index(tmp_path / "pairs.txt"), num_tiles=48, seed=0).to_pixels()
    assert num_pixels_like(sheet, COLOURS["red"]) == num_pixels_like(sheet, COLOURS["blue"]) > 10_000
    assert num_pixels_like(sheet, COLOURS["green"]) == 0


@pytest.fixture
def named_classes(tmp_path: Path) -> Path:
    """An index of one photo per class, with class names that no single font contains."""
    names = ["cat", "قطة", "🐱", "<b>猫</b>"]
    for label in range(len(names)):
        cv2.imwrite(str(tmp_path / f"{label}.png"), solid(COLOURS["red"]))
    lines = "".join(f"{label}.png\t{label}\n" for label in range(len(names)))
    columns = "#columns image:path label:int\n"
    (tmp_path / "named.txt").write_text("#mpload 1\n" + columns + "#classes " + "\t".join(names) + "\n" + lines)
    return tmp_path / "named.txt"


def test_an_html_contact_sheet_shows_names_in_any_script(named_classes: Path) -> None:
    page = named_classes.with_name("sheet.html")
    ran = mpload("inspect", named_classes, "--grid", page)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith(f"contact sheet {page}\n")
    text = page.read_text(encoding="utf-8")
    for name in ("cat", "قطة", "🐱", "&lt;b&gt;猫&lt;/b&gt;"):
        assert f"<bdi>{name}</bdi>" in text
    assert text.count('src="data:image/jpeg;base64,') == 4
    assert "http" not in text


def test_names_that_a_png_cannot_show_are_listed_by_number(named_classes: Path) -> None:
    ran = mpload("inspect", named_classes, "--grid", named_classes.with_name("sheet.png"))
    assert (ran.returncode, ran.stderr) == (0, "")
    listed = ran.stdout.partition("`--grid sheet.html` shows all names:\n")[2].splitlines()
    assert [line.split() for line in listed][:2] == [["1", "قطة"], ["2", "🐱"]]
    facts = told(mpload("inspect", named_classes, "--grid", named_classes.with_name("sheet.png"), "--json"))
    assert facts["grid"]["unshown"].items() >= {"1": "قطة", "2": "🐱"}.items()
    assert "0" not in facts["grid"]["unshown"]


def test_string_labels_that_a_png_cannot_show_are_listed_by_sample_number(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), solid(COLOURS["red"]))
    (tmp_path / "words.txt").write_text("#mpload 1\n#columns image:path label:str\na.png\tقطة\na.png\tcat\n")
    assert read_sheet(open_index(tmp_path / "words.txt"), num_tiles=4, seed=0).unshown == {"#0": "قطة"}
