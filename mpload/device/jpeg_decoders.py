"""The decoder of JPEGs on the device: torchvision, which uses nvJPEG."""

import warnings
from collections.abc import Sequence
from typing import Protocol

import torch

from mpload.errors import MploadWarning
from mpload.images.jpeg_header import ImageBytes
from mpload.images.resize import Box

__all__ = ["DeviceDecoder", "TorchvisionDecoder", "device_decoder"]


class DeviceDecoder(Protocol):
    """Decodes parts of JPEGs on the device."""

    def __call__(self, files: Sequence[ImageBytes], boxes: Sequence[Box], /) -> list[torch.Tensor | None]:
        """Return the pixels of a box of each file, RGB uint8 [3, height, width] with any strides; None if it cannot.

        Work that is queued on the current stream afterwards may read the pixels. Their memory may be used again from
        the next call on.
        """
        ...


def device_decoder(device: torch.device) -> DeviceDecoder | None:
    """Return a decoder for a CUDA device; None for other devices, or if torchvision is not installed."""
    if device.type != "cuda":
        return None
    try:
        return TorchvisionDecoder(device)
    except (AttributeError, ImportError, RuntimeError):  # built for another torch, or its extension cannot be loaded
        return None


class TorchvisionDecoder:
    """Decodes whole images, and returns the boxes cut out of them.

    nvJPEG does not notice damage in the middle of a file.
    """

    def __init__(self, device: torch.device) -> None:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  optional

        _ = torch.ops.image.decode_jpegs_cuda  # AttributeError without torchvision's extension

        self._device = device
        self._mode = ImageReadMode.RGB
        self._decode_jpeg = decode_jpeg

    def __call__(self, files: Sequence[ImageBytes], boxes: Sequence[Box], /) -> list[torch.Tensor | None]:
        """Decode the images at once, or one by one if that fails; see `DeviceDecoder`."""
        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        try:
            images: list[torch.Tensor | None] = list(self._decode(encoded))
        except RuntimeError as error:
            images = [self._decoded_alone(file) for file in encoded]
            if len(files) > 1 and not any(image is not None for image in images):
                warnings.warn(
                    f"the device decodes none of {len(files)} JPEGs, so this process does, which is slow: {error}",
                    MploadWarning,
                    stacklevel=2,
                )
        return [image if image is None else _part(image, box) for image, box in zip(images, boxes, strict=True)]

    def _decode(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        return self._decode_jpeg(encoded, mode=self._mode, device=self._device)  # type: ignore[no-any-return, unused-ignore]

    def _decoded_alone(self, file: torch.Tensor) -> torch.Tensor | None:
        try:
            return self._decode([file])[0]
        except RuntimeError:
            return None


def _part(image: torch.Tensor, box: Box) -> torch.Tensor:
    return image[:, box.top : box.top + box.height, box.left : box.left + box.width]
