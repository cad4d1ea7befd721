"""Batches of images for a device, the values that they must have there, and random transforms."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from mpload.device.prefetcher import DevicePrefetcher

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPE = (4, 3, 8, 8)
NORMALISED: dict[str, Any] = {"device": "cpu", "mean": MEAN, "std": STD}


def reference(images: torch.Tensor, mean: Any = MEAN, std: Any = STD) -> torch.Tensor:
    """Return the normalised images, computed in float64: float64 [B, C, H, W]."""
    means, stds = (torch.tensor(each, dtype=torch.float64, device=images.device)[:, None, None] for each in (mean, std))
    return (images.double() / 255 - means) / stds


def every_pixel(channels: int = 3) -> torch.Tensor:
    """Return images with all 256 values in every channel: uint8 [2, channels, 8, 16], channels_last."""
    values = np.random.default_rng(0).permuted(np.tile(np.arange(256, dtype=np.uint8), (channels, 1)), axis=1)
    return torch.from_numpy(np.ascontiguousarray(values.T)).view(2, 8, 16, channels).permute(0, 3, 1, 2)


def images_of(number: int) -> torch.Tensor:
    """Return the images of batch `number`: uint8 SHAPE, channels_last."""
    pixels = np.random.default_rng(number).integers(0, 256, (SHAPE[0], *SHAPE[2:], SHAPE[1]), np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


class Batches:
    """A plain loader that yields `num_batches` batches (images, numbers)."""

    def __init__(self, num_batches: int = 6) -> None:
        self.num_batches = num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.num_batches):
            yield images_of(number), torch.full((SHAPE[0],), number)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row": lambda images: images[1, 2],
    "detached": lambda images: images.detach(),
    "reshaped": lambda images: images.permute(0, 2, 3, 1).reshape(-1),
    "numpy": lambda images: torch.from_numpy(images.numpy()[0]),
    "autograd": lambda images: images * torch.ones((), device=images.device, requires_grad=True),
}


def check_that_it_keeps_its_batch(kind: str, **options: Any) -> None:
    """Check that a view of a batch, or the values that backpropagation needs of it, never change."""
    batches = iter(DevicePrefetcher(Batches(8), **options))
    images, _ = next(batches)
    expected = images.clone()
    view = VIEWS[kind](images)
    del images, _
    gc.collect()
    for _ in batches:
        pass
    if kind == "autograd":
        (gradient,) = torch.autograd.grad(view.sum(), [view.grad_fn.next_functions[1][0].variable])  # type: ignore[union-attr]
        assert torch.allclose(gradient, expected.sum())
    else:
        assert torch.equal(view, VIEWS[kind](expected))


def noisy(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = batch
    return images + torch.randn(len(images), 1, 1, 1), labels


def flip(image: torch.Tensor) -> torch.Tensor:
    """Mirror the whole of [..., W] or none of it, as torchvision's transforms do."""
    return image.flip(-1) if torch.rand(()) < 0.5 else image
