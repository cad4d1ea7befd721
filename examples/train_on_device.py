"""Train a small ResNet on batches that are copied to the device and normalised ahead of time.

python examples/train_on_device.py [--quick] [train/]

Trains on the GPU with mixed precision, or on the CPU if there is none. Without a folder, it makes pictures of five
kinds of landscape.
"""

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mpload
from mpload.cli.photos import make_photos

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    """A residual block: two convolutions and a shortcut."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        stride = 1 if num_in == num_out else 2
        self.first = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(num_out) for _ in range(2))
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(num_in, num_out, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.norms[0](self.first(images)))
        return functional.relu(self.norms[1](self.second(out)) + self.shortcut(images))


def small_resnet(num_classes: int) -> nn.Module:
    """Return a network with four stages of 16 to 128 channels: float [B, 3, H, W] to [B, num_classes]."""
    stem = [nn.Conv2d(3, 16, 7, 4, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    stages = [Block(16, 16), Block(16, 32), Block(32, 64), Block(64, 128)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))


def train(folder: Path, index: Path, *, num_epochs: int, size: int) -> float:
    """Train for some epochs; return the accuracy in the last one."""
    mpload.build_index(folder, index)
    dataset = mpload.MPDataset(
        index, decode=mpload.RandomResizedCrop(size, scale=(0.3, 1.0)), batch_size=25, shuffle=True, tail="drop"
    )
    torch.manual_seed(0)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        batches = mpload.DevicePrefetcher(loader, mean=MEAN, std=STD)  # device=None: the GPU if there is one
        device = batches.device
        on_gpu = device.type != "cpu"
        model = small_resnet(len(dataset.index.classes)).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for epoch in range(num_epochs):
            num_right, loss = torch.zeros((), device=device), torch.zeros((), device=device)
            for images, labels in batches:  # float32 [25, 3, size, size] channels_last, int64 [25], on `device`
                with torch.autocast(device.type, torch.bfloat16) if on_gpu else nullcontext():
                    scores = model(images)
                    loss = functional.cross_entropy(scores, labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                num_right += (scores.argmax(1) == labels).sum()  # stays on the device, so the loop does not wait for it
            accuracy = num_right.item() / (len(batches) * 25)
            print(f"epoch {epoch}: loss {loss.item():.2f}, accuracy {accuracy:.0%}")
        stats = batches.stats()
        print(
            f"{loader.stats().samples_per_second:,.0f} images/s on {device}, buffers {stats.device_bytes / 1e6:.1f} MB"
        )
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="photos, one sub-folder per class")
    parser.add_argument("--quick", action="store_true", help="use fewer photos and epochs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name, "train")
        if arguments.folder is None:
            make_photos(folder, num_images=100 if arguments.quick else 300, seed=0, progress=lambda _: None)
        num_epochs, size = (4, 64) if arguments.quick else (5, 96)
        accuracy = train(folder, Path(name, "train.txt"), num_epochs=num_epochs, size=size)
        if arguments.folder is None and accuracy < 0.6:
            raise SystemExit(f"the accuracy for five kinds of landscape should be at least 60%, but is {accuracy:.0%}")


if __name__ == "__main__":
    main()
