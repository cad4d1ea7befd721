"""Transforms of samples. This module is imported in workers, so it must not import mpload."""

import random
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def albumented(**params: Any) -> Any:
    """Return a pipeline that moves pixels, ids, boxes and points in many ways, and drops some."""
    import albumentations as A  # type: ignore[import-untyped]  # noqa: N812

    return A.Compose(
        [
            A.HorizontalFlip(),
            A.Affine(rotate=(-20, 20), scale=(0.8, 1.2), p=0.7, fill_mask=255),
            A.OneOf([A.RandomBrightnessContrast(p=1.0), A.GaussNoise(p=1.0)], p=0.9),
            A.RandomCrop(50, 50),
        ],
        **params,
    )


def drawing_pil(image: Image.Image) -> Image.Image:
    """Draw from the global generators, as most transforms of PIL images do."""
    assert image.mode == "RGB"
    turned = image.rotate(random.uniform(-20, 20))
    return ImageOps.mirror(turned) if np.random.rand() < 0.5 else turned  # noqa: NPY002
