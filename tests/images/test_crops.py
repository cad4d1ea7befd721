"""Crops are chosen as torchvision does, and show the region of their box in any size and orientation."""

import math
import random
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy import stats  # type: ignore[import-untyped]

from mpload.images.crops import random_crop_box
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, ResizeCenterCrop
from mpload.images.image import open_image
from mpload.images.resize import Box
from tests.support.photos import Photos, distance, encode, photo

Measure = Callable[[NDArray[np.int64]], NDArray[Any]]


def torchvision_crop(
    height: int, width: int, dice: random.Random, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Return top, left, height and width as torchvision's documentation of RandomResizedCrop.get_params says."""
    for _ in range(10):
        area = height * width * dice.uniform(*scale)
        aspect = math.exp(dice.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return dice.randint(0, height - h), dice.randint(0, width - w), h, w
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(375, 500, (0.08, 1.0)), (500, 375, (0.5, 1.0)), (1000, 300, (0.08, 1.0)), (64, 400, (0.9, 1.0))],
)
def test_crops_are_distributed_like_torchvisions(height: int, width: int, scale: tuple[float, float]) -> None:
    rng, dice, ratio = np.random.default_rng(1), random.Random(2), (3 / 4, 4 / 3)
    boxes = [random_crop_box(height, width, rng, scale=scale, ratio=ratio) for _ in range(6000)]
    ours = np.array([(box.top, box.left, box.height, box.width) for box in boxes])
    theirs = np.array([torchvision_crop(height, width, dice, scale, ratio) for _ in range(6000)])
    measures: dict[str, Measure] = {
        "top": lambda crop: crop[:, 0],
        "left": lambda crop: crop[:, 1],
        "height": lambda crop: crop[:, 2],
        "width": lambda crop: crop[:, 3],
        "area": lambda crop: crop[:, 2] * crop[:, 3],
        "ratio": lambda crop: crop[:, 3] / crop[:, 2],
        "place": lambda crop: crop[:, 1] / np.maximum(1, width - crop[:, 3]),
    }
    for name, measure in measures.items():
        assert stats.ks_2samp(measure(ours), measure(theirs)).pvalue > 0.001, name


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 1), (1, 7)])
def test_an_image_that_no_crop_fits_is_cropped_at_its_centre_like_in_torchvision(height: int, width: int) -> None:
    box = random_crop_box(height, width, np.random.default_rng(0), scale=(1.0, 1.0), ratio=(1.0, 1.0))
    expected = torchvision_crop(height, width, random.Random(0), (1.0, 1.0), (1.0, 1.0))
    assert (box.top, box.left, box.height, box.width) == expected


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**32))
def test_a_crop_is_inside_its_image(height: int, width: int, seed: int) -> None:
    box = random_crop_box(height, width, np.random.default_rng(seed))
    assert min(box.top, box.left) >= 0
    assert min(box.height, box.width) >= 1
    assert box.top + box.height <= height
    assert box.left + box.width <= width


@given(st.integers(2, 400), st.integers(2, 400), st.integers(2, 8), st.integers(0, 2**32))
def test_images_of_the_same_shape_are_cropped_alike_at_any_resolution(
    height: int, width: int, factor: int, seed: int
) -> None:
    small = random_crop_box(height, width, np.random.default_rng(seed))
    large = random_crop_box(height * factor, width * factor, np.random.default_rng(seed))
    for start, length, whole, large_start, large_length in (
        (small.top, small.height, height, large.top, large.height),
        (small.left, small.width, width, large.left, large.width),
    ):
        # Each end is rounded to a pixel of the small image; the start also depends on the rounded length.
        assert abs(length - large_length / factor) <= 1
        assert abs(start - large_start / factor) <= 2
        assert start + length <= whole


def test_every_place_in_the_image_is_equally_likely() -> None:
    rng = np.random.default_rng(6)
    boxes = [random_crop_box(8, 8, rng, scale=(0.25, 0.25), ratio=(1.0, 1.0)) for _ in range(2000)]
    for places in ([box.top for box in boxes], [box.left for box in boxes]):
        assert stats.chisquare(np.bincount(places, minlength=5)).pvalue > 0.001
        assert max(places) == 4


@pytest.mark.parametrize(("height", "width"), [(90, 120), (10, 200), (1, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_a_crop_draws_23_random_numbers_for_every_image(height: int, width: int, seed: int) -> None:
    jpeg = encode(Image.fromarray(photo(height, width, np.random.default_rng(3))), "JPEG")
    rng, counted = np.random.default_rng(seed), np.random.default_rng(seed)
    RandomResizedCrop(32)(jpeg, rng)
    counted.random(23)
    assert rng.random() == counted.random()


@pytest.mark.parametrize("name", ["jpeg_420", "exif_6", "cmyk", "png_palette"])
def test_a_random_crop_shows_the_region_of_its_box(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    whole = ImageDecoder()(data)
    num_mirrored = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        box = random_crop_box(whole.shape[0], whole.shape[1], rng)
        mirrored = rng.random() < 0.5
        num_mirrored += mirrored
        expected = cv2.resize(box.of(whole), (160, 150), interpolation=cv2.INTER_LINEAR)
        pixels = RandomResizedCrop((150, 160))(data, np.random.default_rng(seed))
        assert distance(pixels, expected[:, ::-1] if mirrored else expected) <= 1
    assert 0 < num_mirrored < 40


@pytest.mark.parametrize(
    ("name", "top", "left"),
    [  # in the stored image each region starts at a multiple of 8, so that no scale cuts a pixel
        ("jpeg_420", 16, 24),
        ("progressive", 16, 24),
        ("cmyk", 16, 24),
        ("grayscale", 16, 24),
        ("exif_2", 16, 28),
        ("exif_3", 24, 28),
        ("exif_4", 24, 24),
        ("exif_5", 24, 16),
        ("exif_6", 24, 24),
        ("exif_7", 28, 24),
        ("exif_8", 28, 16),
    ],
)
def test_a_smaller_scale_shows_the_same_region(photos: Photos, name: str, top: int, left: int) -> None:
    data = photos[name].read_bytes()
    box = Box(top=top, left=left, height=160, width=144)
    whole = box.of(ImageDecoder()(data))
    for at_least, shape in (
        ((160, 144), (160, 144)),
        ((81, 10), (160, 144)),
        ((80, 72), (80, 72)),
        ((40, 37), (80, 72)),
        ((40, 36), (40, 36)),
        ((20, 18), (20, 18)),
        ((1, 1), (20, 18)),
    ):
        region = open_image(data).region(box, at_least=at_least)
        assert region.shape == (*shape, 3)
        expected = cv2.resize(whole, shape[::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(region.astype(int) - expected).mean() < 2


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (301, 300), (37, 61)])
@pytest.mark.parametrize(("size", "resize"), [(224, 256), ((96, 160), 200), (224, None), (64, 64), (64, 67)])
def test_resize_center_crop_uses_torchvisions_sizes_and_positions(
    height: int, width: int, size: int | tuple[int, int], resize: int | None
) -> None:
    pixels = photo(height, width, np.random.default_rng(5))
    short = resize or 256
    full_width = short if width <= height else int(short * width / height)
    full_height = short if height <= width else int(short * height / width)
    crop_height, crop_width = size if isinstance(size, tuple) else (size, size)
    top, left = round((full_height - crop_height) / 2), round((full_width - crop_width) / 2)
    expected = cv2.resize(pixels, (full_width, full_height), interpolation=cv2.INTER_LINEAR)
    png = encode(Image.fromarray(pixels), "PNG")
    np.testing.assert_array_equal(
        ResizeCenterCrop(size, resize=resize)(png),
        expected[top : top + crop_height, left : left + crop_width],
    )


@pytest.mark.parametrize(("long", "short", "middle"), [(20_000, 1, 15.5), (30_001, 3, 152), (20_001, 2, 16)])
@pytest.mark.parametrize("upright", [False, True])
def test_a_very_long_image_is_cropped_at_its_centre_in_little_memory(
    long: int, short: int, middle: float, upright: bool
) -> None:
    pixels = np.tile((np.arange(long) % 256).astype(np.uint8), (short, 1))
    png = encode(Image.fromarray(pixels.T if upright else pixels), "PNG")
    crop = ResizeCenterCrop(64)(png)  # resizing the whole image first would take 300 MB or more
    assert crop[31:33, 31:33].mean() == pytest.approx(middle, abs=0.6)


@pytest.mark.parametrize(("flip", "mirrored"), [(0.0, False), (1.0, True)])
def test_flip_is_a_probability(photos: Photos, flip: float, mirrored: bool) -> None:
    data = photos["png_rgb"].read_bytes()
    crop = RandomResizedCrop((200, 300), scale=(1.0, 1.0), ratio=(1.5, 1.5), flip=flip)
    whole = ImageDecoder()(data)
    np.testing.assert_array_equal(crop(data, np.random.default_rng(0)), whole[:, ::-1] if mirrored else whole)
