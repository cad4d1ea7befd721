"""Smaller copies of images look like Pillow's, whichever backend makes them."""

from io import BytesIO

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mpload.errors import DecodeError
from mpload.images.backends import Backend
from mpload.images.image import open_image
from mpload.images.shrink import shrunk_jpeg
from mpload.samples.cache.compact import Compact
from tests.support.native import needs_native
from tests.support.photos import encode, photo

BACKENDS = ["simplejpeg", pytest.param("native", marks=needs_native)]
SIZES = [((75, 100), (48, 64)), ((100, 75), (64, 48)), ((400, 500), (48, 60)), ((49, 900), (48, 882)), ((48, 60), None)]


def pixels_of(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB"))


def mean_distance(small: NDArray[np.uint8], expected: Image.Image) -> float:
    """Compare luma only: colours are stored at half the resolution, which matters in images as small as these."""
    assert small.shape[1::-1] == expected.size
    a, b = (np.asarray(image.convert("L"), int) for image in (Image.fromarray(small), expected))
    return float(np.abs(a - b).mean())


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("size", "shrunk"), SIZES)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_copy_has_the_requested_shorter_side_and_pixels_like_pillows(
    name: Backend, size: tuple[int, int], shrunk: tuple[int, int] | None, kind: str
) -> None:
    data = encode(Image.fromarray(photo(*size, np.random.default_rng(0))), kind)
    small = pixels_of(shrunk_jpeg(open_image(data, backend=name), short_side=48, quality=95))
    height, width = shrunk or size
    expected = Image.fromarray(pixels_of(data)).resize((width, height), Image.Resampling.BILINEAR)
    assert mean_distance(small, expected) < 6


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_stripes_of_one_pixel_become_gray(name: Backend, kind: str) -> None:
    stripes = np.zeros((100, 100, 3), np.uint8)
    stripes[:, ::2] = 255
    data = encode(Image.fromarray(stripes), kind)
    small = pixels_of(shrunk_jpeg(open_image(data, backend=name), short_side=53, quality=95))
    assert 60 < small.min() < small.max() < 195


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_smaller_copy_is_upright(name: Backend, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(Image.fromarray(photo(90, 120, np.random.default_rng(1))), "JPEG", exif=exif, quality=95)
    small = shrunk_jpeg(open_image(data, backend=name), short_side=45, quality=95)
    assert Image.open(BytesIO(small)).getexif().get(0x0112, 1) == 1
    upright = Image.fromarray(pixels_of(data))
    expected = upright.resize((upright.width // 2, upright.height // 2), Image.Resampling.BILINEAR)
    assert mean_distance(pixels_of(small), expected) < 6


@pytest.mark.parametrize("name", BACKENDS)
def test_a_truncated_image_has_no_smaller_copy(name: Backend) -> None:
    data = encode(Image.fromarray(photo(300, 400, np.random.default_rng(2))), "JPEG")
    with pytest.raises(DecodeError, match="truncated"):
        shrunk_jpeg(open_image(data[: len(data) // 2], backend=name), short_side=48, quality=95)


def test_the_compact_form_keeps_images_that_are_small_or_would_become_larger() -> None:
    small, large = (Image.fromarray(photo(*size, np.random.default_rng(0))) for size in ((256, 400), (300, 400)))
    for image, quality in ((small, 100), (large, 2)):
        data = encode(image, "JPEG", quality=quality)
        assert Compact()(data) == data
    data = encode(large, "JPEG", quality=100)
    assert len(Compact()(data)) < len(data)
