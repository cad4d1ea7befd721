"""`PilTransform` passes decoded images to transforms of PIL images."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mpload import ImageDecoder, PilTransform
from mpload.errors import ArgumentError
from tests.support.photos import encode, photo

JPEG = encode(Image.fromarray(photo(40, 60, np.random.default_rng(0))), "JPEG")
PIXELS = ImageDecoder()(JPEG)


def test_a_transform_gets_the_pixels_of_the_image_decoder() -> None:
    np.testing.assert_array_equal(PilTransform(lambda image: image)(JPEG), PIXELS)


def test_images_arrays_and_tensors_become_arrays_in_the_order_of_memory() -> None:
    results: list[tuple[Any, Any]] = [
        (lambda image: image.convert("L"), np.array(Image.fromarray(PIXELS).convert("L"))),
        (np.array, PIXELS),
        (lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255, PIXELS / np.float32(255)),
        (lambda image: torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1)] * 2), np.stack([PIXELS] * 2)),
    ]
    for transform, expected in results:
        made = PilTransform(transform)(JPEG)
        assert made.dtype == expected.dtype
        np.testing.assert_array_equal(made, expected)


def test_images_are_upright_rgb() -> None:
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS[:, :, 0]).save(file, "JPEG", exif=exif)
    assert PilTransform(np.array)(file.getvalue()).shape == (60, 40, 3)
    assert PilTransform(np.array, ImageDecoder(exif_orientation=False))(file.getvalue()).shape == (40, 60, 3)


def test_what_is_no_transform_is_refused() -> None:
    with pytest.raises(ArgumentError, match="transform must be a callable on a PIL image, got 7"):
        PilTransform(7)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"transform .*lambda.* returned str. Return a PIL image"):
        PilTransform(lambda image: "text")(JPEG)
