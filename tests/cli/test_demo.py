"""`mpload demo`, the first command of the README: its checks, and that it cleans up."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from mpload import open_index
from mpload.cli.demo import _stream
from mpload.cli.photos import SCENES, photo
from mpload.plan.batching import Batching
from tests.support.photos import make_photo_tree
from tests.support.programs import Ran, mpload
from tests.support.transport_works import wait_until


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    make_photo_tree(root, num_images=20, num_classes=2, seed=0)
    return root


def demo(*arguments: str | Path, scratch: Path) -> Ran:
    return mpload("demo", *arguments, TMPDIR=str(scratch))


@pytest.mark.processes
def test_the_demo_passes_its_checks_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = demo("--images", "37", "--workers", "2", "--batch-size", "8", scratch=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(re.findall(r"^epoch \d  37 samples in .* images/s$", ran.stdout, re.MULTILINE)) == 3
    assert "passed   every epoch contained every sample exactly once" in ran.stdout
    assert "images uint8 [8, 3, 224, 224]" in ran.stdout
    assert (
        len(re.findall(r"^(training process|zygote|worker-\d) +[\d.]+ MiB +[\d.]+ MiB", ran.stdout, re.MULTILINE)) == 4
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_the_demo_uses_a_folder_and_keeps_its_files_on_request(photos: Path, tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    scratch.mkdir()
    ran = demo(photos, "--images", "15", "--workers", "0", "--keep", kept, scratch=scratch)
    assert (ran.returncode, ran.stderr) == (0, "")
    index = open_index(kept / "numbered.txt")
    assert [record["number"] for record in index] == list(range(15))
    assert len({record["image"] for record in index}) == 15
    assert list(scratch.iterdir()) == []


@pytest.mark.processes
def test_the_demo_uses_images_without_labels(photos: Path, tmp_path: Path) -> None:
    ran = demo(next(photos.iterdir()), "--workers", "1", scratch=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "epoch 2  10 samples" in ran.stdout


@pytest.mark.processes
def test_a_broken_image_in_a_worker_is_reported_in_one_line_with_its_name(tmp_path: Path) -> None:
    folder, scratch = tmp_path / "photos", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing else")
    ran = demo(folder, "--workers", "1", scratch=scratch)
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert "broken.jpg" in ran.stderr
    assert list(scratch.iterdir()) == []


class _OneTwice:
    """The order of an epoch that contains sample 0 twice and sample 1 never."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(positions == 1, 0, positions)


def test_the_demo_fails_if_a_sample_is_delivered_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2.imwrite(str(tmp_path / "image.png"), np.zeros((300, 300, 3), np.uint8))
    lines = "".join(f"image.png\t{number}\n" for number in range(5))
    (tmp_path / "index.txt").write_text("#mpload 1\n#columns image:path number:int\n" + lines)
    index = open_index(tmp_path / "index.txt")
    assert _stream(index, num_workers=0, batch_size=2)
    monkeypatch.setattr(Batching, "order_of", lambda *_, **__: _OneTwice(5))
    assert not _stream(index, num_workers=0, batch_size=2)
    assert "FAILED   every epoch contained every sample exactly once" in capsys.readouterr().out


@pytest.mark.processes
@pytest.mark.parametrize(
    ("num_workers", "cpu_seconds"),
    [
        pytest.param(0, 0.0, id="zygote started", marks=pytest.mark.slow),
        pytest.param(1, 0.0, id="first worker started", marks=pytest.mark.slow),
        pytest.param(2, 0.0, id="half started", marks=pytest.mark.slow),
        pytest.param(4, 0.0, id="all started", marks=pytest.mark.slow),
        pytest.param(4, 0.1, id="all work"),
    ],
)
def test_ctrl_c_prints_one_line_and_leaves_no_process_and_no_file(
    photos: Path, tmp_path: Path, num_workers: int, cpu_seconds: float
) -> None:
    with _long_demo(photos, tmp_path) as (process, scratch):
        _wait_for_workers(process, num_workers=num_workers, cpu_seconds=cpu_seconds)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "mpload: interrupted\n"
    assert wait_until(lambda: not _is_alive(process.pid))
    assert list(scratch.iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_for_all", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_demo_that_is_terminated_leaves_no_process_and_no_file(
    photos: Path, tmp_path: Path, number: signal.Signals, *, is_for_all: bool
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("these tests run under nohup")
    with _long_demo(photos, tmp_path) as (process, scratch):
        _wait_for_workers(process, num_workers=4, cpu_seconds=0.0)
        (os.killpg if is_for_all else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + number, "")
    assert wait_until(lambda: not _is_alive(process.pid))
    assert list(scratch.iterdir()) == []


@contextmanager
def _long_demo(photos: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a demo that takes long, and yield its process and the folder of its temporary files."""
    scratch = folder / "scratch"
    scratch.mkdir()
    file = next(photos.glob("*/*"))
    (folder / "long.txt").write_text(f"{file} 0\n" * 20_000)
    options = ["--images", "20000", "--workers", "4", "--batch-size", "50"]
    command = [sys.executable, "-m", "mpload", "demo", str(folder / "long.txt"), *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C on a terminal signals a whole process group
        env=os.environ | {"TMPDIR": str(scratch)},
    ) as process:
        yield process, scratch


def _wait_for_workers(demo: subprocess.Popen[str], *, num_workers: int, cpu_seconds: float) -> None:
    """Wait until the zygote and some workers run, and each worker has used some CPU time.

    This polls without a pause, because the workers start within a few milliseconds of each other.
    """
    process = psutil.Process(demo.pid)
    deadline = time.monotonic() + 60
    while True:
        children = process.children(recursive=True)  # the zygote, then the workers
        if len(children) > num_workers and all(child.cpu_times().user >= cpu_seconds for child in children[1:]):
            return
        assert demo.poll() is None, f"the demo ended by itself: {demo.communicate()}"
        assert time.monotonic() < deadline, "the workers did not start"


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_photos_depend_on_the_seed_only() -> None:
    for scene in SCENES:
        first, again, other = (photo(scene, np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert first.dtype == np.uint8
        assert np.array_equal(first, again)
        assert first.shape != other.shape or not np.array_equal(first, other)
        assert first.std() > 10  # the photo is not blank
