"""Masks keep the numbers of their files and follow the geometry of their image, pixel by pixel."""

import math
import sys
from fractions import Fraction
from io import BytesIO
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from mpload.errors import ArgumentError, DecodeError, MploadWarning
from mpload.images.decoders import RandomResizedCrop, ResizeCenterCrop
from mpload.images.geometry import Geometry
from mpload.images.limits import Limits
from mpload.images.mask import Mask, _warn_of_slow_masks
from mpload.images.resize import Box, View
from tests.support.geometries import geometries
from tests.support.photos import encode
from tests.support.value_files import npy, palette_png, value_files

FILES = value_files(37, 53)
IDS = np.random.default_rng(1).integers(0, 21, (60, 80)).astype(np.uint8)


@pytest.mark.parametrize("name", FILES)
def test_a_mask_holds_the_numbers_of_its_file(name: str) -> None:
    data, values = FILES[name]
    if "uint32" in name and cv2.__version__.startswith("4."):
        pytest.skip("OpenCV 4 does not read such files")
    dtype = "float32" if values.dtype.kind == "f" else "int64"
    mask = Mask(dtype=dtype)(data)
    assert mask.dtype == dtype
    np.testing.assert_array_equal(mask, values)


def test_a_palette_is_read_as_pillow_reads_it() -> None:
    data = palette_png(IDS)
    np.testing.assert_array_equal(Mask()(data), np.asarray(Image.open(BytesIO(data))))


def test_numbers_beyond_the_palette_of_a_bmp_are_read_too() -> None:
    image, file = Image.fromarray(IDS, "P"), BytesIO()
    image.putpalette(bytes(range(63)))
    image.save(file, "BMP")
    data = bytearray(file.getvalue())  # Pillow writes 21 colours
    np.testing.assert_array_equal(Mask()(bytes(data)), IDS)
    data[54 + 4 * 21] = 255  # the last row comes first
    assert Mask()(bytes(data))[-1, 0] == 255


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16"])
def test_a_tiff_in_which_0_is_white_is_not_inverted(dtype: str) -> None:
    values, file = (IDS % 3).astype(dtype), BytesIO()
    tifffile.imwrite(file, values, photometric="miniswhite")
    np.testing.assert_array_equal(Mask()(file.getvalue()), values)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(DecodeError, match="complex128; a mask holds real numbers"):
        Mask(dtype="float32")(npy(IDS + 1j))


@pytest.mark.parametrize("crop", [RandomResizedCrop((40, 50)), ResizeCenterCrop(40, resize=44)])
@pytest.mark.parametrize("seed", range(8))
def test_a_crop_has_the_pixels_of_pillows_nearest_neighbour(crop: Any, seed: int) -> None:
    geometry = crop.draw_geometry(*IDS.shape, np.random.default_rng(seed))
    view, box = geometry.view, geometry.view.box
    part = Image.fromarray(box.of(IDS))
    resized = np.asarray(part.resize(view.full[::-1], Image.Resampling.NEAREST))
    expected = view.shown.of(resized)
    np.testing.assert_array_equal(Mask()(palette_png(IDS), geometry), expected[:, ::-1] if view.mirror else expected)


def scaled(data: st.DataObject, geometry: Geometry) -> tuple[int, int]:
    """Return height and width of the geometry's image at another resolution, rounded up or down."""
    times = data.draw(st.fractions(Fraction(1, 9), 4, max_denominator=40))
    sides = (geometry.height * times, geometry.width * times)
    height, width = (max(1, data.draw(st.sampled_from((math.floor(side), math.ceil(side))))) for side in sides)
    return height, width


@pytest.mark.slow
@given(st.data(), geometries(), st.sampled_from(["int64", "uint8", "float32"]))
def test_a_mask_of_any_size_has_no_value_that_its_file_does_not_have(
    data: st.DataObject, geometry: Geometry, dtype: str
) -> None:
    height, width = scaled(data, geometry)
    assume((height, width) != (geometry.width, geometry.height) or height == width)
    ids = np.random.default_rng(height).choice(np.array([3, 7, 200], np.uint8), (height, width))
    mask = Mask(ignore=255, dtype=dtype)(palette_png(ids), geometry)
    assert mask.shape == geometry.output_size
    assert mask.dtype == dtype
    assert set(np.unique(mask).tolist()) <= {*np.unique(ids).tolist(), 255}
    left, top, right, bottom = geometry.shown_area()
    rows, columns = np.arange(mask.shape[0]) + 0.5, np.arange(mask.shape[1]) + 0.5
    is_shown = ((rows > top) & (rows < bottom))[:, None] & ((columns > left) & (columns < right))
    np.testing.assert_array_equal(mask != 255, is_shown)


@given(geometries(), st.integers(2, 4))
def test_a_mask_at_a_multiple_of_its_size_shows_the_same_values(geometry: Geometry, factor: int) -> None:
    ids = np.random.default_rng(2).integers(0, 200, (geometry.height, geometry.width)).astype(np.uint8)
    large = ids.repeat(factor, axis=0).repeat(factor, axis=1)
    if large.shape[::-1] != (geometry.height, geometry.width):
        np.testing.assert_array_equal(Mask()(npy(large), geometry), Mask()(npy(ids), geometry))


def test_a_mask_shows_the_class_of_each_pixel_of_its_image() -> None:
    colors = np.random.default_rng(3).integers(0, 256, (21, 3)).astype(np.uint8)
    png = encode(Image.fromarray(colors[IDS]), "PNG")
    whole = RandomResizedCrop((60, 80), scale=(1.0, 1.0), ratio=(4 / 3, 4 / 3))
    for seed in range(4):
        geometry = whole.draw_geometry(60, 80, np.random.default_rng(seed))
        np.testing.assert_array_equal(whole(png, geometry=geometry), colors[Mask()(palette_png(IDS), geometry)])


def test_the_exif_orientation_of_a_mask_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(Image.fromarray(IDS), "PNG", exif=exif)
    np.testing.assert_array_equal(Mask()(data), np.rot90(IDS, -1))


@pytest.mark.parametrize(("height", "width"), [(375, 500), (374, 500), (188, 250), (94, 125), (750, 1000), (749, 1000)])
def test_a_mask_may_be_rounded_to_pixels(height: int, width: int) -> None:
    geometry = ResizeCenterCrop(40).draw_geometry(375, 500)
    assert Mask()(npy(np.zeros((height, width), np.uint8)), geometry).shape == (40, 40)


@pytest.mark.parametrize(("height", "width"), [(512, 512), (375, 504), (380, 500), (90, 125), (1500, 1500)])
def test_a_mask_of_another_shape_than_its_image_is_refused(height: int, width: int) -> None:
    geometry = ResizeCenterCrop(40).draw_geometry(375, 500)
    with pytest.raises(DecodeError, match=rf"the mask is {width}x{height}, but its image is 500x375, .*another ratio"):
        Mask()(npy(np.zeros((height, width), np.uint8)), geometry)


def test_a_mask_that_lies_on_its_side_is_refused() -> None:
    geometry = ResizeCenterCrop(40).draw_geometry(80, 60)
    with pytest.raises(DecodeError, match=r"the mask is 80x60, but its image is 60x80 .* exif_orientation=False"):
        Mask()(palette_png(IDS), geometry)


def jpeg() -> bytes:
    return encode(Image.fromarray(IDS), "JPEG")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (jpeg(), "a JPEG does not preserve values"),
        (encode(Image.fromarray(IDS).convert("RGB"), "PNG"), "the PNG has 3 channels of colour"),
        (encode(Image.fromarray(IDS).convert("RGBA"), "PNG"), "the PNG has 4 channels"),
        (encode(Image.fromarray(IDS).convert("LA"), "PNG"), "the PNG has 2 channels"),
        (encode(Image.fromarray(IDS).convert("RGB"), "BMP"), "the BMP has 3 channels"),
        (encode(Image.fromarray(IDS).convert("RGB"), "TIFF"), "the TIFF has 3 channels"),
        (encode(Image.fromarray(IDS).convert("RGB"), "PPM"), "the PPM has 3 channels"),
        (npy(np.zeros((2, 3, 3))), r"one value per pixel is \[H, W\]"),
        (npy(np.zeros((0, 3))), r"one value per pixel is \[H, W\]"),
        (npy(np.full((2, 2), 0.5)), "float64 values from 0.5 to 0.5, which do not fit into int64"),
        (npy(np.full((2, 2), np.nan)), "do not fit into int64"),
        (npy(np.full((2, 2), 1 << 63, np.uint64)), "do not fit into int64"),
        (b"", "not a file of values: 0 bytes"),
        (b"<html>", "not a file of values: starts with b'<html>'"),
    ],
)
def test_a_file_without_one_number_per_pixel_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        Mask()(data)


def test_a_value_that_the_dtype_cannot_hold_is_refused() -> None:
    data, values = FILES["png_gray_16"]
    with pytest.raises(DecodeError, match=r"uint16 values .* which do not fit into uint8. Pass a dtype to Mask"):
        Mask(dtype="uint8")(data)
    np.testing.assert_array_equal(Mask(dtype="int32")(data), values)


@pytest.mark.parametrize("dtype", ["O", "bool", "complex64", "no dtype", "U3"])
def test_a_dtype_without_numbers_is_refused(dtype: str) -> None:
    with pytest.raises(ArgumentError, match="dtype must be a NumPy dtype of numbers"):
        Mask(dtype=dtype)


@pytest.mark.parametrize("ignore", [-1, 256, 0.5, float("nan")])
def test_a_value_to_ignore_must_fit_the_dtype(ignore: float) -> None:
    with pytest.raises(ArgumentError, match="ignore must be a value of dtype uint8"):
        Mask(ignore=ignore, dtype="uint8")


def test_a_mask_warns_once_if_masks_are_decoded_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpload.images._masks", None)  # as if it had not been built
    _warn_of_slow_masks.cache_clear()
    Mask(dtype="float32")
    with pytest.warns(MploadWarning, match="libdeflate-dev") as caught:
        Mask()
    Mask()
    assert [warning.filename for warning in caught] == [__file__]
    _warn_of_slow_masks.cache_clear()


def test_masks_that_are_written_differently_are_equal() -> None:
    assert Mask(dtype=np.int64) == Mask(dtype="i8") == Mask()


def test_a_mask_keeps_to_its_limits() -> None:
    claims: list[int] = []
    with pytest.raises(DecodeError, match="80x60 = 4,800 pixels exceed max_pixels=4,799"):
        Mask(limits=Limits(max_pixels=4799))(palette_png(IDS), claim=claims.append)
    assert not claims
    Mask()(palette_png(IDS), claim=claims.append)
    assert claims == [13 * 4800]


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("tiff")])
def test_a_truncated_mask_is_never_taken_for_a_complete_one(name: str) -> None:
    data, _ = FILES[name]
    for length in {*range(0, len(data), 1 + len(data) // 40), len(data) - 1}:
        with pytest.raises(DecodeError):
            Mask(dtype="float64")(data[:length])


@example(name="tiff_L", changes={60: 0})
@example(name="tiff_int16", changes={34: 0})
@example(name="npy_f4", changes={255: 127})
@settings(max_examples=300)
@given(st.sampled_from(sorted(FILES)), st.dictionaries(st.integers(0, 400), st.integers(0, 255), max_size=4))
def test_a_damaged_mask_is_a_decode_error_or_still_has_one_number_per_pixel(name: str, changes: dict[int, int]) -> None:
    data = bytearray(FILES[name][0])
    for place, value in changes.items():
        data[place % len(data)] = value
    limits = Limits(max_pixels=1 << 20)
    try:
        mask = Mask(dtype="float64", limits=limits)(data)
    except DecodeError:
        return
    assert mask.ndim == 2
    assert mask.size <= 1 << 20


def test_what_lies_outside_the_image_has_the_value_to_ignore() -> None:
    view = View(box=Box(0, 0, 60, 80), full=(60, 80), window=Box(top=-2, left=-3, height=70, width=90))
    mask = Mask(ignore=-1)(palette_png(IDS), Geometry(height=60, width=80, view=view))
    np.testing.assert_array_equal(mask, np.pad(IDS.astype(np.int64), ((2, 8), (3, 7)), constant_values=-1))


@pytest.mark.slow
@given(geometry=geometries(), dtype=st.sampled_from(["uint8", "int64", "float32"]), seed=st.integers(0, 99))
def test_a_mask_written_to_an_array_is_the_one_that_is_returned(geometry: Geometry, dtype: str, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 21, (geometry.height, geometry.width), np.uint8)
    mask = Mask(dtype=dtype)
    expected = mask(palette_png(ids), geometry)
    rows, columns = geometry.nearest(*ids.shape)
    chosen = np.where((rows < 0)[:, None] | (columns < 0), 255, ids[rows[:, None], columns])
    out = np.zeros(geometry.output_size, dtype)
    assert mask(palette_png(ids), geometry, out=out) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(out, chosen)


def test_a_mask_is_not_written_to_an_array_of_another_size() -> None:
    geometry = ResizeCenterCrop(20).draw_geometry(*IDS.shape)
    with pytest.raises(ArgumentError, match=r"out must be 20 x 20, the size of the result, got \[1, 20\]"):
        Mask()(palette_png(IDS), geometry, out=np.empty((1, 20), np.int64))
