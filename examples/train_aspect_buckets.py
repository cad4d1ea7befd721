"""Train on images as wide or as tall as they are: each batch has images of one shape, decoded to it.

python examples/train_aspect_buckets.py            # makes photos of several aspect ratios
python examples/train_aspect_buckets.py photos/    # a folder of your own
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import cv2
import torch
from photos import make_photos

import mpload

STEPS = 20


def make_wide_and_tall_photos(folder: Path) -> Path:
    """Write photos of 500x375, and cut most of them to other aspect ratios."""
    make_photos(folder, 120)
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        photo = cv2.imread(str(path))
        if photo is not None:
            cv2.imwrite(str(path), (photo, photo[:, :250], photo[:250], photo[:, :375])[number % 4])
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        images = Path(sys.argv[1]) if len(sys.argv) > 1 else make_wide_and_tall_photos(Path(name, "photos"))
        index = mpload.build_index(images, Path(name, "train.txt"), columns="image:path", with_image_sizes=True)
        dataset = mpload.MPDataset(
            index,
            decode=mpload.RandomResizedCrop(128, scale=(0.8, 1), ratio=(1, 1)),  # nothing is distorted
            buckets=mpload.Buckets(by="aspect", area=128 * 128, step=32, max_ratio=2),
            batch_size=8,
            shuffle=True,
            tail="drop",
        )
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(8, 48, 1))
        model = model.append(torch.nn.PixelShuffle(4))  # an image of the same shape again
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        shapes: Counter[tuple[int, ...]] = Counter()
        losses: list[float] = []
        with mpload.MPLoader(dataset, num_workers=2) as loader:
            while len(losses) < STEPS:
                for pixels, _widths, _heights in loader:
                    inputs = pixels.float() / 255
                    loss = torch.nn.functional.mse_loss(model(inputs), inputs)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    losses.append(loss.item())
                    shapes[tuple(pixels.shape[2:])] += 1
        print("batches of each height and width:", dict(sorted(shapes.items())))
        print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} in the end")


if __name__ == "__main__":
    main()
