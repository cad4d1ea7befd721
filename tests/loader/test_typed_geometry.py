"""The image of a sample draws its geometry, and masks, boxes and points beside it show the same part."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from mpload import Boxes, ImageDecoder, Json, Keypoints, Letterbox, Mask, MPLoader, RandomResizedCrop
from tests.support.typed import comparable, read, typed

NUM_SAMPLES = 17
HEIGHT, WIDTH = 90, 120
IDS = 1, 2, 3, 4, 5
DECODERS: dict[str, Any] = {
    "image": RandomResizedCrop(64, scale=(0.3, 1.0), antialias=True),
    "mask": Mask(),
    "boxes": Boxes("xyxy"),
    "points": Keypoints(),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of images with five flat rectangles, their masks, boxes and corners."""
    folder = tmp_path_factory.mktemp("geometry")
    rng = np.random.default_rng(0)
    lines = []
    for number in range(NUM_SAMPLES):
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        boxes: list[dict[str, Any]] = []
        for id_ in IDS[: number % (len(IDS) + 1)]:
            left, top = 24 * (id_ - 1) + rng.integers(0, 6), rng.integers(0, 40)
            right, bottom = left + rng.integers(10, 18), top + rng.integers(10, 40)
            mask[top:bottom, left:right] = id_
            boxes.append({"bbox": [int(left), int(top), int(right), int(bottom)], "label": id_})
        cv2.imwrite(str(folder / f"{number}.png"), cv2.merge([mask * 40] * 3))
        cv2.imwrite(str(folder / f"{number}.mask.png"), cv2.resize(mask, None, fx=2, fy=2, interpolation=0))
        (folder / f"{number}.json").write_text(json.dumps(boxes))
        corners = [corner for box in boxes for corner in (box["bbox"][:2], box["bbox"][2:])]
        lines.append(f"{number}.png\t{number}.mask.png\t{number}.json\t{json.dumps(corners)}\t{number}\n")
    path = folder / "all.txt"
    path.write_text(f"#mpload 1\n#columns image:path mask:path boxes:path points:str number:int\n{''.join(lines)}")
    return path


def samples(index: Path, **options: Any) -> list[dict[str, Any]]:
    return list(typed(index, **{"decode": DECODERS, "batch_size": None, **options}))


def test_the_mask_has_the_ids_of_the_file_where_the_image_shows_them(index: Path) -> None:
    for sample in samples(index):
        assert sample["mask"].dtype == torch.int64
        assert sample["mask"].shape == (64, 64)
        assert set(sample["mask"].unique().tolist()) <= {0, *IDS}
        shown = (sample["image"][0].float() / 40).round()
        assert (shown == sample["mask"]).float().mean() > 0.85


def test_boxes_and_points_enclose_what_the_mask_shows(index: Path) -> None:
    num_boxes = 0
    for sample in samples(index):
        boxes, labels, points = sample["boxes"]["boxes"], sample["boxes"]["labels"], sample["points"]
        for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            rows, columns = np.nonzero(sample["mask"].numpy() == label)
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.abs(np.subtract([left, top, right, bottom], found)).max() <= 1.5
            corners = points[2 * label - 2 : 2 * label]
            is_inside = corners[:, 2] > 0
            box = torch.tensor([[left, top], [right, bottom]])
            same = torch.sort(corners[:, :2], dim=0).values - box
            assert not is_inside.all() or same.abs().max() < 1e-3
            num_boxes += 1
    assert num_boxes > NUM_SAMPLES


@pytest.mark.processes
@pytest.mark.parametrize("how", ["DataLoader", "2"] if sys.platform == "linux" else ["DataLoader"])
def test_all_columns_are_the_same_however_they_are_made(index: Path, how: str) -> None:
    expected = read(index, "alone", decode=DECODERS)
    assert read(index, how, decode=DECODERS) == expected
    assert any(isinstance(batch["boxes"]["boxes"][0], list) for batch in expected)


def test_masks_of_one_size_are_stacked_in_their_slot(index: Path) -> None:
    with MPLoader(typed(index, decode=DECODERS), num_workers=0) as loader:
        assert {tuple(batch["mask"].shape[1:]) for batch in loader} == {(64, 64)}
    maker = typed(index, decode=DECODERS)._run.pipeline.maker
    assert maker.fixed_keys == {"image", "mask"}  # type: ignore[union-attr]
    whole = typed(index, decode={**DECODERS, "image": ImageDecoder()})._run.pipeline.maker
    assert whole.fixed_keys == set()  # type: ignore[union-attr]


def test_whole_images_leave_boxes_and_masks_as_they_are(index: Path) -> None:
    raw = samples(index, decode={"image": ImageDecoder(), "mask": Mask(), "boxes": Json(), "points": Json()})
    made = samples(index, decode={**DECODERS, "image": ImageDecoder()})
    for before, after in zip(raw, made, strict=True):
        assert after["image"].shape == (3, HEIGHT, WIDTH)
        assert after["mask"].shape == (HEIGHT, WIDTH)
        assert after["boxes"]["boxes"].tolist() == [list(map(float, box["bbox"])) for box in before["boxes"]]
        assert comparable(before["image"]) == comparable(after["image"])


def test_what_lies_outside_of_a_letterbox_is_ignored(index: Path) -> None:
    for sample in samples(index, decode={**DECODERS, "image": Letterbox(64)}):
        assert (sample["mask"][0] == 255).all()
        assert (sample["image"][:, 0] == 114).all()
        assert not (sample["mask"][8:56] == 255).any()


@pytest.mark.parametrize("order", [*itertools.permutations(DECODERS)][::5])
def test_the_order_of_columns_that_draw_nothing_does_not_matter(index: Path, order: tuple[str, ...]) -> None:
    decode = {key: DECODERS[key] for key in order}
    assert read(index, "one by one", decode=decode) == read(index, "one by one", decode=DECODERS)
