"""Train a small one-stage detector on images and boxes in the format of COCO.

python examples/train_detection.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import mpload

CELLS = 8  # the detector predicts one object for each of 8 x 8 cells
STRIDE = 8  # pixels; images are 64 x 64
NAMES = ("rectangle", "ellipse")


def make_coco(folder: Path, num_images: int = 192) -> Path:
    """Write images of up to three bright shapes, and `annotations.json`, which has their boxes in the form of COCO."""
    rng = np.random.default_rng(0)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    (folder / "images").mkdir()
    for number in range(num_images):
        pixels = rng.integers(0, 90, (96, 128, 3), np.uint8)
        for _ in range(number % 4):  # every fourth image shows nothing
            width, height = rng.integers(20, 44, 2).tolist()
            left, top = int(rng.integers(0, 128 - width)), int(rng.integers(0, 96 - height))
            label, color = int(rng.integers(2)), rng.integers(140, 256, 3).tolist()
            if label == 0:
                cv2.rectangle(pixels, (left, top), (left + width - 1, top + height - 1), color, -1)
            else:
                center, axes = (left + width // 2, top + height // 2), (width // 2, height // 2)
                cv2.ellipse(pixels, center, axes, 0, 0, 360, color, -1)
            box = [left, top, width, height]
            annotations.append({"id": len(annotations), "image_id": number, "category_id": label + 1, "bbox": box})
        cv2.imwrite(str(folder / "images" / f"{number}.png"), pixels)
        images.append({"id": number, "file_name": f"{number}.png", "width": 128, "height": 96})
    categories = [{"id": number, "name": name} for number, name in enumerate(NAMES, start=1)]
    path = folder / "annotations.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def targets(boxes: torch.Tensor, labels: torch.Tensor, sample: torch.Tensor, num_samples: int) -> torch.Tensor:
    """Return what each cell should predict: 1 if it has an object, its four sides and its label, [B, 6, 8, 8].

    The object belongs to the cell in which its centre lies. The sides are distances from the cell's centre, in strides.
    """
    wanted = torch.zeros(num_samples, 6, CELLS, CELLS)
    place = ((boxes[:, :2] + boxes[:, 2:]) / 2 / STRIDE).long().clamp(0, CELLS - 1)  # [n, 2]: x and y
    sides = boxes / STRIDE - (place + 0.5).repeat(1, 2)
    values = torch.cat([torch.ones(len(boxes), 1), sides, labels[:, None].float()], dim=1)
    wanted[sample, :, place[:, 1], place[:, 0]] = values
    return wanted


def loss_of(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    has_object = wanted[:, 0] > 0
    found, expected = scores.movedim(1, -1)[has_object], wanted.movedim(1, -1)[has_object]
    is_object = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], wanted[:, 0])
    if not len(found):
        return is_object
    sides = torch.nn.functional.smooth_l1_loss(found[:, 1:5], expected[:, 1:5])
    kinds = torch.nn.functional.cross_entropy(found[:, 5:], expected[:, 5].long())
    return 4 * is_object + sides + kinds


def train(index: Path) -> list[float]:
    """Train for a few epochs; return the mean loss of each."""
    dataset = mpload.MPDataset(
        index,
        decode={
            "image": mpload.RandomResizedCrop(64, scale=(0.5, 1.0)),
            "boxes": mpload.Boxes("xywh", min_visible=0.3),
        },
        batch_size=24,
        shuffle=True,
        collate=mpload.Flat(),
    )
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for num_in, num_out in ((3, 16), (16, 32), (32, 64)):
        layers += [torch.nn.Conv2d(num_in, num_out, 3, stride=2, padding=1), torch.nn.BatchNorm2d(num_out)]
        layers += [torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 5 + len(NAMES), 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(8):
            sum_of_losses = 0.0
            for batch in loader:
                boxes, offsets = batch["boxes"]["boxes"]  # float32 [n, 4] of all images, and int64 [25]
                labels = batch["boxes"]["labels"].values  # int64 [n]
                sample = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
                wanted = targets(boxes, labels, sample, len(batch["image"]))
                loss = loss_of(model(batch["image"].float() / 255 - 0.5), wanted)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                sum_of_losses += loss.item()
            losses.append(sum_of_losses / len(dataset))
            print(f"epoch {epoch}: loss {losses[-1]:.2f}")
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        index = mpload.build_index(make_coco(Path(name)), Path(name, "train.txt"))
        losses = train(index)
        if losses[-1] > 0.5 * losses[0]:
            raise SystemExit(f"the loss should fall to half of {losses[0]:.2f}, but is {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
