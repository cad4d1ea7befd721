"""A training step on a GPU, and several ways to feed it with batches from host memory."""

import statistics
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
from networks import resnet50, vit_b

from mpload import DevicePrefetcher

__all__ = [
    "FEEDS",
    "MEAN",
    "NETWORKS",
    "SIZE",
    "STD",
    "HostBatches",
    "TrainingStep",
    "chain",
    "pixels",
    "plain_batches",
    "resident_batches",
]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224


def per_channel(values: tuple[float, ...], device: str = "cpu") -> torch.Tensor:
    return torch.tensor(values, device=device)[:, None, None]


def chain(images: torch.Tensor) -> torch.Tensor:
    """Normalise images in the way most training scripts do."""
    device = str(images.device)
    return images.float().div_(255).sub_(per_channel(MEAN, device)).div_(per_channel(STD, device))


def pixels(batch_samples: int) -> torch.Tensor:
    """Return random images, uint8 [B, 3, SIZE, SIZE], channels_last."""
    return torch.randint(0, 256, (batch_samples, SIZE, SIZE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)


class HostBatches:
    """`num` batches in host memory: two batches, made in advance, that alternate."""

    def __init__(self, batch_samples: int, num: int, *, pinned: bool = True) -> None:
        self.num = num
        pairs = [(pixels(batch_samples), torch.randint(0, 1000, (batch_samples,))) for _ in range(2)]
        self.pairs = [(each[0].pin_memory(), each[1].pin_memory()) if pinned else each for each in pairs]

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[Any]:
        return (self.pairs[number % 2] for number in range(self.num))


class DataPrefetcher:
    """The pattern that many training scripts use: copy one batch ahead on a side stream, with `record_stream`."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        following = self.preload(batches)
        while following is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            images, labels = following
            for tensor in (images, labels):
                tensor.record_stream(torch.cuda.current_stream())
            following = self.preload(batches)
            yield images, labels

    def preload(self, batches: Iterator[Any]) -> Any:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(self.stream):
            images, labels = (tensor.cuda(non_blocking=True) for tensor in batch)
            return chain(images).bfloat16(), labels


def plain_batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Copy each batch when it is asked for, on the stream of the training step."""
    for images, labels in loader:
        yield chain(images.cuda(non_blocking=True)).bfloat16(), labels.cuda(non_blocking=True)


def resident_batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the same batch on the device every time: measures the step alone."""
    batch = None
    for images, labels in loader:
        if batch is None:
            batch = chain(images.cuda()).bfloat16(), labels.cuda()
        yield batch


def prefetched(depth: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    return lambda loader: DevicePrefetcher(loader, device="cuda", dtype=torch.bfloat16, mean=MEAN, std=STD, depth=depth)


FEEDS: dict[str, Callable[[Iterable[Any]], Iterable[Any]]] = {
    "resident": resident_batches,
    "prefetcher": prefetched(2),
    "prefetcher depth 3": prefetched(3),
    "data_prefetcher": DataPrefetcher,
    "plain": plain_batches,
}


NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {"ResNet-50": resnet50, "ViT-B": vit_b}


class TrainingStep:
    """Forward pass, backward pass and SGD of a network in bfloat16, with an event before and after each step."""

    def __init__(self, network: str = "ResNet-50") -> None:
        torch.backends.cudnn.benchmark = True
        self.model = NETWORKS[network]().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.events: list[tuple[Any, Any]] = []

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        behind.record()
        self.events.append((before, behind))

    def times(self, *, skip: int) -> tuple[list[float], list[float]]:
        """Return the milliseconds from each step's start to the next, and those in which it ran; forget the steps."""
        torch.cuda.synchronize()
        events, self.events = self.events[skip:], []
        totals = [one[0].elapsed_time(other[0]) for one, other in pairwise(events)]
        return totals, [before.elapsed_time(behind) for before, behind in events[:-1]]

    def figures(self) -> dict[str, float]:
        """Return the mean time from one step's start to the next, and the fraction of it without a step running."""
        totals, busy = self.times(skip=len(self.events) // 4)  # during the first steps cuDNN chooses its algorithms
        idle = max(0.0, 1 - sum(busy) / sum(totals))
        return {"step_ms": round(statistics.mean(totals), 3), "idle_fraction": round(idle, 4)}
