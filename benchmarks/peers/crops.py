"""The training transform, RandomResizedCrop and a flip, with common libraries: bytes in, an array out.

Every array is [H, W, 3], and batches are copied in this memory layout, which is the fastest way for all loaders.
"""

import math
import random
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np

from peers.race import CROP, MEAN, STD, Output

__all__ = ["Crop", "as_columns", "channels_first", "crop_pixels", "crop_with", "finished"]

Crop = Callable[[bytes], Any]
"""Returns uint8 [224, 224, 3], or the bytes unchanged."""


def crop_with(library: str, output: Output) -> Crop:
    """Return the transform made with `library`: pil, albumentations or simplejpeg."""
    if output is Output.BYTES:
        return bytes
    return {"pil": _pil, "albumentations": _albumentations, "simplejpeg": _simplejpeg}[library]()


ROW_MEAN = np.tile(255 * np.array(MEAN, np.float32), CROP)
ROW_SCALE = np.tile(1 / (255 * np.array(STD, np.float32)), CROP)
"""Mean and scale, repeated for a row of pixels: a row is long enough for SIMD, three channels are not."""


def finished(pixels: Any, output: Output) -> Any:
    """Return uint8 [..., H, W, 3] unchanged, or the values of torchvision's ToTensor and Normalize in that layout."""
    pixels = np.ascontiguousarray(pixels)
    if output is Output.UINT8:
        return pixels
    import torch  # faster than NumPy here

    rows = torch.from_numpy(pixels).flatten(-2).float()
    return rows.sub_(torch.from_numpy(ROW_MEAN)).mul_(torch.from_numpy(ROW_SCALE)).view(pixels.shape).numpy()


def as_columns(samples: list[Any]) -> list[Any]:
    """Collate samples that are bytes."""
    return [list(column) for column in zip(*samples, strict=True)]


def channels_first(images: Any) -> Any:
    """Return a batch [B, H, W, 3] as a view [B, 3, H, W], still channels last in memory."""
    return images.permute(0, 3, 1, 2)


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


def crop_pixels(pixels: Any) -> Any:
    """Return a random crop of a decoded image, resized and flipped by OpenCV."""
    import cv2

    top, left, height, width = _random_box(*pixels.shape[:2])
    part = cv2.resize(pixels[top : top + height, left : left + width], (CROP, CROP))
    return cv2.flip(part, 1) if random.random() < 0.5 else part


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
        full_height, full_width, *_ = simplejpeg.decode_jpeg_header(data)
        top, left, height, width = _random_box(full_height, full_width)
        shrink = max(1, min(height, width) // CROP)  # decode at 1/2, 1/4 or 1/8 if that suffices
        shrink = 1 << min(3, shrink.bit_length() - 1)
        least = {"min_height": -(-full_height // shrink), "min_width": -(-full_width // shrink)} if shrink > 1 else {}
        pixels = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True, min_factor=shrink, **least)
        top, left, height, width = (length // shrink for length in (top, left, height, width))
        part = cv2.resize(pixels[top : top + height, left : left + width], (CROP, CROP))
        return cv2.flip(part, 1) if random.random() < 0.5 else part

    return crop
