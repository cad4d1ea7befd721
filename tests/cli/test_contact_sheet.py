"""The contact sheet of `mpload inspect --grid`: it shows every sample, and names in any script."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import open_index
from mpload.cli.grid import read_sheet
from tests.support.programs import mpload, told

pytestmark = pytest.mark.processes

RUNS = [40 * 90 + 30, *([30, 60] * 39), 30, 30 + 40 * 90]  # of a mask with rows 30 to 59 and columns 40 to 79
COMPRESSED = json.dumps(
    {
        "size": [90, 120],
        "counts": "^a3n0l100000000000000000000000000000000000000000000000000000000000000000000000000000b_3",
    }
)
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


def photo_with(folder: Path, **cells: str) -> NDArray[np.uint8]:
    """Return the sheet of one red photo of 120 x 90 pixels, with further columns. Files have names with a dot."""
    cv2.imwrite(str(folder / "red.png"), solid(COLOURS["red"]))
    columns = "".join(f" {name}:{'path' if cell.endswith(('.png', '.txt')) else 'str'}" for name, cell in cells.items())
    line = "\t".join(["red.png", *(cell.replace("\n", "\\n") for cell in cells.values())])
    (folder / "index.txt").write_text(f"#mpload 1\n#columns image:path{columns}\n{line}\n")
    sheet = read_sheet(open_index(folder / "index.txt"), num_tiles=4, seed=0)
    assert len(sheet.tiles) == 1
    image = sheet.tiles[0].image
    assert not isinstance(image, str)
    return np.asarray(image, np.uint8)


def changed(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(np.abs(image.astype(int) - COLOURS["red"]).max(axis=2) > 3, np.bool_)


def test_a_mask_is_drawn_over_its_photo(tmp_path: Path) -> None:
    mask = np.zeros((90, 120), np.uint8)
    mask[30:60, 40:80] = 2
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    assert np.array_equal(changed(photo_with(tmp_path, mask="mask.png")), mask > 0)


@pytest.mark.parametrize(
    "boxes",
    [
        '{"boxes":[[40,30,40,30]],"labels":[1]}',
        '{"width":240,"height":180,"boxes":[[80,60,80,60]]}',
        "1 0.5 0.5 0.33333333 0.33333333",
        '{"format":"yolo","boxes":[[0.5,0.5,0.33333333,0.33333333]],"labels":[1]}',
    ],
)
def test_boxes_are_drawn_over_their_photo(tmp_path: Path, boxes: str) -> None:
    found = changed(photo_with(tmp_path, boxes=boxes))
    rows, columns = np.flatnonzero(found.any(axis=1)), np.flatnonzero(found.any(axis=0))
    assert np.abs(np.array([rows[0], rows[-1], columns[0], columns[-1]]) - [30, 60, 40, 80]).max() <= 2
    assert not found[35:55, 45:75].any()


@pytest.mark.parametrize(
    "boxes",
    [
        *(
            f'{{"boxes":[[40,30,40,30]],"segments":[{segment}]}}'
            for segment in ("[[40,30,80,30,80,60,40,60]]", json.dumps({"size": [90, 120], "counts": RUNS}), COMPRESSED)
        ),
        "1 0.333333 0.333333 0.666666 0.333333 0.666666 0.666666 0.333333 0.666666",
        "0 0.5 0.5 0.01 0.01\n1 0.333333 0.333333 0.666666 0.333333 0.666666 0.666666 0.333333 0.666666",
    ],
)
def test_segments_are_drawn_over_their_photo(tmp_path: Path, boxes: str) -> None:
    found = changed(photo_with(tmp_path, boxes=boxes))
    assert found[33:57, 43:77].all()
    assert not found[:27].any()
    assert not found[:, :37].any()


@pytest.mark.parametrize(
    "boxes",
    [
        "[1,2]",
        "{",
        '{"boxes":3}',
        '{"boxes":[[1,2,3]]}',
        '{"boxes":[[1,2,3,1e999]]}',
        "a b c d e",
        "0 50 50 20 20",
        '{"boxes":[[1,1,1,1]],"width":0}',
        '{"boxes":[["a",1,1,1]]}',
        '{"boxes":[[1,1,1,1]],"segments":[{"size":[9,9],"counts":"~~~~~~~~~~~~~~~~~"}]}',
    ],
)
def test_objects_that_cannot_be_read_are_a_fact_of_their_tile(tmp_path: Path, boxes: str) -> None:
    photo_with(tmp_path, boxes=boxes)
    (tile,) = read_sheet(open_index(tmp_path / "index.txt"), num_tiles=4, seed=0).tiles
    assert tile.facts[-1] == "unreadable objects"


@pytest.mark.parametrize("name", ["dog", "قطة"])
def test_the_name_of_a_class_is_written_into_the_box_of_its_object(tmp_path: Path, name: str) -> None:
    cell = '{"boxes":[[40,30,40,30]],"labels":[1]}'
    without = changed(photo_with(tmp_path, boxes=cell))
    text = (tmp_path / "index.txt").read_text()
    drawn = []
    for classes in (name, f"{name}{name}"):
        (tmp_path / "index.txt").write_text(text.replace("\nred", f"\n#classes cat\t{classes}\nred"))
        (tile,) = read_sheet(open_index(tmp_path / "index.txt"), num_tiles=4, seed=0).tiles
        assert not isinstance(tile.image, str)
        drawn.append(changed(np.asarray(tile.image, np.uint8)) & ~without)
    rows, columns = np.nonzero(drawn[0])
    assert (rows.min() >= 30, rows.max() < 45, columns.min() >= 40, columns.max() < 80) == (True,) * 4
    is_shown_by_name = name.isascii()
    assert (drawn[1].sum() > drawn[0].sum()) == is_shown_by_name  # names in other scripts are shown as numbers


def test_a_caption_is_shown_with_its_photo(tmp_path: Path) -> None:
    (tmp_path / "red.txt").write_text("a red\nwall\n")
    photo_with(tmp_path, caption="red.txt")
    (tile,) = read_sheet(open_index(tmp_path / "index.txt"), num_tiles=4, seed=0).tiles
    assert tile.facts == ("120 x 90", "a red wall")
