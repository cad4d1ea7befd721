"""The command line as a user or a script meets it: real processes, their output and exit codes."""

import itertools
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import open_index
from mpload.cli.grid import read_sheet
from mpload.cli.summary import count_labels
from tests.support.photos import make_photo_tree
from tests.support.programs import Ran, mpload, told

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    make_photo_tree(root, num_images=24, num_classes=3, seed=0)
    return root


@pytest.fixture
def index(photos: Path, tmp_path: Path) -> Path:
    """A relative index of photos that a test may break."""
    shutil.copytree(photos, tmp_path / "photos")
    assert mpload("index", tmp_path / "photos", "-o", tmp_path / "all.txt", "--relative").returncode == 0
    return tmp_path / "all.txt"


def write_labels(path: Path, labels: list[int]) -> Path:
    path.write_text("#mpload 1\n#columns image:path label:int\n" + "".join(f"x.jpg\t{label}\n" for label in labels))
    return path


def assert_one_line_on_stderr(ran: Ran, *, saying: str) -> None:
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert ran.stderr.startswith("mpload: ")
    assert saying in ran.stderr
    assert ran.stdout == ""


def test_inspect_shows_what_index_was_given(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.txt"
    made = told(mpload("index", photos, "-o", out, "--stat", "--json"))
    assert made["indexes"] == [{"path": str(out), "num_samples": 24, "num_classes": 3, "root": str(photos)}]
    facts = told(mpload("inspect", out, "--json", "--records", "2"))
    sizes = sorted(file.stat().st_size for file in photos.glob("*/*"))
    assert facts["num_samples"] == 24
    assert facts["columns"] == "image:path label:int"
    assert facts["classes"] == sorted(folder.name for folder in photos.iterdir())
    assert facts["labels"]["num_samples"] == {"0": 8, "1": 8, "2": 8}
    assert facts["sizes"]["total_bytes"] == sum(sizes)
    assert (facts["sizes"]["smallest_bytes"], facts["sizes"]["largest_bytes"]) == (sizes[0], sizes[-1])
    assert facts["sizes"]["quantiles_bytes"]["0.5"] == round((sizes[11] + sizes[12]) / 2)
    assert facts["fingerprint"] == open_index(out).fingerprint
    assert facts["records"] == [
        {"sample_id": record.sample_id, "cells": list(record.cells)} for record in open_index(out)[:2]
    ]
    assert facts["text_bytes"] == out.stat().st_size
    assert facts["sidecar"]["num_bytes"] == Path(facts["sidecar"]["path"]).stat().st_size
    for word in ("24", facts["fingerprint"], "image:path label:int", *facts["classes"]):
        assert word in mpload("inspect", out).stdout


def test_inspect_says_whether_the_sidecar_was_there(index: Path) -> None:
    assert told(mpload("inspect", index, "--json"))["sidecar"]["was_fresh"]
    index.with_name(index.name + ".mpx").unlink()
    assert not told(mpload("inspect", index, "--json"))["sidecar"]["was_fresh"]
    assert told(mpload("inspect", index, "--json"))["sidecar"]["was_fresh"]


@pytest.mark.parametrize(("split", "names"), [("0.75,0.25", ["0", "1"]), ("train=0.5,val=0.25,test=0.25", None)])
def test_the_parts_of_a_split_merge_into_the_whole(
    photos: Path, tmp_path: Path, split: str, names: list[str] | None
) -> None:
    whole, out = tmp_path / "whole.txt", tmp_path / "part.txt"
    told(mpload("index", photos, "-o", whole, "--json"))
    made = told(mpload("index", photos, "-o", out, "--split", split, "--json"))["indexes"]
    paths = [Path(part["path"]) for part in made]
    assert [path.name for path in paths] == [f"part.{name}.txt" for name in names or ("train", "val", "test")]
    merged = tmp_path / "merged.txt"
    assert told(mpload("merge", *paths, "-o", merged, "--json"))["num_samples"] == 24
    assert sorted(record.cells for record in open_index(merged)) == [record.cells for record in open_index(whole)]


def test_a_relative_index_moves_with_its_photos(index: Path) -> None:
    moved = index.parent.rename(index.parent.with_name("moved")) / index.name
    assert mpload("inspect", moved, "--check").returncode == 0


def test_check_lists_every_fault_and_forgets_mended_ones(index: Path, tmp_path: Path) -> None:
    files = sorted((tmp_path / "photos").glob("*/*"))
    kept = files[5].read_bytes()
    files[5].write_bytes(kept[:500])
    files[20].rename(tmp_path / "elsewhere.jpg")
    ran = mpload("inspect", index, "--check")
    assert (ran.returncode, ran.stderr) == (1, "")
    report = tmp_path / "all.txt.findings.jsonl"
    findings = [json.loads(line) for line in report.read_text().splitlines()]
    records = {finding["path"]: finding["where"] for finding in findings}
    lines = index.read_text().splitlines()
    numbers = {line.split("\t")[0]: number for number, line in enumerate(lines, 1)}
    bad = [str(files[number].relative_to(tmp_path / "photos")) for number in (5, 20)]
    assert records == {path: f"{index}:{numbers[path]}" for path in bad}
    assert "2 findings" in ran.stdout
    assert all(path in ran.stdout for path in bad)

    files[5].write_bytes(kept)
    (tmp_path / "elsewhere.jpg").rename(files[20])
    mended = mpload("inspect", index, "--check", "--json")
    assert told(mended)["num_findings"] == 0
    assert not report.exists()


def test_check_lists_the_broken_lines_of_an_index_that_does_not_open(tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_text("#mpload 1\n#columns image:path label:int\na.jpg\t0\nb.jpg\tcat\nc.jpg\nd.jpg\t1\n")
    assert_one_line_on_stderr(mpload("inspect", path), saying="broken.txt:4: label 'cat' is not an integer")
    ran = mpload("inspect", path, "--check", "--json", "--report", tmp_path / "faults")
    assert ran.returncode == 1
    assert json.loads(ran.stdout) == {"path": str(path), "num_findings": 2, "report": str(tmp_path / "faults")}
    found = [json.loads(line)["where"] for line in (tmp_path / "faults").read_text().splitlines()]
    assert found == [f"{path}:4", f"{path}:5"]
    assert "its lines alone were checked" in mpload("inspect", path, "--check").stdout


def test_findings_of_an_index_in_a_read_only_folder_go_to_the_working_folder(index: Path, tmp_path: Path) -> None:
    sorted((tmp_path / "photos").glob("*/*"))[5].write_bytes(b"no photo")
    command = [sys.executable, "-m", "mpload", "inspect", str(index), "--check"]
    if os.geteuid() == 0:  # who may write anywhere
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is missing")
        command = ["setpriv", "--bounding-set", "-dac_override", *command]
    (tmp_path / "work").mkdir()
    options: dict[str, Any] = {"cwd": tmp_path / "work", "capture_output": True, "text": True, "timeout": 60}
    tmp_path.chmod(0o555)
    try:
        refused = subprocess.run([*command, "--report", "../faults"], check=False, **options)
        ran = subprocess.run(command, check=False, **options)
    finally:
        tmp_path.chmod(0o755)
    assert_one_line_on_stderr(refused, saying="../faults: may not be written to. Name another file")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "listed in all.txt.findings.jsonl" in ran.stdout
    assert "no photo" in (tmp_path / "work" / "all.txt.findings.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        (("--check", "--report", "no/faults"), "the folder no does not exist"),
        (("--check", "--grid", "sheet.gif"), "pictures are written as .png or .html. Name it sheet.png or sheet.html"),
        (("--check", "--grid", "no/sheet.png"), "the folder no does not exist"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    index: Path, options: tuple[str, ...], saying: str
) -> None:
    ran = mpload("inspect", index, *options)
    assert ran.returncode == 2
    assert_one_line_on_stderr(ran, saying=saying)


@pytest.mark.parametrize("lowest", [0, -7, 1000])
def test_the_histogram_counts_every_label(tmp_path: Path, lowest: int) -> None:
    labels = (lowest + np.random.default_rng(0).geometric(0.1, 3000)).tolist()
    counted = count_labels(open_index(write_labels(tmp_path / "labels.txt", labels)))
    assert counted is not None
    assert counted.counts is not None
    values, counts = np.unique(labels, return_counts=True)
    assert (counted.lowest, counted.highest) == (values[0], values[-1])
    assert counted.counts[values - counted.lowest].tolist() == counts.tolist()
    assert counted.counts.sum() == len(labels)


def test_of_many_classes_the_largest_and_the_smallest_are_shown(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "many.txt", [label for label in range(100) for _ in range(label + 1)])
    shown = [line.split() for line in mpload("inspect", path).stdout.splitlines() if "#" in line]
    assert [int(words[0]) for words in shown] == [99, 98, 97, 96, 95, 94, 5, 4, 3, 2, 1, 0]
    assert "...\n" in mpload("inspect", path).stdout


def test_labels_far_apart_take_no_memory(tmp_path: Path) -> None:
    counted = count_labels(open_index(write_labels(tmp_path / "far.txt", [0, 1 << 60])))
    assert counted is not None
    assert counted.counts is None
    assert "too far apart" in mpload("inspect", tmp_path / "far.txt").stdout


COLOURS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 210)}


def solid(colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    return np.full((90, 120, 3), colour[::-1], np.uint8)


def num_pixels_like(sheet: NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    return int((np.abs(sheet.astype(int) - colour).max(axis=2) <= 3).sum())


def test_the_contact_sheet_shows_each_sample_or_why_it_cannot(tmp_path: Path) -> None:
    for name, colour in COLOURS.items():
        cv2.imwrite(str(tmp_path / f"{name}.png"), solid(colour))
    lines = "".join(f"{name}.png\t{label}\n" for label, name in enumerate([*COLOURS, "missing"]))
    (tmp_path / "index.txt").write_text("#mpload 1\n#columns image:path label:int\n" + lines)
    ran = mpload("inspect", tmp_path / "index.txt", "--grid", tmp_path / "sheet.png")
    assert (ran.returncode, ran.stderr) == (0, "")
    sheet = np.asarray(cv2.imread(str(tmp_path / "sheet.png")), np.uint8)[..., ::-1]
    areas = {name: num_pixels_like(sheet, colour) for name, colour in COLOURS.items()}
    assert min(areas.values()) > 10_000
    assert max(areas.values()) == min(areas.values())  # each once
    assert num_pixels_like(sheet, (240, 128, 112)) > 100  # the reason why one is missing


def test_the_contact_sheet_of_pairs_shows_both_images(tmp_path: Path) -> None:
    for name, colour in COLOURS.items():
        cv2.imwrite(str(tmp_path / f"{name}.png"), solid(colour))
    (tmp_path / "pairs.txt").write_text("#mpload 1\n#columns low:path high:path\nred.png\tblue.png\n")
    sheet = read_sheet(open_index(tmp_path / "pairs.txt"), num_tiles=48, seed=0).to_pixels()
    assert num_pixels_like(sheet, COLOURS["red"]) == num_pixels_like(sheet, COLOURS["blue"]) > 10_000
    assert num_pixels_like(sheet, COLOURS["green"]) == 0


@pytest.fixture
def named_classes(tmp_path: Path) -> Path:
    """An index of one photo a class, whose names no single font has."""
    names = ["cat", "قطة", "🐱", "<b>猫</b>"]
    for label in range(len(names)):
        cv2.imwrite(str(tmp_path / f"{label}.png"), solid(COLOURS["red"]))
    lines = "".join(f"{label}.png\t{label}\n" for label in range(len(names)))
    columns = "#columns image:path label:int\n"
    (tmp_path / "named.txt").write_text("#mpload 1\n" + columns + "#classes " + "\t".join(names) + "\n" + lines)
    return tmp_path / "named.txt"


def test_the_contact_sheet_is_a_page_that_shows_names_in_every_script(named_classes: Path) -> None:
    page = named_classes.with_name("sheet.html")
    ran = mpload("inspect", named_classes, "--grid", page)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith(f"contact sheet {page}\n")
    text = page.read_text(encoding="utf-8")
    for name in ("cat", "قطة", "🐱", "&lt;b&gt;猫&lt;/b&gt;"):
        assert f"<bdi>{name}</bdi>" in text
    assert text.count('src="data:image/jpeg;base64,') == 4
    assert "http" not in text


def test_names_that_a_picture_cannot_show_are_told_by_number(named_classes: Path) -> None:
    ran = mpload("inspect", named_classes, "--grid", named_classes.with_name("sheet.png"))
    assert (ran.returncode, ran.stderr) == (0, "")
    told_lines = ran.stdout.partition("`--grid sheet.html` shows all names:\n")[2].splitlines()
    assert [line.split() for line in told_lines][:2] == [["1", "قطة"], ["2", "🐱"]]
    facts = told(mpload("inspect", named_classes, "--grid", named_classes.with_name("sheet.png"), "--json"))
    assert facts["grid"]["unshown"].items() >= {"1": "قطة", "2": "🐱"}.items()
    assert "0" not in facts["grid"]["unshown"]


def test_labels_that_are_words_are_told_by_the_number_of_the_sample(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), solid(COLOURS["red"]))
    (tmp_path / "words.txt").write_text("#mpload 1\n#columns image:path label:str\na.png\tقطة\na.png\tcat\n")
    assert read_sheet(open_index(tmp_path / "words.txt"), num_tiles=4, seed=0).unshown == {"#0": "قطة"}


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["index", "nowhere", "-o", "out.txt"], "nowhere"),
        (["demo", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_path_is_one_clear_line(tmp_path: Path, arguments: list[str], saying: str) -> None:
    ran = mpload(*arguments, cwd=tmp_path)
    assert_one_line_on_stderr(ran, saying=saying)
    assert ran.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        ([], "Usage"),
        (["frobnicate"], "No such command"),
        (["index", "."], "--out"),
        (["index", ".", "-o", "out.txt", "--workers", "none"], "--workers"),
        (["index", ".", "-o", "out.txt", "--split", "0.9,some"], "--split '0.9,some'"),
        (["index", ".", "-o", "out.txt", "--split", "0.9,0.3"], "must sum to 1"),
        (["index", ".", "-o", "out.txt", "--split", "train=0.9,0.1"], "a name of its own"),
        (["inspect", "x.txt", "--report", "y"], "Add --check"),
        (["inspect", "photo.txt", "--grid", "sheet.gif"], "sheet.png or sheet.html"),
        (["top", "1", "--interval", "-1"], "--interval"),
    ],
)
def test_wrong_usage_exits_with_2(tmp_path: Path, arguments: list[str], saying: str) -> None:
    cv2.imwrite(str(tmp_path / "photo.png"), solid(COLOURS["red"]))
    (tmp_path / "photo.txt").write_text("photo.png\n")
    ran = mpload(*arguments, cwd=tmp_path)
    assert ran.returncode == 2
    assert saying in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_what_is_left_out_of_an_index_is_said(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (next((tmp_path / "photos").iterdir()) / "notes.txt").write_text("not a photo")
    ran = mpload("index", tmp_path / "photos", "-o", tmp_path / "all.txt")
    assert ran.returncode == 0
    assert ran.stderr.startswith("mpload: warning: ")
    assert "notes.txt" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_hidden_files_links_and_other_endings_are_taken_when_asked_for(photos: Path, tmp_path: Path) -> None:
    some = sorted(photos.glob("*/*"))
    folder = tmp_path / "flat"
    folder.mkdir()
    shutil.copy(some[0], folder / "a.jpg")
    shutil.copy(some[0], folder / "a.jpe")
    shutil.copy(some[1], folder / ".hidden.jpg")
    (folder / "link.jpg").symlink_to(some[2])
    options: list[list[str]] = [[], ["--hidden"], ["--follow-links"], ["--extensions", ".jpg,.jpe"]]
    for number_of_options in range(3):
        for chosen in itertools.combinations(options[1:], number_of_options):
            ran = mpload("index", folder, "-o", tmp_path / "all.txt", "--json", *itertools.chain(*chosen))
            assert json.loads(ran.stdout)["indexes"][0]["num_samples"] == 1 + len(chosen)


def test_names_that_are_no_utf8_are_printed_all_the_same(photos: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).mkdir()
    shutil.copy(next(photos.glob("*/*")), tmp_path / name / f"{name}.jpg")
    assert mpload("index", tmp_path / name, "-o", tmp_path / "all.txt").returncode == 0
    ran = mpload("inspect", tmp_path / "all.txt", "--check")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert r"caf\udce9.jpg" in ran.stdout


def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "labels.txt", [0] * 50_000)
    command = [sys.executable, "-m", "mpload", "inspect", str(path), "--records", "50000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"{path}\n".encode()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 141  # as of SIGPIPE


def run_on_a_terminal(command: list[str]) -> tuple[str, str]:
    """Run a command with its stderr on a terminal; return stdout, and what the terminal got."""
    terminal, its_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end, text=True, env=environment) as process:
        os.close(its_end)
        drawn = b""
        while piece := _read_terminal(terminal):
            drawn += piece
        assert process.stdout is not None
        stdout = process.stdout.read()
        assert process.wait(timeout=30) == 0
    os.close(terminal)
    return stdout, drawn.decode()


def _read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(photos: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mpload", "index", str(photos), "-o", str(tmp_path / "all.txt")]
    stdout, drawn = run_on_a_terminal(command)
    assert "indexing" in drawn
    assert "samples" in drawn
    assert len(stdout.splitlines()) == 1
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    assert len(quiet.stdout.splitlines()) == 1
    assert "\x1b" not in quiet.stdout + stdout


def test_the_command_line_starts_without_torch(index: Path) -> None:
    code = (
        "import atexit, sys; from mpload.cli.main import main; sys.argv[1:] = ['inspect', sys.argv[1], '--check'];"
        "atexit.register(lambda: print('TORCH' if 'torch' in sys.modules else 'no torch')); main()"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(index)], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "no torch"


def test_version_and_help_are_short() -> None:
    assert mpload("--version").stdout == "mpload 0.1.0\n"
    for command in ([], ["index"], ["inspect"], ["merge"], ["demo"]):
        ran = mpload(*command, "--help")
        assert ran.returncode == 0
        assert 5 < len(ran.stdout.splitlines()) < 45
