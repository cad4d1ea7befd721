"""Decodes, crops and resizes the images that workers left to the device; on the CPU if the device cannot."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from mpload.device.drawing import DrawViews, find_draw_views
from mpload.device.jpeg_decoders import DeviceDecoder, device_decoder
from mpload.device.staging import map_leaves
from mpload.device.streams import Mark, SideStream, side_stream
from mpload.errors import DecodeError, SampleError, warn
from mpload.images.gpu_decode import EncodedImage
from mpload.images.image import open_image

__all__ = ["Begun", "Unpacker"]

_THREAD_NAME = "mpload-decode"


class _Drawn(NamedTuple):
    """A tensor of images, and when all of them are drawn."""

    images: torch.Tensor
    done: Mark


class Begun(NamedTuple):
    """A batch whose images are being decoded."""

    batch: Any
    """The batch. A `Future` stands for each list of encoded images."""
    images: "list[Future[_Drawn]]"
    """These futures."""


class Unpacker:
    """Replaces lists of encoded images with tensors: uint8 [B, 3, H, W] in `channels_last`, on the device.

    On an accelerator, a thread waits for the decoder, so that the caller can do other things meanwhile.

    The work has a stream of its own. torchvision takes the memory of decoded images from the current stream's pool, but
    writes to it on a stream that does not wait for the current one. So memory that is given back here must not have
    queued readers: the host waits until a batch is drawn. On the stream that copies batches, it would have to wait for
    the consumer's steps. A decoder may also read the files until then, whose slots are free when nobody holds them.

    Args:
        device: device for the tensors.
        find_decoder: returns a JPEG decoder for the device, or None. Called when the first JPEG arrives.
    """

    def __init__(
        self, device: torch.device, *, find_decoder: Callable[[torch.device], DeviceDecoder | None] = device_decoder
    ) -> None:
        self._device = device
        self._find_decoder = find_decoder
        self._pid = os.getpid()

    def __call__(self, batch: Any) -> Any:
        """Return the batch, a tree of values as in `map_leaves`, with all encoded images decoded.

        Work that is queued on the current stream afterwards may use the tensors.

        Raises:
            SampleError: a JPEG is damaged.
        """
        return self.finish(self.begin(batch))

    @property
    def is_async(self) -> bool:
        """Whether the images of a batch are decoded between `begin` and `finish`, not by `begin` itself."""
        return self._stream.is_async

    def begin(self, batch: Any) -> Begun:
        """Begin to decode the images of a batch. Batches are decoded one after the other."""
        images: list[Future[_Drawn]] = []

        def submit(samples: list[bytes | memoryview]) -> Future[_Drawn]:
            images.append(self._submitted(samples))
            return images[-1]

        return Begun(map_leaves(batch, submit, is_leaf=_is_encoded), images)

    def finish(self, begun: Begun) -> Any:
        """Wait until the images are decoded, and return the batch with tensors of them.

        Raises:
            SampleError: a JPEG is damaged.
        """
        if not begun.images:
            return begun.batch
        return map_leaves(begun.batch, self._received, is_leaf=lambda value: isinstance(value, Future))

    def wait(self, begun: Begun) -> None:
        """Wait until all images are decoded, or have failed, unless this is a fork, in which no thread decodes them."""
        if os.getpid() == self._pid:
            wait(begun.images)

    @staticmethod
    def is_decoding_thread() -> bool:
        """Whether this thread decodes, so that it may not wait for itself. A garbage collection can start here."""
        return threading.current_thread().name.startswith(_THREAD_NAME)

    @cached_property
    def _stream(self) -> SideStream:
        return side_stream(self._device)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, _THREAD_NAME, initializer=self._make_device_current)

    def _make_device_current(self) -> None:
        """Let the current device of a new thread be this one. Otherwise it is the first, and gets a context, too."""
        if self._device.index is not None:
            torch.accelerator.set_device_index(self._device.index)

    @cached_property
    def _decoder(self) -> DeviceDecoder | None:
        decoder = self._find_decoder(self._device)
        if decoder is None and self._device.type != "cpu":
            warn(
                f"no JPEG decoder for {self._device}: this process decodes on the CPU, which workers would do faster. "
                "Run pip install torchvision, or leave GpuDecode out"
            )
        return decoder

    @cached_property
    def _draw(self) -> DrawViews:
        return find_draw_views(self._device)

    def _submitted(self, samples: list[bytes | memoryview]) -> "Future[_Drawn]":
        if self.is_async:
            with suppress(RuntimeError):  # the interpreter is shutting down
                return self._thread.submit(self._drawn, samples)
        drawn: Future[_Drawn] = Future()
        drawn.set_result(self._drawn(samples))
        return drawn

    def _drawn(self, samples: list[bytes | memoryview]) -> _Drawn:
        with self._stream.entered():
            try:
                images = self._images([EncodedImage.of(sample) for sample in samples])
            finally:
                done = self._stream.mark()
                done.synchronize()
        return _Drawn(images, done)

    def _received(self, drawn: "Future[_Drawn]") -> torch.Tensor:
        images, done = drawn.result()
        self._stream.lead_consumer(done)
        self._stream.lend(images)
        return images

    def _images(self, images: list[EncodedImage]) -> torch.Tensor:
        shown = images[0].view.shown
        shape = (len(images), shown.height, shown.width, 3)
        out = torch.empty(shape, dtype=torch.uint8, device=self._device)
        decoded: dict[int, torch.Tensor] = {}
        jpegs = [number for number, image in enumerate(images) if image.is_jpeg]
        if jpegs and self._decoder is not None:
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


def _is_encoded(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(EncodedImage.is_one, value))


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
