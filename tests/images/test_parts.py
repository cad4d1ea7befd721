"""Views of an image that is decoded once have the pixels of views that are decoded one by one."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.backends import Backend, StoredView
from mpload.images.image import Image, open_image
from mpload.images.jpeg import Jpeg
from mpload.images.parts import decoded_once
from mpload.images.resize import Box, View
from tests.support.jpegs import ALL_VARIETIES, NATIVE, make, without_last_scan
from tests.support.native import needs_native
from tests.support.photos import Photos

HEIGHT, WIDTH = 203, 301
BACKENDS: list[Backend] = ["simplejpeg"] if NATIVE is None else ["native", "simplejpeg"]


@st.composite
def views(draw: st.DrawFn, height: int = HEIGHT, width: int = WIDTH) -> list[View]:
    found = []
    for _ in range(draw(st.integers(2, 6))):
        rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
        top, left = draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns))
        full = draw(st.tuples(st.integers(1, 90), st.integers(1, 90)) | st.just((rows, columns)))
        shown = draw(st.integers(1, full[0])), draw(st.integers(1, full[1]))
        corner = draw(st.integers(0, full[0] - shown[0])), draw(st.integers(0, full[1] - shown[1]))
        window = draw(st.sampled_from([None, Box(*corner, *shown)]))
        mirror, antialias = draw(st.booleans()), draw(st.booleans())
        found.append(View(Box(top, left, rows, columns), full, window, mirror, antialias))
    return found


@cache
def jpeg(variety: str) -> bytes:
    return make(variety, HEIGHT, WIDTH, seed=len(variety))


def drawn(image: Image, view: View) -> NDArray[np.uint8]:
    out = np.zeros((view.shown.height, view.shown.width, 3), np.uint8)
    image.draw(view, out)
    return out


def check(data: bytes, wanted: list[View], backend: Backend) -> None:
    image = decoded_once(open_image(data, backend=backend), wanted)
    for view in wanted:
        alone = drawn(open_image(data, backend=backend), view)
        np.testing.assert_array_equal(drawn(image, view), alone, err_msg=f"{view}")


@pytest.mark.parametrize("backend", BACKENDS)
@given(variety=st.sampled_from(sorted(ALL_VARIETIES)), wanted=views())
def test_views_of_any_jpeg_do_not_depend_on_how_it_was_decoded(
    backend: Backend, variety: str, wanted: list[View]
) -> None:
    check(jpeg(variety), wanted, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@given(wanted=views())
def test_views_of_a_jpeg_without_its_last_scan_have_the_pixels_of_a_full_decode(
    backend: Backend, wanted: list[View]
) -> None:
    data = without_last_scan(jpeg("progressive"))
    whole = open_image(data, backend="simplejpeg").pixels()
    for view in wanted:
        unchanged = View(view.box, (view.box.height, view.box.width))
        pixels = drawn(open_image(data, backend=backend), unchanged)
        np.testing.assert_array_equal(pixels, view.box.of(whole), err_msg=f"{unchanged}")
    check(data, wanted, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [*(f"exif_{number}" for number in range(1, 9)), "cmyk", "png_rgb", "webp"])
def test_views_of_turned_images_and_other_formats_do_not_depend_on_how_they_were_decoded(
    kind: str, backend: Backend, photos: Photos
) -> None:
    data = photos[kind].read_bytes()
    image = open_image(data)
    rng = np.random.default_rng(0)
    wanted = []
    for number in range(12):
        height, width = int(rng.integers(20, image.height + 1)), int(rng.integers(20, image.width + 1))
        top, left = int(rng.integers(image.height - height + 1)), int(rng.integers(image.width - width + 1))
        box = Box(top=top, left=left, height=height, width=width)
        wanted.append(View(box, (20, 30), None, number % 2 == 0, number % 3 == 0))
    check(data, wanted, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_overlapping_views_come_from_one_decode_for_each_scale(backend: Backend) -> None:
    large, small = [Box(5, 7, 190, 280), Box(0, 0, 180, 200)], [Box(30, 40, 100, 100), Box(60, 70, 90, 120)]
    wanted = [*(View(box, (150, 150)) for box in large), *(View(box, (30, 30)) for box in small)]
    image = open_image(jpeg("420"), backend=backend)
    assert isinstance(image, Jpeg)
    prepared = decoded_once(image, wanted)
    image.data = b""  # nothing can be decoded any more
    assert all(drawn(prepared, view).any() for view in wanted)


def test_small_views_that_lie_far_apart_are_decoded_one_by_one() -> None:
    wanted = [View(Box(0, 0, 20, 20), (20, 20)), View(Box(180, 280, 20, 20), (20, 20))]
    image = open_image(jpeg("420"))
    assert isinstance(image, Jpeg)
    prepared = decoded_once(image, wanted)
    image.data = b""
    for view in wanted:
        with pytest.raises(DecodeError):
            drawn(prepared, view)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["truncated", "damaged"])
def test_damaged_images_raise_the_same_error(kind: str, backend: Backend, photos: Photos) -> None:
    data = photos["truncated"].read_bytes()
    if kind == "damaged":
        data = jpeg("420")
        data = data[: len(data) // 2] + b"\xff\xd3" * 20 + data[len(data) // 2 + 40 :]
    causes = []
    image = open_image(data, backend=backend)
    wanted = [View(Box(0, 0, image.height, image.width), (40, 40)) for _ in range(2)]
    for views_ahead in ([], wanted):
        with pytest.raises(DecodeError) as caught:
            drawn(decoded_once(image, views_ahead), wanted[1])
        causes.append(str(caught.value))
    assert causes[0] == causes[1]


@needs_native
@pytest.mark.parametrize(
    ("changes", "num_bytes"),
    [
        ({"full": (9, 70_000)}, 0),
        ({"box": (0, 0, 0, 5)}, 0),
        ({"size": (70_000, 8)}, 0),
        ({}, -1),
        ({"size": (9, 8)}, 0),
    ],
)
def test_numbers_and_pixels_that_do_not_fit_are_refused(changes: dict[str, Any], num_bytes: int) -> None:
    view = StoredView((8, 8), 1, Box(0, 0, 8, 8), (9, 9), (0, 0), False, False)._replace(**changes)
    pixels = np.zeros(8 * 8 * 3 + NATIVE.PADDING_BYTES + num_bytes, np.uint8)
    with pytest.raises(ValueError, match=r"out of range|pixels must be"):
        NATIVE.resize(pixels, view, np.zeros((9, 9, 3), np.uint8))


@needs_native
def test_a_box_outside_of_the_pixels_is_declined() -> None:
    for box in (Box(1, 0, 8, 8), Box(0, 2**31 - 1, 8, 8)):
        view = StoredView((8, 8), 1, box, (9, 9), (0, 0), False, False)
        pixels = np.zeros(8 * 8 * 3 + NATIVE.PADDING_BYTES, np.uint8)
        assert NATIVE.resize(pixels, view, np.zeros((9, 9, 3), np.uint8)) == "the box lies outside of it"
