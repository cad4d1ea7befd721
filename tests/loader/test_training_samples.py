"""Samples of each kind that people train on: the same bit for bit in every process, after kills and after a resume."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mpload import AudioClip, Boxes, Mask, RandomCrop, RandomResizedCrop, VideoClip, Views
from tests.support.clips import write_clips
from tests.support.photos import photo
from tests.support.typed import read, read_in_two_runs
from tests.support.typed_decoders import killing, words

NUM_SAMPLES = 14
FILES = {
    "image": ".jpg",
    "large": "-large.png",
    "mask": "-mask.png",
    "boxes": ".json",
    "caption": ".txt",
    "clip": ".mp4",
    "sound": ".wav",
}
"""By column: the end of the names of its files."""
KINDS: dict[str, dict[str, Any]] = {
    "detection": {"image": RandomResizedCrop(32), "boxes": Boxes("xywh")},
    "segmentation": {"image": RandomResizedCrop(32), "mask": Mask(ignore=255)},
    "ten crops": {
        "crops": Views(
            of="image",
            glob=(2, RandomResizedCrop(32, scale=(0.32, 1.0))),
            local=(8, RandomResizedCrop(16, scale=(0.05, 0.32))),
        )
    },
    "captions": {"image": RandomResizedCrop(32), "caption": words},
    "patches": {"image": RandomCrop(24, upside_down=0.5), "large": RandomCrop(48)},
    "clips": {"clip": VideoClip(4, crop=RandomResizedCrop(24), start="start", end="end"), "sound": AudioClip()},
}
pytestmark = [pytest.mark.processes, pytest.mark.parametrize("kind", KINDS)]
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all columns."""
    folder = tmp_path_factory.mktemp("training")
    rng = np.random.default_rng(0)
    if has_clips():
        write_clips(folder, num_clips=NUM_SAMPLES)
    for number in range(NUM_SAMPLES):
        pixels = photo(60 + 2 * (number % 3), 90, rng)
        height, width = pixels.shape[:2]
        cv2.imwrite(str(folder / f"{number}.jpg"), pixels)
        cv2.imwrite(str(folder / f"{number}-large.png"), cv2.resize(pixels, (2 * width, 2 * height)))
        cv2.imwrite(str(folder / f"{number}-mask.png"), rng.integers(20, size=(height, width), dtype=np.uint8))
        objects = [{"bbox": [5 * n, 3 * n, 20, 10 + n], "category_id": n} for n in range(number % 4)]
        (folder / f"{number}.json").write_text(json.dumps(objects))
        (folder / f"{number}.txt").write_text(f"photo {number} " * (number % 3))
    return folder


@pytest.fixture
def index(folder: Path, kind: str) -> Path:
    """An index with the columns of one kind."""
    if kind == "clips" and not has_clips():
        pytest.skip("clips need av and soundfile")
    names = [getattr(decode, "of", None) or name for name, decode in KINDS[kind].items()]
    lines = []
    for number in range(NUM_SAMPLES):
        files = [f"{number}{FILES[name]}" for name in names]
        lines.append("\t".join([*files, str(number), str(number % 3 / 10), str(1.5 + number % 4 / 10), "word"]))
    columns = " ".join([*(f"{name}:path" for name in names), "label:int start:float end:float word:str"])
    path = folder / f"{kind}.txt"
    path.write_text(f"#mpload 1\n#columns {columns}\n" + "".join(f"{line}\n" for line in lines))
    return path


def has_clips() -> bool:
    return all(find_spec(name) for name in ("av", "soundfile"))


@pytest.mark.parametrize("how", ["DataLoader", "0", "1", "2", "7"] if sys.platform == "linux" else ["DataLoader"])
def test_batches_are_the_same_bit_for_bit_however_they_are_made(index: Path, kind: str, how: str) -> None:
    expected = read(index, "alone", decode=KINDS[kind])
    assert len(expected) == 4
    assert read(index, how, decode=KINDS[kind]) == expected


@needs_linux
def test_killed_workers_and_resumed_epochs_lose_and_change_nothing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    decode = KINDS[kind] | {"word": killing}
    monkeypatch.setenv("MPLOAD_TEST_FOLDER", str(tmp_path))
    found = read_in_two_runs(index, num_before=2, num_workers=1, decode=decode)
    assert len([*tmp_path.glob("killed *")]) == 2
    assert found == read(index, "alone", decode=decode)
