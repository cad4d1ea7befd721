"""Decoders of JPEGs on the device: nvImageCodec for the JPEG engines of a GPU, torchvision for its cores."""

import importlib
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from mpload.errors import warn
from mpload.images.jpeg_header import ImageBytes
from mpload.images.resize import Box

__all__ = ["DeviceDecoder", "EngineDecoder", "TorchvisionDecoder", "device_decoder"]

_MAX_THREADS = 4
"""Threads of nvImageCodec: engines need few, and the loader's workers need the cores."""


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
    for kind in (EngineDecoder, TorchvisionDecoder):
        # Missing, too old, built for another torch, or no engines.
        with suppress(AttributeError, ImportError, RuntimeError, TypeError):
            return kind(device)
    return None


class EngineDecoder:
    """Decodes the boxes with the JPEG engines of a GPU, through nvImageCodec. Only GPUs for data centres have engines.

    Threads of this process and the GPU's cores decode what engines cannot, such as progressive JPEGs. Colours that are
    stored at half the resolution are not smoothed: nvJPEG before 13.2 may do that wrongly at the edges of a box.

    Memory: on the device, the largest boxes so far, for as many images as the largest batch has had.

    Raises:
        ImportError: nvImageCodec is not installed.
        TypeError: it is older than 0.9.
        RuntimeError: the GPU has no engines, or the driver does not fit.
    """

    def __init__(self, device: torch.device) -> None:
        self._codec: Any = importlib.import_module("nvidia.nvimgcodec")
        self._device = device
        self._params = self._codec.DecodeParams(
            apply_exif_orientation=False, sample_format=self._codec.SampleFormat.I_RGB
        )
        kinds = self._codec.BackendKind
        self._made(kinds.HW_GPU_ONLY)  # only to see whether there are engines
        self._decoder = self._made(kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)
        self._memory: list[Any] = []
        """Images whose memory the next batch uses again."""

    def _made(self, *kinds: Any) -> Any:
        return self._codec.Decoder(
            device_id=self._device.index or 0,
            max_num_cpu_threads=min(_MAX_THREADS, len(os.sched_getaffinity(0))),
            backends=[self._codec.Backend(kind) for kind in kinds],
            options=":fancy_upsampling=0 nvjpeg_hw_decoder:force_legacy_batch=1",
        )

    def __call__(self, files: Sequence[ImageBytes], boxes: Sequence[Box], /) -> list[torch.Tensor | None]:
        """Decode the boxes; see `DeviceDecoder`."""
        streams = [self._stream(file, box) for file, box in zip(files, boxes, strict=True)]
        decoded = iter(self._decoded([stream for stream in streams if stream is not None]))
        images = [None if stream is None else next(decoded) for stream in streams]
        return [None if image is None else from_dlpack(image).permute(2, 0, 1) for image in images]

    def _decoded(self, streams: list[Any]) -> list[Any | None]:
        """Return the images, in the memory of earlier ones if these are enough; None for what cannot be decoded."""
        memory, self._memory = self._memory, []
        try:
            images: list[Any | None] = self._decoder.decode(
                streams,
                images=memory[: len(streams)] if len(memory) >= len(streams) else None,
                params=self._params,
                cuda_stream=torch.cuda.current_stream(self._device).cuda_stream,
            )
        except RuntimeError as error:
            _warn_of_none(len(streams), error)
            return [None for _ in streams]
        if streams and all(image is None for image in images):  # it does not tell when it lacks memory
            _warn_of_none(len(streams), "nvImageCodec does not say why")
        if all(image is not None for image in images):
            self._memory = [*images, *memory[len(images) :]]
        return images

    def _stream(self, file: ImageBytes, box: Box) -> Any | None:
        region = self._codec.Region(box.top, box.left, box.top + box.height, box.left + box.width)
        try:
            return self._codec.CodeStream(np.frombuffer(file, np.uint8)).get_sub_code_stream(region=region)
        except RuntimeError:  # not a JPEG to this library
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
        encoded = list(map(_tensor, files))
        try:
            images: list[torch.Tensor | None] = list(self._decode(encoded))
        except RuntimeError as error:
            images = [self._decoded_alone(file) for file in encoded]
            if not any(image is not None for image in images):
                _warn_of_none(len(files), error)
        return [image if image is None else _part(image, box) for image, box in zip(images, boxes, strict=True)]

    def _decode(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        # torchvision writes to new tensors on a stream of its own. The current stream might fill them later than that.
        with _without_filling:
            return self._decode_all(encoded)

    def _decode_all(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        return self._decode_jpeg(encoded, mode=self._mode, device=self._device)  # type: ignore[no-any-return, unused-ignore]

    def _decoded_alone(self, file: torch.Tensor) -> torch.Tensor | None:
        try:
            return self._decode([file])[0]
        except RuntimeError:
            return None


class _WithoutFilling:
    """Lets `torch.use_deterministic_algorithms(True)` fill no new tensors within this context, in any thread.

    Several threads may be within it. The last one that leaves it restores what the first one found.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._num_inside = 0
        self._before = False

    def __enter__(self) -> None:
        deterministic: Any = torch.utils.deterministic
        with self._changing:
            if not self._num_inside:
                self._before = deterministic.fill_uninitialized_memory
                deterministic.fill_uninitialized_memory = False
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        deterministic: Any = torch.utils.deterministic
        with self._changing:
            self._num_inside -= 1
            if not self._num_inside:
                deterministic.fill_uninitialized_memory = self._before


_without_filling = _WithoutFilling()


def _warn_of_none(num_files: int, why: object) -> None:
    if num_files > 1:
        warn(f"the device decodes none of {num_files} JPEGs, so this process does, which is slow: {why}")


def _tensor(file: ImageBytes) -> torch.Tensor:
    view = memoryview(file)
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


def _part(image: torch.Tensor, box: Box) -> torch.Tensor:
    return image[:, box.top : box.top + box.height, box.left : box.left + box.width]
