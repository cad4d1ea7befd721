"""The command line as users and scripts see it: real processes, their output and their exit codes."""

import itertools
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mpload import open_index
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
    """A relative index of photos that a test may modify."""
    shutil.copytree(photos, tmp_path / "photos")
    assert mpload("index", tmp_path / "photos", "-o", tmp_path / "all.txt", "--relative").returncode == 0
    return tmp_path / "all.txt"


def write_labels(path: Path, labels: list[int]) -> Path:
    path.write_text("#mpload 1\n#columns image:path label:int\n" + "".join(f"x.jpg\t{label}\n" for label in labels))
    return path


def assert_one_line_on_stderr(ran: Ran, *, containing: str) -> None:
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert ran.stderr.startswith("mpload: ")
    assert containing in ran.stderr
    assert ran.stdout == ""


@pytest.mark.slow
def test_inspect_reports_the_facts_about_an_index(photos: Path, tmp_path: Path) -> None:
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


def test_inspect_reports_whether_the_sidecar_already_existed(index: Path) -> None:
    assert told(mpload("inspect", index, "--json"))["sidecar"]["was_fresh"]
    assert "up to date, reused: " in mpload("inspect", index).stdout
    index.with_name(index.name + ".mpx").unlink()
    assert not told(mpload("inspect", index, "--json"))["sidecar"]["was_fresh"]
    assert told(mpload("inspect", index, "--json"))["sidecar"]["was_fresh"]


@pytest.mark.parametrize(("split", "names"), [("0.75,0.25", ["0", "1"]), ("train=0.5,val=0.25,test=0.25", None)])
def test_merging_the_parts_of_a_split_gives_the_whole_index(
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


def test_check_lists_every_problem_and_drops_corrected_ones(index: Path, tmp_path: Path) -> None:
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
    corrected = mpload("inspect", index, "--check", "--json")
    assert told(corrected)["num_findings"] == 0
    assert not report.exists()


def test_check_lists_the_invalid_lines_of_an_index_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_text("#mpload 1\n#columns image:path label:int\na.jpg\t0\nb.jpg\tcat\nc.jpg\nd.jpg\t1\n")
    assert_one_line_on_stderr(mpload("inspect", path), containing="broken.txt:4: label 'cat' is not an integer")
    ran = mpload("inspect", path, "--check", "--json", "--report", tmp_path / "faults")
    assert ran.returncode == 1
    assert json.loads(ran.stdout) == {"path": str(path), "num_findings": 2, "report": str(tmp_path / "faults")}
    found = [json.loads(line)["where"] for line in (tmp_path / "faults").read_text().splitlines()]
    assert found == [f"{path}:4", f"{path}:5"]
    assert "only its lines were checked" in mpload("inspect", path, "--check").stdout


@pytest.mark.slow
def test_findings_go_to_the_working_folder_if_the_folder_of_the_index_is_read_only(index: Path, tmp_path: Path) -> None:
    sorted((tmp_path / "photos").glob("*/*"))[5].write_bytes(b"no photo")
    command = [sys.executable, "-m", "mpload", "inspect", str(index), "--check"]
    if os.geteuid() == 0:  # root can write anywhere
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
    assert_one_line_on_stderr(refused, containing="../faults is not writable. Name another file")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "listed in all.txt.findings.jsonl" in ran.stdout
    assert "no photo" in (tmp_path / "work" / "all.txt.findings.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--check", "--report", "no/faults"), "the folder no does not exist"),
        (("--check", "--grid", "sheet.gif"), "pictures are written as .png or .html. Name it sheet.png or sheet.html"),
        (("--check", "--grid", "no/sheet.png"), "the folder no does not exist"),
    ],
)
def test_an_output_that_cannot_be_written_is_reported_before_any_work(
    index: Path, options: tuple[str, ...], message: str
) -> None:
    ran = mpload("inspect", index, *options)
    assert ran.returncode == 2
    assert_one_line_on_stderr(ran, containing=message)


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


def test_only_the_largest_and_smallest_of_many_classes_are_shown(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "many.txt", [label for label in range(100) for _ in range(label + 1)])
    shown = [line.split() for line in mpload("inspect", path).stdout.splitlines() if "#" in line]
    assert [int(words[0]) for words in shown] == [99, 98, 97, 96, 95, 94, 5, 4, 3, 2, 1, 0]
    assert "...\n" in mpload("inspect", path).stdout


def test_labels_in_a_wide_range_take_no_memory(tmp_path: Path) -> None:
    counted = count_labels(open_index(write_labels(tmp_path / "far.txt", [0, 1 << 60])))
    assert counted is not None
    assert counted.counts is None
    assert "too wide a range" in mpload("inspect", tmp_path / "far.txt").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", "nowhere", "-o", "out.txt"], "nowhere"),
        (["demo", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_path_is_reported_in_one_clear_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    ran = mpload(*arguments, cwd=tmp_path)
    assert_one_line_on_stderr(ran, containing=message)
    assert ran.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage"),
        (["frobnicate"], "No such command"),
        (["index", "."], "--out"),
        (
            ["index", ".", "-o", "out.txt", "--workers", "none"],
            "'--workers'.*: 'none' (should be|is not) a valid int",
        ),
        (["index", ".", "-o", "out.txt", "--split", "0.9,some"], "--split '0.9,some'"),
        (
            ["index", ".", "-o", "out.txt", "--split", "0.9,0.3"],
            "must sum to 1, but sum to 1.2. Write 0.9,0.1 or train=",
        ),
        (["index", ".", "-o", "out.txt", "--split", "train=0.9,0.1"], "a name of its own"),
        (["inspect", "x.txt", "--report", "y"], "Add --check"),
        (["inspect", "photo.txt", "--grid", "sheet.gif"], "sheet.png or sheet.html"),
        (["top", "1", "--interval", "-1"], "for '--interval'.*: '?-1.*(greater than or equal to |x>=)0.1"),
        (
            ["top", "notapid"],
            "Try 'mpload top -h' for help.\n\nError: Invalid value for 'PID': 'notapid' (should be|is not) a valid",
        ),
        (["top", "0"], "'PID'.*: '?0.*(greater than or equal to |x>=)1"),
        (["monitor", "--pid", "0"], "for '--pid'.*: '?0.*(greater than or equal to |x>=)1"),
        (["pack", "x.txt", "-o", "y", "--format", "zip"], "for '--format'.*: 'zip' is not one of 'tar', 'lmdb'"),
    ],
)
def test_wrong_usage_is_explained_and_exits_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    """`message` is a regular expression, because versions of typer word their rules in two ways."""
    cv2.imwrite(str(tmp_path / "photo.png"), np.zeros((90, 120, 3), np.uint8))
    (tmp_path / "photo.txt").write_text("photo.png\n")
    ran = mpload(*arguments, cwd=tmp_path)
    assert ran.returncode == 2
    assert re.search(message, ran.stdout + ran.stderr), ran
    assert "Traceback" not in ran.stderr
    assert "Value error" not in ran.stderr


def test_top_says_that_a_process_has_no_loader_or_does_not_exist() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        without = mpload("top", str(other.pid))
        other.kill()
    candidates = "`pgrep -af python` lists candidates"
    message = f"no MPLoader with workers runs in process {other.pid} or its descendants. Give the PID of the training"
    assert_one_line_on_stderr(without, containing=f"{message} process: {candidates}")
    gone = mpload("top", str(other.pid))
    message = f"there is no process {other.pid}. Give the PID of the training process: {candidates}"
    assert_one_line_on_stderr(gone, containing=message)
    assert (without.returncode, gone.returncode) == (1, 1)


def test_a_single_sample_class_shard_index_or_finding_is_singular(photos: Path, tmp_path: Path) -> None:
    one, pack = tmp_path / "photos" / "cat" / "1.jpg", tmp_path / "pack"
    one.parent.mkdir(parents=True)
    shutil.copy(next(photos.glob("*/*")), one)
    index = tmp_path / "one.txt"
    assert f"{index}: 1 sample of 1 class (cat), in " in mpload("index", one.parents[1], "-o", index).stdout
    assert ": 1 sample from 1 index\n" in mpload("merge", index, "-o", tmp_path / "merged.txt").stdout
    assert ": 1 sample in 1 shard, " in mpload("pack", index, "-o", pack).stdout
    one.write_bytes(b"no photo")
    assert "checked: 1 finding, listed in" in mpload("inspect", index, "--check").stdout


def test_a_warning_names_files_that_are_left_out_of_an_index(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (next((tmp_path / "photos").iterdir()) / "notes.txt").write_text("not a photo")
    ran = mpload("index", tmp_path / "photos", "-o", tmp_path / "all.txt")
    assert ran.returncode == 0
    assert ran.stderr.startswith("mpload: warning: ")
    assert "notes.txt" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_hidden_files_links_and_other_extensions_are_indexed_on_request(photos: Path, tmp_path: Path) -> None:
    some = sorted(photos.glob("*/*"))
    folder = tmp_path / "flat"
    folder.mkdir()
    shutil.copy(some[0], folder / "a.jpg")
    shutil.copy(some[0], folder / "a.jpe")
    shutil.copy(some[1], folder / ".hidden.jpg")
    (folder / "link.jpg").symlink_to("a.jpg")
    options: list[list[str]] = [[], ["--hidden"], ["--follow-links"], ["--extensions", ".jpg,.jpe"]]
    for number_of_options in range(3):
        for chosen in itertools.combinations(options[1:], number_of_options):
            ran = mpload("index", folder, "-o", tmp_path / "all.txt", "--json", *itertools.chain(*chosen))
            assert json.loads(ran.stdout)["indexes"][0]["num_samples"] == 1 + len(chosen)


def test_file_names_that_are_not_utf8_are_printed_with_escapes(photos: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).mkdir()
    shutil.copy(next(photos.glob("*/*")), tmp_path / name / f"{name}.jpg")
    assert mpload("index", tmp_path / name, "-o", tmp_path / "all.txt").returncode == 0
    ran = mpload("inspect", tmp_path / "all.txt", "--check")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert r"caf\udce9.jpg" in ran.stdout


def test_a_reader_that_closes_the_pipe_early_is_not_an_error(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "labels.txt", [0] * 50_000)
    command = [sys.executable, "-m", "mpload", "inspect", str(path), "--records", "50000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"{path}\n".encode()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 141  # the exit code of SIGPIPE


def run_on_a_terminal(command: list[str]) -> tuple[str, str]:
    """Run a command with its stderr on a terminal. Return its stdout and the output on the terminal."""
    terminal, other_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=other_end, text=True, env=environment) as process:
        os.close(other_end)
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
    except OSError:  # Linux reports EIO when the other end is closed
        return b""


@pytest.mark.slow
def test_progress_is_drawn_only_on_a_terminal(photos: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("group", [[], ["cache"], ["bench"]], ids=["mpload", "mpload cache", "mpload bench"])
def test_the_list_of_commands_shows_whole_summaries(group: list[str]) -> None:
    lines = mpload(*group, "--help", COLUMNS="80").stdout.partition("Commands:\n")[2].splitlines()
    summaries = [line.split(maxsplit=1)[1] for line in lines]
    assert len(summaries) > 1
    assert all(len(summary) < 60 and summary.endswith(".") and "..." not in summary for summary in summaries), lines


def test_plan_and_doctor_have_the_same_options_for_the_same_job() -> None:
    options = [set(re.findall(r"--[\w-]+", mpload(command, "--help").stdout)) for command in ("plan", "doctor")]
    assert {"--batch-size", "--step-time", "--gpus", "--jobs"} <= options[0] & options[1]


def test_version_and_help_are_short() -> None:
    assert mpload("--version").stdout == "mpload 0.1.0\n"
    for command in ([], ["index"], ["inspect"], ["merge"], ["demo"]):
        ran = mpload(*command, "--help")
        assert ran.returncode == 0
        assert 5 < len(ran.stdout.splitlines()) < 45
