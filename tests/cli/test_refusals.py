"""Limits of the system and names of files in what commands print."""

import os
from pathlib import Path

import pytest

from mpload.ingest.checking import Finding
from mpload.units import printable
from tests.support.photos import make_photo_tree
from tests.support.programs import mpload, run_script

NAME = "a\x1b[31m\nb\x7f\x9b\u2028.jpg"
SHOWN = r"a\x1b[31m\nb\x7f\x9b\u2028.jpg"


@pytest.mark.processes
@pytest.mark.parametrize("error", ['RuntimeError("can\'t start new thread")', "BlockingIOError(11, os.strerror(11))"])
def test_a_limit_of_processes_and_threads_is_named_in_one_line(error: str, tmp_path: Path) -> None:
    make_photo_tree(tmp_path / "photos", num_images=4, num_classes=2, seed=0)
    assert mpload("index", "photos", "-o", "all.txt", cwd=tmp_path).returncode == 0
    ran = run_script(
        f"""
        import os, sys, threading
        from mpload.cli.main import main
        def refuse(thread):
            raise {error}
        threading.Thread.start = refuse
        sys.argv = ["mpload", "inspect", "--check", sys.argv[1]]
        main()
        """,
        str(tmp_path / "all.txt"),
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1), ran.stderr
    for word in ("limit of processes and threads is reached", "ulimit -u", "pids.max", "--workers 1"):
        assert word in ran.stderr


@pytest.mark.processes
def test_another_runtime_error_keeps_its_traceback() -> None:
    ran = run_script(
        """
        import sys
        from mpload.cli import main as module
        def fail(*_):
            raise RuntimeError("a bug")
        module._Commands.get_command = fail
        sys.argv = ["mpload", "top"]
        module.main()
        """
    )
    assert "Traceback" in ran.stderr
    assert "a bug" in ran.stderr


def test_a_printed_name_controls_no_terminal_and_stays_on_its_line() -> None:
    assert printable(NAME) == SHOWN
    assert printable("\udcff \u00e9\u4e2d \\n") == "\\udcff \u00e9\u4e2d \\n"
    assert str(Finding(where="all.txt:3", sample_id=0, path=NAME, cause=f"{NAME} is broken")) == (
        f"all.txt:3: {SHOWN}: {SHOWN} is broken"
    )


@pytest.mark.processes
def test_inspect_shows_names_of_files_on_one_line_each(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    make_photo_tree(folder, num_images=1, num_classes=1, seed=0)
    (photo,) = folder.glob("*/*")
    photo.parent.rename(folder / NAME)
    (folder / NAME / photo.name).rename(folder / NAME / NAME)
    assert mpload("index", folder, "-o", tmp_path / "all.txt").returncode == 0
    shown = mpload("inspect", tmp_path / "all.txt")
    assert f"records      0: {SHOWN}/{SHOWN}  0\n" in shown.stdout
    (folder / NAME / NAME).write_bytes(b"")
    checked = mpload("inspect", "--check", tmp_path / "all.txt")
    failed = mpload("pack", tmp_path / "all.txt", "-o", tmp_path / "pack", "--resize-short", "8")
    for ran in (shown, checked, failed):
        assert not set(ran.stdout + ran.stderr) & set(NAME) - set(SHOWN) - {"\n"}
    assert f"{SHOWN}/{SHOWN}: " in checked.stdout


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["pipe", "empty", "missing"])
def test_the_next_step_of_a_sample_that_cannot_be_packed_is_a_sentence_of_its_own(kind: str, tmp_path: Path) -> None:
    make_photo_tree(tmp_path / "photos", num_images=1, num_classes=1, seed=0)
    assert mpload("index", tmp_path / "photos", "-o", tmp_path / "all.txt").returncode == 0
    (photo,) = (tmp_path / "photos").glob("*/*")
    photo.unlink()
    if kind == "pipe":
        os.mkfifo(photo)
    elif kind == "empty":
        photo.touch()
    ran = mpload("pack", tmp_path / "all.txt", "-o", tmp_path / "pack", "--resize-short", "8")
    assert ran.returncode == 1
    assert ran.stderr.count("Remove it from the index") == 1
    assert ran.stderr.endswith((". Remove it from the index\n", "? Remove it from the index\n"))
    assert ".." not in ran.stderr
