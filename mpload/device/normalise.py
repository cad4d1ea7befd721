"""Converts uint8 pixels to a normalised dtype in one pass, into existing memory."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.device.kernels import can_compile
from mpload.errors import ArgumentError
from mpload.images.opencv import cv2

__all__ = ["Normaliser"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Normaliser:
    """Computes `(pixel / 255 - mean) / std` for each channel.

    On the CPU, each value comes from a table of 256 values per channel, computed in float64 and rounded once. The
    result is therefore correctly rounded (half a unit in the last place) for every dtype. On other devices, one kernel
    multiplies and adds in float32 and rounds to `dtype`. Its error before that rounding is less than
    `2e-7 * (1 + max(mean / std))` times the magnitude of the largest value.

    Args:
        dtype: float32, float16 or bfloat16.
        mean: mean of each channel, for pixels in [0, 1].
        std: standard deviation of each channel; positive.

    Raises:
        ArgumentError: an argument breaks a rule.
    """

    def __init__(self, *, dtype: torch.dtype, mean: Sequence[float], std: Sequence[float]) -> None:
        if dtype not in _DTYPES:
            raise ArgumentError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, got {dtype}")
        if not mean or len(mean) != len(std):
            raise ArgumentError(f"mean and std need one number per channel, got {len(mean)} and {len(std)}")
        if not all(math.isfinite(each) for each in (*mean, *std)) or not all(each > 0 for each in std):
            raise ArgumentError(f"mean must be finite and std positive, got mean {tuple(mean)}, std {tuple(std)}")
        self.dtype = dtype
        self.num_channels = len(mean)
        with torch.device("cpu"):  # regardless of the default device
            means, stds = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
            table = ((torch.arange(256, dtype=torch.float64)[:, None] / 255 - means) / stds).to(dtype)
        self._table = _as_numbers(table).numpy()[None]  # [1, 256, channels], as OpenCV expects
        self._scale = (1 / (255 * stds)).float()[:, None, None]
        self._bias = (-means / stds).float()[:, None, None]
        self._kernel: Any = None
        """The module `convert_kernel` if it is faster on the device than torch's own kernels."""

    def takes(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a batch of images: uint8 [B, C, H, W] with as many channels as `mean`."""
        return tensor.dtype == torch.uint8 and tensor.ndim == 4 and tensor.shape[1] == self.num_channels

    @torch.no_grad()
    def write(self, images: torch.Tensor, out: torch.Tensor) -> None:
        """Write the normalised images to `out`.

        Args:
            images: uint8 [B, C, H, W] in any memory format. On the CPU, a format other than that of `out` costs a copy.
            out: [B, C, H, W] of `dtype`, on the same device, dense, in `channels_last` or contiguous.
        """
        if out.device.type != "cpu":
            if self._scale.device != out.device:
                self._scale, self._bias = self._scale.to(out.device), self._bias.to(out.device)
                self._kernel = _find_kernel(out.device)
            if self._kernel is not None and self._kernel.takes(images, out):
                self._kernel.convert(images, self._scale, self._bias, out)
            else:
                torch.addcmul(self._bias, images, self._scale, out=out)  # one kernel, cast included; not so on CPUs
        elif not out.numel():
            pass
        elif out.is_contiguous(memory_format=torch.channels_last):
            # torch transposes faster than NumPy would below.
            pixels = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
            _look_up(pixels, self._table, out.permute(0, 2, 3, 1))
        else:
            for planes, plane_outs in zip(images.contiguous(), out, strict=True):
                for channel, (plane, plane_out) in enumerate(zip(planes, plane_outs, strict=True)):
                    _look_up(plane[..., None], self._table[..., channel : channel + 1], plane_out[..., None])


def _find_kernel(device: torch.device) -> Any:
    """Return the module `convert_kernel` if Triton can compile it for `device`, else None."""
    if not can_compile(device):
        return None
    from mpload.device import convert_kernel  # noqa: PLC0415  needs the optional package triton

    return convert_kernel


def _look_up(pixels: torch.Tensor, table: NDArray[Any], out: torch.Tensor) -> None:
    cv2.LUT(_as_rows(pixels), table, dst=_as_rows(_as_numbers(out)))


def _as_rows(pixels: torch.Tensor) -> NDArray[Any]:
    """View dense pixels [..., W, C] as an image of many rows, with the strides that OpenCV expects."""
    # Flattened first, because torch allows arbitrary strides for dimensions of size 1.
    return pixels.numpy().reshape(-1).reshape(-1, *pixels.shape[-2:])


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """View 16-bit floats as integers: NumPy has no bfloat16, and a table lookup only moves bits."""
    return tensor if tensor.dtype == torch.float32 else tensor.view(torch.int16)
