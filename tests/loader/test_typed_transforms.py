"""Transforms of whole samples make the same samples in every process."""

import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mpload import Boxes, Flat, ImageDecoder, Keypoints, Mask, MPDataset, MPLoader, PilTransform, Topology
from tests.support.photos import photo
from tests.support.sample_transforms import albumented, drawing_pil
from tests.support.typed import comparable, read

WAYS = ["0", "2"] if sys.platform == "linux" else ["DataLoader"]
NUM_SAMPLES = 14
DECODERS: dict[str, Any] = {"image": ImageDecoder(), "mask": Mask(), "boxes": Boxes(), "points": Keypoints()}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of images, masks, boxes and points."""
    folder = tmp_path_factory.mktemp("typed")
    rng = np.random.default_rng(0)
    lines = []
    for number in range(NUM_SAMPLES):
        cv2.imwrite(str(folder / f"{number}.jpg"), photo(70, 90, rng))
        cv2.imwrite(str(folder / f"{number}.png"), rng.integers(0, 9, (70, 90)).astype(np.uint8))
        corners = rng.integers(0, 40, (number % 5, 2))
        boxes = np.hstack([corners, corners + rng.integers(2, 30, (number % 5, 2)), np.arange(number % 5)[:, None]])
        (folder / f"{number}.json").write_text(json.dumps(boxes.tolist()))
        lines.append(f"{number}.jpg\t{number}.png\t{number}.json\t{json.dumps(corners.tolist())}\t{number}\n")
    path = folder / "all.txt"
    path.write_text(f"#mpload 1\n#columns image:path mask:path boxes:path points:str label:int\n{''.join(lines)}")
    return path


@pytest.mark.processes
def test_samples_of_albumentations_are_the_same_however_they_are_made(index: Path) -> None:
    options = {"decode": DECODERS, "transform": albumented(), "collate": Flat()}
    expected = read(index, "alone", **options)
    assert [*expected[0]] == ["image", "mask", "boxes", "points", "label"]
    assert expected[0]["image"][1] == [4, 3, 50, 50]
    assert len({bytes(batch["image"][3]) for batch in expected}) == len(expected)
    for how in WAYS:
        assert read(index, how, **options) == expected, how


@pytest.mark.processes
def test_samples_of_torchvision_are_the_same_however_they_are_made(index: Path) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    transform = v2.Compose([v2.RandomCrop((50, 50)), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2)])
    options = {"decode": DECODERS, "transform": transform}
    expected = read(index, "alone", **options)
    assert expected[0]["image"][1] == [4, 3, 50, 50]
    assert len({bytes(batch["image"][3]) for batch in expected}) == len(expected)
    for how in WAYS:
        assert read(index, how, **options) == expected, how


@pytest.mark.processes
def test_images_of_pil_are_the_same_however_they_are_made(index: Path) -> None:
    options = {"decode": {**DECODERS, "image": PilTransform(drawing_pil)}}
    expected = read(index, "alone", **options)
    assert expected[0]["image"][1] == [4, 3, 70, 90]
    other = read(index, "alone", **options, seed=4)
    assert other != expected
    for how in WAYS:
        assert read(index, how, **options) == expected, how


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
def test_one_decoder_may_be_a_transform_of_pil(tmp_path: Path, index: Path) -> None:
    path = tmp_path / "alone.txt"
    lines = "".join(f"{number}.jpg\n" for number in range(NUM_SAMPLES))
    path.write_text(f"#mpload 1\n#root {index.parent}\n#columns image:path\n{lines}")
    dataset = MPDataset(path, decode=PilTransform(drawing_pil), batch_size=4, topology=Topology())
    expected = comparable([*dataset])
    assert expected[0][1] == [4, 3, 70, 90]
    with MPLoader(MPDataset(path, decode=PilTransform(drawing_pil), batch_size=4), num_workers=2) as loader:
        assert comparable([*loader]) == expected


def test_timm_makes_transforms_of_pil(index: Path) -> None:
    timm = pytest.importorskip("timm.data")
    transform = PilTransform(timm.create_transform(32, is_training=True, auto_augment="rand-m9-mstd0.5"))
    expected = read(index, "alone", decode={**DECODERS, "image": transform})
    assert expected[0]["image"][:2] == ["torch.float32", [4, 3, 32, 32]]
    assert read(index, "alone", decode={**DECODERS, "image": transform}) == expected
