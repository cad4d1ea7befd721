"""`mpload bench` as a user meets it: real processes over real images."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mpload.benching.decoders import CROP, DECODE, Speed, installed_backends, measure_speeds, read_images
from mpload.errors import MploadError
from mpload.index.opening import open_index
from tests.photos import make_photo_tree

NUM_PHOTOS = 12


def bench(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mpload", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


def write_index(folder: Path) -> Path:
    lines = [f"{path.relative_to(folder)}\t0\n" for path in sorted(folder.rglob("*.*")) if path.suffix != ".txt"]
    index = folder / "all.txt"
    index.write_text("#mpload 1\n#columns image:path label:int\n" + "".join(lines))
    return index


@pytest.fixture
def index(tmp_path: Path) -> Path:
    make_photo_tree(tmp_path, num_images=NUM_PHOTOS, num_classes=2, seed=0)
    return write_index(tmp_path)


def test_every_decoder_is_measured_at_both_tasks_and_drawn(index: Path, tmp_path: Path) -> None:
    chart = tmp_path / "speeds.png"
    ran = bench("decode", index, "--rounds", "1", "--plot", chart, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    speeds = [Speed(**speed) for speed in json.loads(ran.stdout)]
    names = [name for name in ("mpload", "simplejpeg", "OpenCV", "PIL", "imageio") for _ in range(2)]
    assert [speed.backend.partition(" ")[0] for speed in speeds][: len(names) - 2] == names[
        :-2
    ]  # imageio may be missing
    assert [speed.task for speed in speeds] == [DECODE, CROP] * (len(speeds) // 2)
    assert all(speed.failed == 0 and (speed.images_per_second or 0) > 1 for speed in speeds)
    pixels = cv2.imread(str(chart))
    assert pixels is not None
    assert pixels.std() > 5


def test_all_backends_cut_the_same_crop_out_of_an_image(index: Path) -> None:
    data = read_images(open_index(index), num_images=1, seed=0)[0]
    ours, *others = installed_backends(64)[0]
    expected = ours.crop(data, np.random.default_rng(3)).astype(float)
    assert expected.shape == (64, 64, 3)
    for other in others:
        got = other.crop(data, np.random.default_rng(3))
        assert np.abs(got - expected).mean() < 12, other.name  # resized with antialiasing or without
        assert np.abs(got[:, ::-1] - expected).mean() > np.abs(got - expected).mean()


def test_an_image_that_cannot_be_decoded_is_counted_and_slows_nobody(index: Path, tmp_path: Path) -> None:
    broken = sorted(tmp_path.rglob("*.JPEG"))[3]
    broken.write_bytes(b"\xff\xd8\xff" + bytes(1000))
    ran = bench("decode", index, "--rounds", "1", "--images", "100")
    assert ran.returncode == 0, ran.stderr
    assert f"{NUM_PHOTOS} images of" in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines()[2:]]
    assert {row[0] for row in rows} >= {"mpload", "simplejpeg", "OpenCV", "PIL"}
    assert all(row[-1] == "1" for row in rows), ran.stdout


def test_a_backend_that_can_decode_none_is_shown_without_a_speed(tmp_path: Path) -> None:
    for number in range(2):
        pixels = np.full((40, 40, 3), number * 50, np.uint8)
        (tmp_path / f"{number}.png").write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    speeds = measure_speeds(
        installed_backends(32)[0],
        read_images(open_index(write_index(tmp_path)), num_images=9, seed=0),
        rounds=2,
        seed=0,
    )
    rates = {speed.backend: (speed.images_per_second, speed.failed) for speed in speeds}
    assert rates.pop("simplejpeg") == (None, 2)
    assert all(rate and failed == 0 for rate, failed in rates.values())


def test_files_of_which_none_is_an_image_are_an_error() -> None:
    with pytest.raises(MploadError, match="none of 2 files is an image"):
        measure_speeds(installed_backends(8)[0], [b"no", b"image"], rounds=1, seed=0)


@pytest.mark.parametrize(
    ("arguments", "code", "saying"),
    [
        (("decode", "empty.txt"), 1, "holds no sample"),
        (("decode", "nowhere.txt"), 1, "nowhere.txt"),
        (("decode", "all.txt", "--plot", "speeds.jpg"), 2, "speeds.jpg: a plot is a PNG. Name it speeds.png"),
        (("decode", "all.txt", "--plot", "no/speeds.png"), 2, "the folder no does not exist"),
    ],
)
def test_wrong_use_is_one_clear_line(
    index: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, saying: str
) -> None:
    (tmp_path / "empty.txt").write_text("#mpload 1\n#columns image:path label:int\n")
    ran = bench(*arguments, cwd=tmp_path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (code, 1), ran.stderr
    assert saying in ran.stderr


def test_a_plot_without_matplotlib_says_what_to_install_before_anything_is_measured(
    index: Path, tmp_path: Path
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without/matplotlib.py").write_text("raise ImportError('not installed')\n")
    paths = os.pathsep.join([str(tmp_path / "without"), os.environ.get("PYTHONPATH", "")])
    ran = bench("decode", index, "--plot", tmp_path / "x.png", env={**os.environ, "PYTHONPATH": paths})
    assert ran.returncode == 1
    assert ran.stderr == "mpload: a plot needs matplotlib: pip install 'mpload[plot]'\n"
    assert ran.stdout == ""
