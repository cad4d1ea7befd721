"""Batches large enough to see copies to an accelerator under way."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = torch.accelerator.current_accelerator() or torch.device("cuda")
SHAPE = (32, 3, 224, 224)


def large(number: int) -> torch.Tensor:
    """Batch `number`, 4.8 MB: uint8 SHAPE, channels_last."""
    pixels = np.random.default_rng(number).integers(0, 256, (SHAPE[0], *SHAPE[2:], SHAPE[1]), np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


class LargeBatches:
    """A loader of batches (images, numbers), in memory that it does not keep."""

    def __init__(self, num: int = 8, *, pinned: bool = False) -> None:
        self.pairs = [(large(number), torch.full((SHAPE[0],), number)) for number in range(num)]
        self.pinned = pinned

    def __iter__(self) -> Iterator[Any]:
        for pair in self.pairs:
            yield tuple(each.pin_memory() if self.pinned else each.clone() for each in pair)


def keep_busy() -> None:
    """Occupy the current stream for 10 to 30 ms, in which copies of the next batches would be done."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
    elif DEVICE.type == "late":
        torch.get_device_module(DEVICE).occupy(0.03)
    else:
        pytest.skip(f"nothing is known that keeps {DEVICE.type} busy")


def memory_allocated() -> int:
    """Return the bytes of device memory that tensors have now."""
    return int(torch.get_device_module(DEVICE).memory_allocated())
