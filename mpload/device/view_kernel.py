"""Draws the views of a batch with one kernel, written in Triton."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from mpload.images.resize import View

__all__ = ["draw_together"]

_BLOCK = 256
"""Pixels of the result that one program of the kernel computes."""
_NUM_COLUMNS = 13


def draw_together(
    parts: Sequence[torch.Tensor], views: Sequence[View], out: torch.Tensor, numbers: Sequence[int], /
) -> None:
    """Draw all views with one launch; see `DrawViews`."""
    if not parts:
        return
    rows = [
        (part.data_ptr(), *part.stride(), number, *part.shape[1:], *_numbers(view))
        for part, view, number in zip(parts, views, numbers, strict=True)
    ]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu", pin_memory=out.is_cuda)
    height, width = out.shape[1:3]
    rows_there = table.to(out.device, non_blocking=True)
    grid = (triton.cdiv(height * width, _BLOCK), len(parts))  # the first dimension may be the larger one
    _draw[grid](out, rows_there, height, width, _NUM_COLUMNS, _BLOCK, enable_fp_fusion=True)  # see convert_kernel


def _numbers(view: View) -> tuple[int, ...]:
    return (*view.full, *view.shown[:2], view.mirror, view.antialias)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _draw(out, table, height, width, NUM_COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    """Compute the pixels of a block: weighted sums over triangles in the part, in float32.

    The triangle is as wide as the distance of the result's pixels in the part, at least one pixel; without
    antialiasing, exactly one pixel: bilinear interpolation. Weights of pixels beyond the edge go to the others.
    """
    row = table + tl.program_id(1) * NUM_COLUMNS
    part = tl.load(row).to(tl.pointer_type(tl.uint8))
    stride_color, stride_y, stride_x = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    number = tl.load(row + 4)
    part_height, part_width = tl.load(row + 5), tl.load(row + 6)
    scale_y = part_height.to(tl.float32) / tl.load(row + 7).to(tl.float32)
    scale_x = part_width.to(tl.float32) / tl.load(row + 8).to(tl.float32)
    antialias = tl.load(row + 12) != 0
    reach_y = tl.where(antialias, tl.maximum(scale_y, 1.0), 1.0)
    reach_x = tl.where(antialias, tl.maximum(scale_x, 1.0), 1.0)

    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y, x = place // width, place % width
    is_inside = place < height * width
    shown_x = tl.where(tl.load(row + 11) != 0, width - 1 - x, x)
    centre_y = ((y + tl.load(row + 9)).to(tl.float32) + 0.5) * scale_y
    centre_x = ((shown_x + tl.load(row + 10)).to(tl.float32) + 0.5) * scale_x
    first_y = tl.maximum((centre_y - reach_y + 0.5).to(tl.int64), 0)
    first_x = tl.maximum((centre_x - reach_x + 0.5).to(tl.int64), 0)

    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for step_y in range((2 * reach_y).to(tl.int32) + 2):
        at_y = first_y + step_y
        weight_y = 1.0 - tl.abs(at_y.to(tl.float32) + 0.5 - centre_y) / reach_y
        weight_y = tl.where(at_y < part_height, tl.maximum(weight_y, 0.0), 0.0)
        for step_x in range((2 * reach_x).to(tl.int32) + 2):
            at_x = first_x + step_x
            weight_x = 1.0 - tl.abs(at_x.to(tl.float32) + 0.5 - centre_x) / reach_x
            weight_x = tl.where(at_x < part_width, tl.maximum(weight_x, 0.0), 0.0)
            weight = weight_y * weight_x
            source = part + at_y * stride_y + at_x * stride_x
            is_used = is_inside & (weight > 0.0)
            red += weight * tl.load(source, mask=is_used, other=0).to(tl.float32)
            green += weight * tl.load(source + stride_color, mask=is_used, other=0).to(tl.float32)
            blue += weight * tl.load(source + 2 * stride_color, mask=is_used, other=0).to(tl.float32)
            total += weight
    target = out + (number * height * width + place) * 3
    tl.store(target, (red / total + 0.5).to(tl.uint8), mask=is_inside)
    tl.store(target + 1, (green / total + 0.5).to(tl.uint8), mask=is_inside)
    tl.store(target + 2, (blue / total + 0.5).to(tl.uint8), mask=is_inside)
