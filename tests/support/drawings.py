"""Views of random parts of images, drawn by the kernel and by torch. Imports Triton."""

import numpy as np
import torch

from mpload.device.drawing import draw_each
from mpload.device.view_kernel import draw_together
from mpload.images.resize import Box, View

__all__ = ["check_drawing"]

SMALLEST = [(1, 1), (1, 40), (37, 1)]


def check_drawing(device: torch.device, *, num_views: int, largest: int) -> None:
    """Draw views of parts of 1 to `largest` pixels a side both ways, and check that the pixels agree."""
    rng = np.random.default_rng(0)
    sizes = [*SMALLEST, *((int(height), int(width)) for height, width in rng.integers(1, largest, (num_views, 2)))]
    parts, views = [], []
    for number, (height, width) in enumerate(sizes):
        image = torch.from_numpy(rng.integers(0, 256, (3, height + 9, width + 9), np.uint8)).to(device)
        layout = torch.channels_last if number % 2 else torch.contiguous_format
        image = image[None].contiguous(memory_format=layout)[0]
        image = image[:1].expand_as(image) if number % 5 == 4 else image  # gray
        parts.append(image[:, 5 : 5 + height, 3 : 3 + width])
        window = Box(top=5, left=7, height=24, width=40) if number % 3 == 0 else None
        views.append(
            View(
                box=Box(top=5, left=3, height=height, width=width),
                full=(50, 60) if window else (24, 40),
                window=window,
                mirror=number % 2 == 1,
                antialias=number % 4 < 2,
            )
        )
    numbers = list(range(len(parts) + 1, 1, -1))
    outs = [torch.full((len(parts) + 2, 24, 40, 3), 7, dtype=torch.uint8, device=device) for _ in range(2)]
    for draw, out in zip((draw_each, draw_together), outs, strict=True):
        draw(parts, views, out, numbers)
    difference = (outs[0].int() - outs[1].int()).abs()
    assert difference.max() <= 1  # ties, and sums in another order
    assert difference.float().mean() < 0.02
    assert bool((outs[1][:2] == 7).all())
