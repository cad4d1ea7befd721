"""Decoders that stand in for those of a device."""

from collections.abc import Callable, Sequence

import torch

from mpload.device.jpeg_decoders import TorchvisionDecoder

__all__ = ["WholeImages"]


class WholeImages(TorchvisionDecoder):
    """Decodes whole images with a function of the test, as torchvision does: all at once, or one by one on failure."""

    def __init__(self, decode: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]) -> None:
        self._decode_all = decode  # type: ignore[method-assign, assignment]
