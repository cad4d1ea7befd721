"""Train a small network that gives each pixel a class, on a folder of images and a folder of masks.

python examples/train_segmentation.py
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch

import mpload

NAMES = ("background", "sky", "ball")
IGNORE = 255  # in the masks: pixels of no class; also where a crop shows nothing of the image


def make_pairs(folder: Path, num_images: int = 144) -> Path:
    """Write `images/<number>.jpg` and `masks/<number>.png`, which holds the class of each pixel."""
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    for number in range(num_images):
        height, width = rng.integers(80, 120, 2).tolist()
        horizon = int(rng.integers(20, height - 20))
        mask = np.zeros((height, width), np.uint8)
        mask[:horizon] = 1
        center, radius = (
            (int(rng.integers(20, width - 20)), int(rng.integers(20, height - 20))),
            int(rng.integers(8, 20)),
        )
        cv2.circle(mask, center, radius, 2, -1)
        colors = np.array([[60, 120, 70], [140, 110, 90], [70, 80, 150]]) + rng.integers(
            -40, 40, (3, 3)
        )  # blue, green, red
        pixels = (colors[mask] + rng.normal(0, 40, (height, width, 3))).clip(0, 255).astype(np.uint8)
        edges = cv2.dilate(mask, np.ones((3, 3))) != cv2.erode(mask, np.ones((3, 3)))
        mask[edges] = IGNORE  # the annotators leave the borders out
        cv2.imwrite(str(folder / "images" / f"{number:03d}.jpg"), pixels)
        cv2.imwrite(str(folder / "masks" / f"{number:03d}.png"), mask)
    return folder


def mean_iou(confusion: torch.Tensor) -> float:
    """Return the mean over the classes of intersection / union. `confusion[i, j]` counts pixels of i predicted as j."""
    both = confusion.diagonal()
    return float((both / (confusion.sum(0) + confusion.sum(1) - both)).mean())


def train(folder: Path, index: Path) -> list[float]:
    """Train for a few epochs; return the mean IoU in each."""
    mpload.build_index(folder, index)
    dataset = mpload.MPDataset(
        index,
        decode={
            "image": mpload.RandomCrop(96, padding=16),  # reaches beyond the smaller images
            "mask": mpload.Mask(ignore=IGNORE),
        },
        batch_size=12,
        shuffle=True,
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=2, padding=2),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, len(NAMES), 1),
        torch.nn.Upsample(scale_factor=2, mode="bilinear"),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scores = []
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(5):
            confusion = torch.zeros(len(NAMES), len(NAMES))
            for batch in loader:
                images, masks = batch["image"], batch["mask"]  # uint8 [12, 3, 96, 96], int64 [12, 96, 96]
                predicted = model(images.float() / 255 - 0.5)
                loss = torch.nn.functional.cross_entropy(predicted, masks, ignore_index=IGNORE)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                is_known = masks != IGNORE
                pairs = masks[is_known] * len(NAMES) + predicted.argmax(1)[is_known]
                confusion += torch.bincount(pairs, minlength=len(NAMES) ** 2).view_as(confusion)
            scores.append(mean_iou(confusion))
            print(f"epoch {epoch}: loss {loss.item():.2f}, mean IoU {scores[-1]:.0%}")
    return scores


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = make_pairs(Path(name))
        scores = train(folder, Path(name, "train.txt"))
        if not scores[-1] > max(0.8, scores[0]):
            raise SystemExit(f"the mean IoU should rise above 80%, but is {scores[-1]:.0%}")


if __name__ == "__main__":
    main()
