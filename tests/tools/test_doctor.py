"""`mpload doctor` names what limits a staged job, and reports it as text, as JSON and as an HTML page."""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from mpload import RandomResizedCrop, RawArray
from mpload.index.opening import open_index
from mpload.tools.doctor.empty import EmptyDecoder
from mpload.tools.doctor.storage import Files
from tests.support.native import needs_native
from tests.support.programs import mpload
from tests.support.slow_disk import can_mount
from tests.support.staged import STAGED, diagnose, prepared, write_index, write_photos
from tests.support.staged_memory import MEMORY
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.processes

_MARKS = {
    "progressive photos": [needs_native, pytest.mark.slow],
    "slow consumer": [pytest.mark.slow],
    "slow disk": [pytest.mark.slow],
    "container limit": [pytest.mark.slow],
}
_QUIET = {"tiny batches", "huge images", "slow transform", "thrashing page cache", "cold cache", "too few workers"}


def test_an_empty_decoder_makes_arrays_of_the_same_form() -> None:
    for decode in (RawArray((2, 3), dtype="float32"), RandomResizedCrop(8)):
        dtype = getattr(decode, "output_dtype", "uint8")
        made = EmptyDecoder(output_shape=decode.output_shape, output_dtype=dtype)(b"0")
        assert (made.shape, made.dtype) == (decode.output_shape, dtype)


def test_the_cached_share_of_samples_falls_when_files_are_evicted(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", num=6)
    names = [path.name for path in (tmp_path / "photos").iterdir()]
    index = open_index(write_index(tmp_path / "i.txt", root=tmp_path / "photos", names=names))
    files, records = Files(index), list(index)
    for name in names:
        (tmp_path / "photos" / name).read_bytes()
    assert files.cached_share(records) == 1
    for record in records[:3]:
        files.drop(record)
    share = files.cached_share(records)
    assert share is not None
    assert 0.2 < share < 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.quiet] * (name in _QUIET) + _MARKS.get(name, [])) for name in STAGED]
)
def test_the_doctor_names_what_limits_a_staged_job(name: str, tmp_path: Path) -> None:
    staged = STAGED[name]
    if staged.needs_mount and not can_mount():
        pytest.skip("this process cannot mount file systems")
    with prepared(staged, tmp_path) as index:
        for _ in range(3):
            found = diagnose(staged, index)
            if found["verdict"]["bottleneck"] != "other processes":
                break
        else:
            pytest.skip(f"the machine is busy, and the doctor says so: {found['verdict']['reason']}")
    assert found["verdict"]["bottleneck"] == staged.bottleneck, found["verdict"]["reason"]
    assert bool(found["remedies"]) == (name != "slow consumer")
    assert found["needs"]["reads_per_second"] * found["needs"]["batch_within_seconds"] == pytest.approx(
        found["findings"]["job"]["batch_size"]
    )


@pytest.mark.quiet
@pytest.mark.parametrize("name", MEMORY)
def test_the_doctor_names_a_lack_of_memory_and_what_helps_first(name: str, tmp_path: Path) -> None:
    staged = MEMORY[name]
    if staged.needs_mount and not can_mount():
        pytest.skip("this process cannot mount file systems")
    with prepared(staged, tmp_path) as index:
        found = diagnose(staged, index)
    assert found["verdict"]["bottleneck"] == staged.bottleneck, found["verdict"]["reason"]
    assert staged.first in found["remedies"][0]["text"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no index at"),
        ("", "holds no sample"),
        ("#mpload 1\n#columns image:path label:int\n", "holds no sample"),
        ("broken.jpg 0\nbroken.jpg 1\nmissing.jpg 2\n", "none of 3 samples could be made"),
    ],
)
def test_an_unusable_index_is_reported_in_one_line(text: str | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing else")
    if text is not None:
        (tmp_path / "train.txt").write_text(text)
    ran = mpload("doctor", tmp_path / "train.txt", "--seconds", "1")
    assert ran.returncode in {1, 2}
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1, ran.stderr


def test_a_missing_decoder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a.jpg 0\n")
    for name, message in (("nowhere:decode", "No module named 'nowhere'"), ("json", "not of the form module:object")):
        ran = mpload("doctor", tmp_path / "train.txt", "--decode", name)
        assert (ran.returncode, message in ran.stderr, len(ran.stderr.splitlines())) == (2, True, 1), ran.stderr


@pytest.mark.slow
def test_ctrl_c_prints_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    with ExitStack() as stack:
        index = STAGED["slow consumer"].prepare(tmp_path, stack)
        command = [sys.executable, "-m", "mpload", "doctor", str(index), "--seconds", "20"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            family = psutil.Process(process.pid)
            assert wait_until(lambda: process.poll() is not None or bool(family.children())), "no loader was tried"
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "mpload: interrupted\n")
    assert wait_until(lambda: not _is_alive(process.pid)), "a process is still running"


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_an_examination_ends_with_what_limits_the_job_and_why(tmp_path: Path) -> None:
    with ExitStack() as stack:
        index = STAGED["slow consumer"].prepare(tmp_path, stack)
        ran = mpload("doctor", index, "--seconds", "2", "--batch-size", "8", "--step-time", "0.001")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(r"^Limited by .*\. .*\.$", ran.stdout, re.MULTILINE)
