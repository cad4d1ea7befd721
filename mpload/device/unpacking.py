"""Decodes, crops and resizes the images that workers left to the device; on the CPU if the device cannot."""

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mpload.device.drawing import DrawViews, find_draw_views
from mpload.device.jpeg_decoders import DeviceDecoder, device_decoder
from mpload.device.staging import map_leaves
from mpload.device.streams import SideStream, side_stream
from mpload.errors import DecodeError, MploadWarning, SampleError
from mpload.images.gpu_decode import EncodedImage
from mpload.images.image import open_image

__all__ = ["Unpacker"]


class Unpacker:
    """Replaces lists of encoded images with tensors: uint8 [B, 3, H, W] in `channels_last`, on the device.

    The work has a stream of its own. torchvision takes the memory of decoded images from the current stream's pool, but
    writes to it on a stream that does not wait for the current one. So memory that is given back here must not have
    queued readers: before images are decoded, the host waits until the previous batch is drawn. On the stream that
    copies batches, it would have to wait for the consumer's steps.

    Args:
        device: device for the tensors.
        find_decoder: returns a JPEG decoder for the device, or None. Called when the first JPEG arrives.
    """

    def __init__(
        self, device: torch.device, *, find_decoder: Callable[[torch.device], DeviceDecoder | None] = device_decoder
    ) -> None:
        self._device = device
        self._find_decoder = find_decoder

    def __call__(self, batch: Any) -> Any:
        """Return the batch, a tree of values as in `map_leaves`, with all encoded images decoded.

        Work that is queued on the current stream afterwards may use the tensors.

        Raises:
            SampleError: a JPEG is damaged.
        """
        return map_leaves(
            batch,
            lambda samples: self._images([EncodedImage.of(sample) for sample in samples]),
            is_leaf=lambda value: isinstance(value, list) and bool(value) and all(map(EncodedImage.is_one, value)),
        )

    @cached_property
    def _stream(self) -> SideStream:
        return side_stream(self._device)

    @cached_property
    def _decoder(self) -> DeviceDecoder | None:
        decoder = self._find_decoder(self._device)
        if decoder is None and self._device.type != "cpu":
            warnings.warn(
                f"no JPEG decoder for {self._device}: this process decodes on the CPU, which workers would do faster. "
                "Run pip install torchvision, or leave GpuDecode out",
                MploadWarning,
                stacklevel=5,
            )
        return decoder

    @cached_property
    def _draw(self) -> DrawViews:
        return find_draw_views(self._device)

    def _images(self, images: list[EncodedImage]) -> torch.Tensor:
        with self._stream.entered():
            out = self._drawn_images(images)
            drawn = self._stream.mark()
        self._stream.lead_consumer(drawn)
        self._stream.lend(out)
        return out

    def _drawn_images(self, images: list[EncodedImage]) -> torch.Tensor:
        shown = images[0].view.shown
        shape = (len(images), shown.height, shown.width, 3)
        out = torch.empty(shape, dtype=torch.uint8, device=self._device)
        decoded: dict[int, torch.Tensor] = {}
        jpegs = [number for number, image in enumerate(images) if image.is_jpeg]
        if jpegs and self._decoder is not None:
            self._stream.mark().synchronize()
            parts = self._decoder(
                [images[number].data for number in jpegs], [images[number].view.box for number in jpegs]
            )
            decoded = {number: part for number, part in zip(jpegs, parts, strict=True) if part is not None}
            self._draw(list(decoded.values()), [images[number].view for number in decoded], out, list(decoded))
        others = [number for number in range(len(images)) if number not in decoded]
        if others:
            self._fill(out, images, others)
        return out.permute(0, 3, 1, 2)

    def _fill(self, out: torch.Tensor, images: list[EncodedImage], numbers: list[int]) -> None:
        """Copy the pixels of the images with these numbers, which the CPU decodes, to `out` with one copy."""
        pins = self._device.type == "cuda"
        pixels = torch.empty((len(numbers), *out.shape[1:]), dtype=torch.uint8, device="cpu", pin_memory=pins)
        for place, number in enumerate(numbers):
            np.copyto(pixels[place].numpy(), _pixels(images[number], number))
        if len(numbers) == len(out):
            out.copy_(pixels, non_blocking=pins)
        else:
            places = torch.tensor(numbers, device="cpu", pin_memory=pins)
            moved = (each.to(self._device, non_blocking=pins) for each in (places, pixels))
            out.index_copy_(0, *moved)


def _pixels(image: EncodedImage, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uint8 [height, width, 3] decoded by the CPU: by the worker, or here."""
    shape = (image.view.shown.height, image.view.shown.width, 3)
    if not image.is_jpeg:
        return np.frombuffer(image.data, np.uint8).reshape(shape)
    pixels = np.empty(shape, np.uint8)
    try:
        open_image(image.data).draw(image.view, pixels)
    except DecodeError as error:
        raise SampleError(f"sample {number} of the batch, which GpuDecode left to the device: {error}") from error
    return pixels
