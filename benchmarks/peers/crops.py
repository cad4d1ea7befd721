"""The training transform, RandomResizedCrop and a flip, on the libraries that people use: bytes in, an array out."""

import math
import random
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np

from peers.race import CROP, MEAN, STD, Output

__all__ = ["Crop", "as_tensor", "crop_with"]

Crop = Callable[[bytes], Any]
"""Returns uint8 [224, 224, 3], or bytes as they are."""


def crop_with(library: str, output: Output) -> Crop:
    """Return the transform on `library`: pil, albumentations or simplejpeg."""
    if output is Output.BYTES:
        return bytes
    return {"pil": _pil, "albumentations": _albumentations, "simplejpeg": _simplejpeg}[library]()


def as_tensor(pixels: Any, output: Output) -> Any:
    """Return what torchvision's ToTensor and Normalize, or PILToTensor, would make of uint8 [H, W, 3]."""
    import torch

    image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)
    if output is Output.UINT8:
        return image
    image = image.contiguous().float().div_(255)
    return image.sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(STD)[:, None, None])


def _random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return top, left, height and width as torchvision chooses them."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = random.randint(0, height - box_height), random.randint(0, width - box_width)
            return top, left, box_height, box_width
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def _pil() -> Crop:
    from PIL import Image

    def crop(data: bytes) -> Any:
        image = Image.open(BytesIO(data)).convert("RGB")
        top, left, height, width = _random_box(image.height, image.width)
        part = image.crop((left, top, left + width, top + height)).resize((CROP, CROP), Image.Resampling.BILINEAR)
        return np.asarray(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part)

    return crop


def _albumentations() -> Crop:
    import albumentations  # type: ignore[import-untyped]
    import cv2

    cv2.setNumThreads(0)
    compose = albumentations.Compose(
        [
            albumentations.RandomResizedCrop((CROP, CROP)),
            albumentations.HorizontalFlip(p=0.5),
        ]
    )

    def crop(data: bytes) -> Any:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        return compose(image=pixels)["image"]

    return crop


def _simplejpeg() -> Crop:
    import cv2
    import simplejpeg  # type: ignore[import-untyped]

    cv2.setNumThreads(0)

    def crop(data: bytes) -> Any:
        pixels = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)
        top, left, height, width = _random_box(*pixels.shape[:2])
        part = cv2.resize(pixels[top : top + height, left : left + width], (CROP, CROP))
        return cv2.flip(part, 1) if random.random() < 0.5 else part

    return crop
