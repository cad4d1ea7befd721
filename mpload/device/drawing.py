"""Draws views of images that are on the device: crops, resizes and mirrors a whole batch."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn.functional import interpolate

from mpload.device.kernels import can_compile
from mpload.images.resize import View

__all__ = ["DrawViews", "draw_each", "find_draw_views"]


class DrawViews(Protocol):
    """Draws the views of a batch, with the same filters as the CPU."""

    def __call__(
        self, parts: Sequence[torch.Tensor], views: Sequence[View], out: torch.Tensor, numbers: Sequence[int], /
    ) -> None:
        """Queue the work on the current stream.

        Args:
            parts: the pixels of the views' boxes, each uint8 RGB [3, height, width] with any strides.
            views: what to show of each; all have windows of the same size. Their boxes are ignored.
            out: uint8 [B, height, width, 3], contiguous.
            numbers: the place in `out` of each.
        """


def find_draw_views(device: torch.device) -> DrawViews:
    """Return how to draw on `device`: with one kernel per batch where Triton can compile it, else several per image."""
    if not can_compile(device):
        return draw_each
    from mpload.device.view_kernel import draw_together  # noqa: PLC0415  needs the optional package triton

    return draw_together


def draw_each(
    parts: Sequence[torch.Tensor], views: Sequence[View], out: torch.Tensor, numbers: Sequence[int], /
) -> None:
    """Draw one view after another; see `DrawViews`."""
    for part, view, number in zip(parts, views, numbers, strict=True):
        shown = view.shown
        full = interpolate(part[None].float(), size=view.full, mode="bilinear", antialias=view.antialias)[0]
        window = full[:, shown.top : shown.top + shown.height, shown.left : shown.left + shown.width]
        pixels = (window.flip(-1) if view.mirror else window).round().clamp(0, 255)
        out[number].copy_(pixels.permute(1, 2, 0))
