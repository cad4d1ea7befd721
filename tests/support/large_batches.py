"""Batches so large that their copies to an accelerator take noticeable time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = (torch.accelerator.is_available() and torch.accelerator.current_accelerator()) or torch.device("cuda")
SHAPE = (32, 3, 224, 224)


def large(number: int) -> torch.Tensor:
    """Return the images of batch `number`, 4.8 MB: uint8 SHAPE, channels_last."""
    pixels = np.random.default_rng(number).integers(0, 256, (SHAPE[0], *SHAPE[2:], SHAPE[1]), np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


class LargeBatches:
    """A loader that yields each batch (images, numbers) in memory to which it keeps no reference."""

    def __init__(self, num: int = 8, *, pinned: bool = False) -> None:
        self.pairs = [(large(number), torch.full((SHAPE[0],), number)) for number in range(num)]
        self.pinned = pinned

    def __iter__(self) -> Iterator[Any]:
        for pair in self.pairs:
            yield tuple(each.pin_memory() if self.pinned else each.clone() for each in pair)


def keep_busy() -> None:
    """Occupy the current stream for 10 to 30 ms, long enough to copy the next batches."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
    elif DEVICE.type == "late":
        torch.get_device_module(DEVICE).occupy(0.03)
    else:
        pytest.skip(f"no known way to keep {DEVICE.type} busy")


def memory_allocated() -> int:
    """Return the bytes of device memory that tensors currently use."""
    if DEVICE.type == "cuda":  # `memory_allocated` counts up to 1 MiB more for a block that is not worth splitting
        return int(torch.cuda.memory_stats()["requested_bytes.all.current"])
    return int(torch.get_device_module(DEVICE).memory_allocated())
