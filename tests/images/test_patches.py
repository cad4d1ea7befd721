"""Patches are pixels of the image itself, equally likely at all places, and pairs of images get the same one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy import stats  # type: ignore[import-untyped]

from mpload.errors import ArgumentError, DecodeError
from mpload.images.image import open_image
from mpload.images.mask import Mask
from mpload.images.patches import RandomCrop
from tests.support.photos import Photos, encode
from tests.support.value_files import npy

SIDES = st.integers(1, 60)


def numbered(height: int, width: int) -> NDArray[np.uint8]:
    """Return an image whose pixels all differ and are not black."""
    rows, columns = np.mgrid[1 : height + 1, 1 : width + 1]
    return np.stack([rows, columns, rows], axis=-1).astype(np.uint8)


@given(SIDES, SIDES, st.tuples(SIDES, SIDES), st.integers(0, 5), st.integers(0, 2**32))
def test_a_patch_is_a_part_of_the_image(
    height: int, width: int, size: tuple[int, int], padding: int, seed: int
) -> None:
    padding = min(padding, min(size) - 1)
    decode = RandomCrop(size, padding=padding, upside_down=0.5)
    made = decode(encode(Image.fromarray(numbered(height, width)), "PNG"), np.random.default_rng(seed))
    geometry = decode.draw_geometry(height, width, np.random.default_rng(seed))
    made = made[:: -1 if geometry.upside_down else 1, :: -1 if geometry.view.mirror else 1]
    around = 80
    padded = np.pad(numbered(height, width), ((around, around), (around, around), (0, 0)))
    box, window = geometry.view.box, geometry.view.shown
    top, left = around + box.top + window.top, around + box.left + window.left
    np.testing.assert_array_equal(made, padded[top : top + size[0], left : left + size[1]])
    for start, side, length in ((top - around, height, size[0]), (left - around, width, size[1])):
        assert min(-padding, side + padding - length) <= start <= max(-padding, side + padding - length)


@pytest.mark.parametrize("name", ["jpeg_420", "exif_6", "progressive", "png_rgb"])
def test_a_patch_of_a_photo_has_its_pixels(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    whole = open_image(data).pixels()
    for seed in range(5):
        geometry = RandomCrop(32).draw_geometry(whole.shape[0], whole.shape[1], np.random.default_rng(seed))
        expected = geometry.view.box.of(whole)
        made = RandomCrop(32)(data, np.random.default_rng(seed))
        np.testing.assert_array_equal(made, expected[:, ::-1] if geometry.view.mirror else expected)


def test_every_place_is_equally_likely() -> None:
    rng, decode = np.random.default_rng(0), RandomCrop(4, padding=2)
    views = [decode.draw_geometry(8, 8, rng).view for _ in range(4000)]
    tops = np.array([view.box.top + view.shown.top for view in views])
    lefts = np.array([view.box.left + view.shown.left for view in views])
    assert (tops.min(), tops.max()) == (-2, 6)
    for places in (tops, lefts):
        assert stats.chisquare(np.bincount(places + 2)).pvalue > 0.001
    assert stats.chisquare(np.histogram2d(tops, lefts, bins=9)[0].ravel()).pvalue > 0.001


@pytest.mark.parametrize(("height", "width"), [(9, 12), (200, 3), (1, 1)])
def test_a_patch_draws_four_random_numbers_for_every_image(height: int, width: int) -> None:
    rng = np.random.default_rng(0)
    RandomCrop(8).draw_geometry(height, width, rng)
    assert rng.random() == np.random.default_rng(0).random(5)[4]


@pytest.mark.parametrize("missing", [0, 1, 3])
@pytest.mark.parametrize("small_first", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_pair_of_images_gets_the_same_patch(missing: int, small_first: bool, seed: int) -> None:
    small = np.random.default_rng(1).integers(0, 256, (45, 70, 3), np.uint8)
    large = small.repeat(4, axis=0).repeat(4, axis=1)[: 180 - missing, : 280 - missing]
    low, high = RandomCrop(12, upside_down=0.5), RandomCrop(48, upside_down=0.5, align=4)
    first, image = (low, small) if small_first else (high, large)
    geometry = first.draw_geometry(image.shape[0], image.shape[1], np.random.default_rng(seed))
    made_low = low(encode(Image.fromarray(small), "PNG"), geometry=geometry)
    made_high = high(encode(Image.fromarray(large), "PNG"), geometry=geometry)
    expected = made_low.repeat(4, axis=0).repeat(4, axis=1)
    is_there = expected == made_high
    assert is_there.all() or (missing and small_first and is_there.mean() > 0.8)


def test_a_pair_that_would_have_to_be_resized_or_shifted_is_refused() -> None:
    large = encode(Image.fromarray(numbered(80, 120)), "PNG")
    geometry = RandomCrop(12).draw_geometry(40, 60, np.random.default_rng(0))
    with pytest.raises(DecodeError, match=r"of the 60x40 image .* no crop of whole pixels in this image, 120x80"):
        RandomCrop(12)(large, geometry=geometry)
    small = encode(Image.fromarray(numbered(40, 60)), "PNG")
    refused = 0
    for seed in range(20):
        unaligned = RandomCrop(24).draw_geometry(80, 120, np.random.default_rng(seed))
        is_odd = unaligned.view.box.top % 2 or unaligned.view.box.left % 2
        refused += bool(is_odd)
        if is_odd:
            with pytest.raises(DecodeError, match="pass the ratio as align to its decoder"):
                RandomCrop(12)(small, geometry=unaligned)
        else:
            RandomCrop(12)(small, geometry=unaligned)
    assert 0 < refused < 20


@given(SIDES, SIDES, st.integers(1, 60), st.integers(0, 2**32))
def test_a_mask_follows_the_patch(height: int, width: int, size: int, seed: int) -> None:
    pixels = numbered(height, width)
    geometry = RandomCrop(size, upside_down=0.5).draw_geometry(height, width, np.random.default_rng(seed))
    made = RandomCrop(size)(encode(Image.fromarray(pixels), "PNG"), geometry=geometry)
    np.testing.assert_array_equal(Mask(ignore=0)(npy(pixels[..., 0]), geometry), made[..., 0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RandomCrop((0, 4)), "size must be a positive number"),
        (lambda: RandomCrop(4, padding=4), "padding must be at least 0 and smaller than the patch, got 4"),
        (lambda: RandomCrop(4, padding=-1), "padding must be at least 0"),
        (lambda: RandomCrop(4, align=0), "align must be positive, got 0"),
        (lambda: RandomCrop(4, flip=2), r"flip must be in \[0, 1\], got 2"),
        (lambda: RandomCrop(4, upside_down=2), r"upside_down must be in \[0, 1\], got 2"),
        (lambda: RandomCrop(4, fill=-1), "fill must be a value of a channel"),
        (lambda: RandomCrop(4).draw_geometry(9, 9, None), "a RandomCrop draws random numbers: pass rng="),
    ],
)
def test_invalid_arguments_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()
