"""Train a small network that doubles the resolution of images, on patches of pairs of small and large images.

python examples/train_super_resolution.py
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch

import mpload

SCALE = 2
PATCH = 24  # pixels of the small image


def make_pairs(folder: Path, num_images: int = 64) -> Path:
    """Write `small/<number>.png` of varying size and `large/<number>.png`, which is twice as large: lines and discs."""
    rng = np.random.default_rng(0)
    for size in ("small", "large"):
        (folder / size).mkdir()
    for number in range(num_images):
        height, width = rng.integers(40, 64, 2).tolist()
        canvas = np.full((8 * height, 8 * width, 3), rng.integers(0, 256, 3), np.uint8)
        for _ in range(20):
            start, end = (tuple((rng.random(2) * (8 * width, 8 * height)).astype(int).tolist()) for _ in range(2))
            color = rng.integers(0, 256, 3).tolist()
            if rng.random() < 0.5:
                cv2.line(canvas, start, end, color, int(rng.integers(8, 40)))
            else:
                cv2.circle(canvas, start, int(rng.integers(16, 80)), color, -1)
        large = cv2.resize(canvas, (SCALE * width, SCALE * height), interpolation=cv2.INTER_AREA)
        small = cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / "small" / f"{number:03d}.png"), small)
        cv2.imwrite(str(folder / "large" / f"{number:03d}.png"), large)
    return folder


def train(folder: Path, index: Path) -> tuple[float, float]:
    """Train for a few epochs; return the mean squared errors of the last one: of the network, and of interpolation."""
    mpload.build_index(
        folder / "small",
        index,
        columns="small:path large:path",
        folder=mpload.FolderOptions(beside={"large": "../large/{}.png"}),
    )
    dataset = mpload.MPDataset(
        index,
        decode={
            "small": mpload.RandomCrop(PATCH, upside_down=0.5),  # draws the patch
            "large": mpload.RandomCrop(SCALE * PATCH),  # shows the same patch, also mirrored
        },
        batch_size=8,
        shuffle=True,
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 3 * SCALE**2, 3, padding=1),
        torch.nn.PixelShuffle(SCALE),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(20):
            errors = torch.zeros(2)
            for batch in loader:
                small, large = (
                    batch["small"].float() / 255,
                    batch["large"].float() / 255,
                )  # [8, 3, 24, 24], [.., 48, 48]
                smooth = torch.nn.functional.interpolate(small, scale_factor=SCALE, mode="bicubic")
                loss = torch.nn.functional.mse_loss(smooth + model(small - 0.5), large)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                errors += torch.stack([loss.detach(), torch.nn.functional.mse_loss(smooth, large)]) / len(dataset)
            if epoch % 4 == 3:
                print(f"epoch {epoch}: squared error {errors[0]:.5f}, of bicubic interpolation {errors[1]:.5f}")
    return float(errors[0]), float(errors[1])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = make_pairs(Path(name))
        error, interpolated = train(folder, Path(name, "train.txt"))
        if error > 0.95 * interpolated:
            raise SystemExit(f"the error should be below 95% of {interpolated:.5f}, but is {error:.5f}")


if __name__ == "__main__":
    main()
