"""Decodes, crops and resizes the images that workers left to the device; on the CPU if the device cannot."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import interpolate

from mpload.device.staging import map_leaves
from mpload.errors import DecodeError, MploadWarning, SampleError
from mpload.images.gpu_decode import EncodedImage
from mpload.images.image import open_image

__all__ = ["DeviceDecoder", "Unpacker", "device_decoder"]


class DeviceDecoder(Protocol):
    """Decodes JPEGs on the device."""

    def __call__(self, files: Sequence[torch.Tensor], /) -> list[torch.Tensor]:
        """Decode each file, uint8 [n] on the host, to RGB uint8 [3, H, W]; raise RuntimeError if one cannot be."""
        ...


def device_decoder(device: torch.device) -> DeviceDecoder | None:
    """Return torchvision's nvJPEG decoder; None if it is not installed or `device` is not a CUDA device."""
    if device.type != "cuda":
        return None
    try:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  optional
    except (ImportError, RuntimeError):  # RuntimeError if it was built for another torch
        return None
    return partial(decode_jpeg, mode=ImageReadMode.RGB, device=device)


class Unpacker:
    """Replaces lists of encoded images with tensors: uint8 [B, 3, H, W] in `channels_last`, on the device.

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

        Raises:
            SampleError: a JPEG is damaged.
        """
        return map_leaves(
            batch,
            lambda samples: self._images([EncodedImage.of(sample) for sample in samples]),
            is_leaf=lambda value: isinstance(value, list) and bool(value) and all(map(EncodedImage.is_one, value)),
        )

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

    def _images(self, images: list[EncodedImage]) -> torch.Tensor:
        shown = images[0].view.shown
        shape = (len(images), shown.height, shown.width, 3)
        out = torch.empty(shape, dtype=torch.uint8, device=self._device).permute(0, 3, 1, 2)
        places = [_Place(number=number, image=image, out=out[number]) for number, image in enumerate(images)]
        jpegs = [place for place in places if place.image.is_jpeg]
        left_over = [place for place in places if not place.image.is_jpeg]
        left_over += jpegs if self._decoder is None else _decode_on_device(jpegs, self._decoder)
        for place in left_over:
            place.out.copy_(torch.from_numpy(_pixels(place)).permute(2, 0, 1))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """An encoded image and the destination of its pixels."""

    number: int
    image: EncodedImage
    out: torch.Tensor
    """uint8 [3, H, W], on the device."""


def _decode_on_device(places: list[_Place], decode: DeviceDecoder) -> list[_Place]:
    """Decode a batch at once, or one by one if that fails; return the places that the device cannot decode."""
    files = [torch.frombuffer(bytearray(place.image.data), dtype=torch.uint8) for place in places]
    try:
        decoded: list[torch.Tensor | None] = list(decode(files)) if files else []
    except RuntimeError:
        decoded = [_decoded_alone(file, decode) for file in files]
    refused = []
    for place, pixels in zip(places, decoded, strict=True):
        if pixels is None:
            refused.append(place)
        else:
            _write_view(pixels, place)
    return refused


def _decoded_alone(file: torch.Tensor, decode: DeviceDecoder) -> torch.Tensor | None:
    try:
        return decode([file])[0]
    except RuntimeError:
        return None


def _write_view(pixels: torch.Tensor, place: _Place) -> None:
    """Crop, resize and mirror a whole image, uint8 [3, H, W], as its view says, like the resize of the CPU."""
    view = place.image.view
    box, shown = view.box, view.shown
    region = pixels[:, box.top : box.top + box.height, box.left : box.left + box.width]
    full = interpolate(region[None].float(), size=view.full, mode="bilinear", antialias=view.antialias)[0]
    window = full[:, shown.top : shown.top + shown.height, shown.left : shown.left + shown.width]
    place.out.copy_((window.flip(-1) if view.mirror else window).round().clamp(0, 255))


def _pixels(place: _Place) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uint8 [height, width, 3] decoded by the CPU: by the worker, or here."""
    view, data = place.image.view, place.image.data
    shape = (view.shown.height, view.shown.width, 3)
    if not place.image.is_jpeg:
        return np.frombuffer(data, np.uint8).reshape(shape).copy()  # torch needs writable memory
    pixels = np.empty(shape, np.uint8)
    try:
        open_image(data).draw(view, pixels)
    except DecodeError as error:
        raise SampleError(f"sample {place.number} of the batch, which GpuDecode left to the device: {error}") from error
    return pixels
