"""A letterbox has the pixels of Ultralytics' one, and its padding is known to all columns."""

from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from mpload.errors import ArgumentError
from mpload.images.decoders import ResizeCenterCrop
from mpload.images.geometry import Geometry
from mpload.images.letterbox import Letterbox
from mpload.images.mask import Mask
from mpload.samples.boxes import Boxes
from tests.support.photos import Photos, distance, encode, photo
from tests.support.value_files import npy

SIDES = st.integers(1, 90)


def ultralytics(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return what Ultralytics' LetterBox makes of an image."""
    height, width = pixels.shape[:2]
    ratio = min(size[0] / height, size[1] / width)
    new_width, new_height = max(1, round(width * ratio)), max(1, round(height * ratio))
    right, down = (size[1] - new_width) / 2, (size[0] - new_height) / 2
    resized = cv2.resize(pixels, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    top, bottom = round(down - 0.1), round(down + 0.1)
    left, end = round(right - 0.1), round(right + 0.1)
    made = cv2.copyMakeBorder(resized, top, bottom, left, end, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    return np.asarray(made, np.uint8)


@given(SIDES, SIDES, st.tuples(SIDES, SIDES))
def test_a_letterbox_has_the_pixels_of_ultralytics(height: int, width: int, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    made = Letterbox(size)(encode(Image.fromarray(pixels), "PNG"))
    np.testing.assert_array_equal(made, ultralytics(pixels, size))


@pytest.mark.parametrize("name", ["jpeg_420", "exif_6", "cmyk", "png_palette"])
@pytest.mark.parametrize("size", [(64, 100), (100, 64), 80])
def test_photos_of_all_kinds_are_letterboxed(photos: Photos, name: str, size: int | tuple[int, int]) -> None:
    data = photos[name].read_bytes()
    decode = Letterbox(size, antialias=True)
    made = decode(data)
    geometry = decode.draw_geometry(*upright_size(data))
    part = made[shown_part(geometry)]
    alone = ResizeCenterCrop(part.shape[:2], resize=max(part.shape[:2]), antialias=True)
    view = geometry.view._replace(window=None)
    expected = alone(data, geometry=Geometry(height=geometry.height, width=geometry.width, view=view))
    assert distance(part, expected) == 0
    made[shown_part(geometry)] = 114
    assert (made == 114).all()


def shown_part(geometry: Geometry) -> tuple[slice, slice]:
    left, top, right, bottom = map(round, geometry.shown_area())
    return slice(top, bottom), slice(left, right)


def upright_size(data: bytes) -> tuple[int, int]:
    from mpload.images.image import open_image

    image = open_image(data)
    return image.height, image.width


@pytest.mark.parametrize(("height", "width"), [(50, 31), (31, 50), (40, 40)])
def test_a_flip_mirrors_the_image_and_leaves_the_padding(height: int, width: int) -> None:
    data = encode(Image.fromarray(photo(height, width, np.random.default_rng(1))), "PNG")
    rng = np.random.default_rng(0)
    plain, mirrored = Letterbox(41)(data), Letterbox(41, flip=1.0)(data, rng)
    assert rng.random() == np.random.default_rng(0).random(2)[1]
    geometry = Letterbox(41).draw_geometry(height, width)
    shown = shown_part(geometry)
    np.testing.assert_array_equal(mirrored[shown], plain[shown][:, ::-1])
    mirrored[shown] = plain[shown]
    np.testing.assert_array_equal(mirrored, plain)


@given(SIDES, SIDES, st.integers(1, 90), st.booleans())
def test_masks_and_boxes_know_the_padding(height: int, width: int, size: int, mirror: bool) -> None:
    geometry = Letterbox(size, flip=float(mirror)).draw_geometry(height, width, np.random.default_rng(0))
    png = encode(Image.fromarray(np.full((height, width, 3), 9, np.uint8)), "PNG")
    pixels = Letterbox(size)(png, geometry=geometry)[..., 0]
    mask = Mask()(npy(np.full((height, width), 9, np.uint8)), geometry)
    np.testing.assert_array_equal(np.where(mask == 255, 114, mask), pixels)
    box = Boxes("yolo", values=(), min_side=0)("0 0.5 0.5 1 1", geometry)["boxes"][0]
    rows, columns = np.nonzero(pixels == 9)
    np.testing.assert_allclose(box, [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], atol=1e-4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Letterbox(0), "size must be a positive number"),
        (lambda: Letterbox(8, fill=256), "fill must be a value of a channel, 0 to 255, got 256"),
        (lambda: Letterbox(8, fill=0.5), "fill must be a value of a channel"),  # type: ignore[arg-type]
        (lambda: Letterbox(8, flip=-1), r"flip must be in \[0, 1\], got -1"),
        (lambda: Letterbox(8, flip=0.5).draw_geometry(9, 9), "a Letterbox draws random numbers: pass rng="),
    ],
)
def test_invalid_arguments_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()
