"""Train a model on a folder of photos with one sub-folder per class.

python examples/train_folder.py [train/]
"""

import sys
import tempfile
from pathlib import Path

import torch
from photos import make_photos

import mpload


def train(folder: Path, index: Path) -> float:
    """Train a small network for a few epochs; return its accuracy in the last epoch."""
    mpload.build_index(folder, index)
    dataset = mpload.MPDataset(
        index, decode=mpload.RandomResizedCrop(64, scale=(0.3, 1.0)), batch_size=24, shuffle=True
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(3),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 9, len(dataset.index.classes)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(6):
            num_right = num_seen = 0
            for images, labels in loader:  # uint8 [24, 3, 64, 64], int64 [24]
                scores = model(images.float() / 255 - 0.5)
                loss = torch.nn.functional.cross_entropy(scores, labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                num_right += int((scores.argmax(1) == labels).sum())
                num_seen += len(labels)
            print(f"epoch {epoch}: loss {loss.item():.2f}, accuracy {num_right / num_seen:.0%}")
        stats = loader.stats()
        print(f"{stats.samples_per_second:,.0f} images/s, waited for data {stats.wait_fraction:.0%} of the time")
    return num_right / num_seen


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else make_photos(Path(name, "train"))
        accuracy = train(folder, Path(name, "train.txt"))
        if len(sys.argv) == 1 and accuracy < 0.5:
            raise SystemExit(f"the accuracy for six photographs should be at least 50%, but is {accuracy:.0%}")


if __name__ == "__main__":
    main()
