"""Normalises the pixels of a batch with one kernel, written in Triton."""

import torch
import triton
import triton.language as tl

__all__ = ["convert", "takes"]

_BLOCK = 2048
"""Values that one program of the kernel computes."""
_MIN_VALUES = 1 << 22
"""Below 28 images of 224 x 224, torch's own kernel takes at most 20 us, and less of the host's time to launch."""
_MAX_VALUES = 1 << 31
"""The kernel counts values in 32 bits."""


def takes(images: torch.Tensor, out: torch.Tensor) -> bool:
    """Return whether `convert` is fast for these tensors: many values, each tensor dense in one of the two formats."""
    return _MIN_VALUES <= out.numel() < _MAX_VALUES - _BLOCK and all(
        each.is_contiguous() or each.is_contiguous(memory_format=torch.channels_last) for each in (images, out)
    )


def convert(images: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    """Write `images * scale + bias`, computed in float32 and rounded to the dtype of `out`, on the current stream.

    Args:
        images: uint8 [B, C, H, W], `channels_last` or contiguous.
        scale: float32 [C, 1, 1].
        bias: float32 [C, 1, 1].
        out: [B, C, H, W], `channels_last` or contiguous.
    """
    _, channels, height, width = out.shape
    if out.numel():
        _convert[(triton.cdiv(out.numel(), _BLOCK),)](
            images,
            scale,
            bias,
            out,
            out.numel(),
            height * width,
            channels,
            not images.is_contiguous(),
            not out.is_contiguous(),
            _BLOCK,
            enable_fp_fusion=True,  # Triton 3.9 warns without it
        )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _convert(  # type: ignore[no-untyped-def]  # noqa: ANN202
    images,  # noqa: ANN001
    scale,  # noqa: ANN001
    bias,  # noqa: ANN001
    out,  # noqa: ANN001
    num_values,  # noqa: ANN001
    num_pixels,  # noqa: ANN001
    CHANNELS: tl.constexpr,  # noqa: N803
    IS_LAST_IN: tl.constexpr,  # noqa: N803
    IS_LAST_OUT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Compute a block of values, in the order of `out` in memory."""
    target = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = target < num_values
    channel = target % CHANNELS if IS_LAST_OUT else target // num_pixels % CHANNELS
    source = target
    if IS_LAST_IN and not IS_LAST_OUT:
        image, pixel = target // (num_pixels * CHANNELS), target % num_pixels
        source = (image * num_pixels + pixel) * CHANNELS + channel
    if IS_LAST_OUT and not IS_LAST_IN:
        place = target // CHANNELS
        image, pixel = place // num_pixels, place % num_pixels
        source = (image * CHANNELS + channel) * num_pixels + pixel
    pixels = tl.load(images + source, mask=is_inside, other=0).to(tl.float32)
    values = pixels * tl.load(scale + channel) + tl.load(bias + channel)
    tl.store(out + target, values.to(out.dtype.element_ty), mask=is_inside)
