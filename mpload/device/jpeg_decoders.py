"""Decoders of JPEGs on the device: nvImageCodec, or else torchvision, which both use nvJPEG."""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from mpload.images.jpeg_header import ImageBytes
from mpload.images.resize import Box

__all__ = ["DeviceDecoder", "NvImageCodecDecoder", "TorchvisionDecoder", "device_decoder"]


class DeviceDecoder(Protocol):
    """Decodes parts of JPEGs on the device."""

    def __call__(self, files: Sequence[ImageBytes], boxes: Sequence[Box], /) -> list[torch.Tensor | None]:
        """Return the pixels of a box of each file, RGB uint8 [3, height, width] with any strides; None if it cannot.

        Work that is queued on the current stream afterwards may read the pixels. Their memory may be used again from
        the next call on.
        """
        ...


def device_decoder(device: torch.device) -> DeviceDecoder | None:
    """Return a decoder for a CUDA device; None for other devices, or if no package for it is installed."""
    if device.type != "cuda":
        return None
    for kind in (NvImageCodecDecoder, TorchvisionDecoder):
        try:
            return kind(device)
        except (ImportError, AttributeError, RuntimeError, TypeError):  # missing, too old, or built for another CUDA
            continue
    return None


class NvImageCodecDecoder:
    """Decodes only the boxes, with the GPU's JPEG engines, its cores and threads of this process at the same time.

    Memory: on the device, the largest boxes so far, for as many images as the largest batch has had.
    """

    def __init__(self, device: torch.device) -> None:
        if importlib.util.find_spec("nvidia") is None:
            raise ModuleNotFoundError("nvidia.nvimgcodec is not installed")
        from nvidia import nvimgcodec  # noqa: PLC0415  optional

        self._codec: Any = nvimgcodec
        self._device = device
        kinds = nvimgcodec.BackendKind
        self._decoder = nvimgcodec.Decoder(
            device_id=device.index or 0,
            max_num_cpu_threads=len(os.sched_getaffinity(0)),
            backends=[nvimgcodec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)],
        )
        self._params = nvimgcodec.DecodeParams(
            apply_exif_orientation=False, sample_format=nvimgcodec.SampleFormat.I_RGB
        )
        self._memory: list[Any] = []
        """Images whose memory the next batch uses again."""

    def __call__(self, files: Sequence[ImageBytes], boxes: Sequence[Box], /) -> list[torch.Tensor | None]:
        """Decode the boxes; see `DeviceDecoder`."""
        streams = [self._stream(file, box) for file, box in zip(files, boxes, strict=True)]
        readable = [stream for stream in streams if stream is not None]
        memory, self._memory = self._memory, []
        images = iter(
            self._decoder.decode(
                readable,
                images=memory[: len(readable)] if len(memory) >= len(readable) else None,
                params=self._params,
                cuda_stream=torch.cuda.current_stream(self._device).cuda_stream,
            )
        )
        found = [None if stream is None else next(images) for stream in streams]
        if None not in found:
            self._memory = [*found, *memory[len(found) :]]
        return [None if image is None else from_dlpack(image).permute(2, 0, 1) for image in found]

    def _stream(self, file: ImageBytes, box: Box) -> Any | None:
        region = self._codec.Region(box.top, box.left, box.top + box.height, box.left + box.width)
        try:
            return self._codec.CodeStream(np.frombuffer(file, np.uint8)).get_sub_code_stream(region=region)
        except RuntimeError:  # not a JPEG to this library
            return None


class TorchvisionDecoder:
    """Decodes whole images, of which it returns the boxes."""

    def __init__(self, device: torch.device) -> None:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  optional

        self._device = device
        self._mode = ImageReadMode.RGB
        self._decode_jpeg = decode_jpeg

    def __call__(self, files: Sequence[ImageBytes], boxes: Sequence[Box], /) -> list[torch.Tensor | None]:
        """Decode the images at once, or one by one if that fails; see `DeviceDecoder`."""
        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        try:
            images: list[torch.Tensor | None] = list(self._decode(encoded))
        except RuntimeError:
            images = [self._decoded_alone(file) for file in encoded]
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
