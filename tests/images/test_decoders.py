"""Decoders give Pillow's pixels, choose crops as torchvision does, and raise `DecodeError` for bad bytes."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps
from scipy import stats  # type: ignore[import-untyped]

from mpload.errors import ArgumentError, DecodeError, SampleError
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, RawBytes, ResizeCenterCrop, random_crop_box
from mpload.images.image import open_image
from mpload.images.jpeg import _rgb_from_cmyk
from mpload.images.jpeg_header import libjpeg_header, read_header
from mpload.images.limits import Limits
from mpload.images.resize import Box
from mpload.index.opening import open_index
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from tests.support.photos import encode, make_special_photos, photo

Photos = dict[str, Path]
Decoder = Callable[[bytes], NDArray[np.uint8]]

WHOLE = {  # files that must decode, and the largest difference from Pillow's pixels (other versions of the codec)
    "jpeg_420": 2, "jpeg_422": 2, "jpeg_444": 2, "grayscale": 2, "cmyk": 2, "progressive": 2, "jpeg_named": 2,
    **{f"exif_{orientation}": 2 for orientation in range(1, 9)},
    "png_rgb": 0, "png_rgba": 0, "png_palette": 0, "png_gray": 0, "png_16bit": 0,
    "webp": 2, "webp_lossless": 0, "bmp": 0, "tiff": 0, "gif": 0, "gif_animated": 0,
}  # fmt: skip
BROKEN = {
    "truncated": "JPEG is truncated",
    "truncated_png": "PNG is damaged or truncated",
    "empty": "not an image: 0 bytes",
    "text": "not an image: starts with b'<html>404 No'",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    return make_special_photos(tmp_path_factory.mktemp("photos"))


def pillow(data: bytes) -> NDArray[np.uint8]:
    with Image.open(BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def distance(a: NDArray[np.uint8], b: NDArray[Any]) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())


def test_every_special_photo_is_tested(photos: Photos) -> None:
    assert photos.keys() == WHOLE.keys() | BROKEN.keys()


@pytest.mark.parametrize("name", WHOLE)
def test_pixels_are_the_same_as_pillows(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    pixels = ImageDecoder()(data)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert distance(pixels, pillow(data)) <= WHOLE[name]


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("decoder", [ImageDecoder(), ResizeCenterCrop(32)])
def test_an_incomplete_image_is_an_error_that_says_why(photos: Photos, name: str, decoder: Decoder) -> None:
    with pytest.raises(DecodeError) as caught:
        decoder(photos[name].read_bytes())
    assert str(caught.value).startswith(BROKEN[name])


@pytest.mark.parametrize("part", [0.05, 0.5, 0.999])
@pytest.mark.parametrize("name", ["jpeg_420", "progressive", "cmyk", "grayscale", "webp", "bmp", "tiff", "gif"])
def test_a_truncated_image_is_never_accepted_as_a_complete_one(photos: Photos, name: str, part: float) -> None:
    data = photos[name].read_bytes()
    with pytest.raises(DecodeError):
        ImageDecoder()(data[: int(len(data) * part)])


@pytest.mark.parametrize("name", ["jpeg_420", "progressive", "cmyk"])
def test_a_jpeg_whose_data_ends_in_the_middle_is_damaged(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    half = len(data) // 2
    with pytest.raises(DecodeError, match=r"JPEG is damaged: .* premature end of data segment"):
        ImageDecoder()(data[:half] + b"\xff\xd3" + data[half + 2 :])


def test_cmyk_is_converted_as_pillow_converts_it() -> None:
    ink, black = np.mgrid[0:256, 0:256].astype(np.uint8)
    cmyk = np.stack([ink, ink, ink, black], axis=-1)
    expected = np.asarray(Image.fromarray(cmyk, "CMYK").convert("RGB"))
    np.testing.assert_array_equal(_rgb_from_cmyk(255 - cmyk), expected)


@pytest.mark.parametrize("name", ["exif_6", "exif_3"])
def test_exif_orientation_can_be_ignored(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    stored = ImageDecoder(exif_orientation=False)(data)
    np.testing.assert_array_equal(stored, ImageDecoder()(photos["exif_1"].read_bytes()))
    assert not np.array_equal(stored, ImageDecoder()(data))


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})])
def test_exif_orientation_is_honoured_in_other_formats(kind: str, options: dict[str, object]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(Image.fromarray(photo(40, 60, np.random.default_rng(0))), kind, exif=exif, **options)
    np.testing.assert_array_equal(ImageDecoder()(data), pillow(data))
    if kind != "TIFF":  # a TIFF's orientation is a tag of its own and always applied
        assert ImageDecoder(exif_orientation=False)(data).shape == (40, 60, 3)


@given(exif=st.binary(max_size=60))
def test_no_exif_data_breaks_a_jpeg(exif: bytes) -> None:
    for order in (b"", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08"):
        tiff = b"Exif\0\0" + order + exif
        segment = b"\xff\xe1" + (len(tiff) + 2).to_bytes(2, "big") + tiff
        image = open_image(b"\xff\xd8" + segment + TINY_JPEG[2:])
        assert {image.height, image.width} == {10, 16}


TINY_JPEG = encode(Image.fromarray(photo(10, 16, np.random.default_rng(1))), "JPEG")


LARGE_JPEG = encode(Image.fromarray(photo(260, 300, np.random.default_rng(1))), "JPEG")
PLACES = st.integers(2, LARGE_JPEG.index(b"\xff\xda") + 14)


@given(changes=st.dictionaries(PLACES, st.integers(0, 255) | st.sampled_from(b"\xff\xc0\xc2"), max_size=3))
def test_the_frame_header_gives_the_same_size_as_libjpeg(changes: dict[int, int]) -> None:
    data = bytearray(LARGE_JPEG)
    for place, value in changes.items():
        data[place] = value
    found = libjpeg_header(data)
    header = read_header(data)
    if header.frame and found is not None:
        assert header[:2] == found[:2]


def test_bytes_between_segments_are_ignored(photos: Photos) -> None:
    data = photos["jpeg_420"].read_bytes()
    start_of_frame = data.index(b"\xff\xc0")
    odd = data[:start_of_frame] + b"odd" + data[start_of_frame:]
    assert distance(ImageDecoder()(odd), pillow(odd)) <= 2


@pytest.mark.parametrize("sampling", [0x31, 0x14])
def test_a_subsampling_that_simplejpeg_cannot_name_is_decoded(photos: Photos, sampling: int) -> None:
    data = bytearray(photos["jpeg_444"].read_bytes())
    data[data.index(b"\xff\xc0") + 11] = sampling  # the first component's sampling; the others have 1x1
    assert distance(ImageDecoder()(bytes(data)), pillow(bytes(data))) <= 2


@pytest.mark.parametrize("name", ["jpeg_420", "png_rgb", "webp", "bmp", "tiff", "gif"])
def test_max_pixels_applies_to_the_size_in_the_header(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    assert ImageDecoder(max_pixels=60_000)(data).shape == (200, 300, 3)
    with pytest.raises(DecodeError, match="300x200 = 60,000 pixels exceed max_pixels=59,999"):
        ImageDecoder(max_pixels=59_999)(data)


def test_max_bytes_applies_to_the_size_of_the_file(photos: Photos) -> None:
    data = photos["jpeg_420"].read_bytes()
    assert ImageDecoder(limits=Limits(max_bytes=len(data)))(data).shape == (200, 300, 3)
    with pytest.raises(DecodeError, match=f"{len(data):,} bytes exceed max_bytes={len(data) - 1:,}"):
        ImageDecoder(limits=Limits(max_bytes=len(data) - 1))(data)


def test_a_file_that_is_too_large_is_not_even_read(photos: Photos, tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text(f"{photos['jpeg_420']}\t0\n")
    index = open_index(tmp_path / "all.txt", allow_outside_root=True)
    decode = ImageDecoder(limits=Limits(max_bytes=1000))
    pipeline = Pipeline(index=index, decode=decode, policy=ErrorPolicy())
    with pytest.raises(SampleError, match=r"jpeg_420\.jpg: is not read: its .* bytes exceed max_bytes=1,000"):
        pipeline.batch(np.array([0]), seed=0, epoch=0)


def test_max_pixels_is_short_for_the_same_field_of_limits(photos: Photos) -> None:
    assert RandomResizedCrop(9, max_pixels=5) == RandomResizedCrop(9, limits=Limits(max_pixels=5))
    assert ImageDecoder(max_pixels=5, limits=Limits(max_bytes=7)).limits == Limits(max_pixels=5, max_bytes=7)
    assert replace(ResizeCenterCrop(9, max_pixels=5), resize=20).limits.max_pixels == 5


@pytest.mark.parametrize("name", ["jpeg_420", "grayscale", "cmyk", "progressive", "exif_3"])
def test_a_truncated_jpeg_can_be_accepted(photos: Photos, name: str) -> None:
    data = photos[name].read_bytes()
    half, whole = data[: len(data) // 2], ImageDecoder()(data)
    take = Limits(allow_truncated=True)
    pixels = ImageDecoder(limits=take)(half)
    assert pixels.shape == whole.shape
    if name == "progressive":  # its first scans hold the whole image, blurred
        assert np.abs(pixels.astype(int) - whole).mean() < 12
    else:
        upright = (pixels[::-1], whole[::-1]) if name == "exif_3" else (pixels, whole)
        np.testing.assert_array_equal(upright[0][:48], upright[1][:48])
        if name != "cmyk":
            assert (upright[0][-20:] == 128).all()
    assert ResizeCenterCrop(32, limits=take)(half).shape == (32, 32, 3)
    assert RandomResizedCrop(32, limits=take)(half, np.random.default_rng(0)).shape == (32, 32, 3)
    np.testing.assert_array_equal(ImageDecoder(limits=take)(data), whole)


def test_allow_truncated_does_not_accept_damaged_files(photos: Photos) -> None:
    data = photos["jpeg_420"].read_bytes()
    half = len(data) // 2
    decode = ImageDecoder(limits=Limits(allow_truncated=True))
    for broken in (data[:half] + b"\xff\xd3" + data[half + 2 :], data[:100], photos["png_rgb"].read_bytes()[:-5000]):
        with pytest.raises(DecodeError):
            decode(broken)


def test_a_decompression_bomb_is_refused_before_it_is_decoded() -> None:
    bomb = bytearray(encode(Image.new("L", (8, 8)), "PNG"))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(DecodeError, match="60000x60000 = 3,600,000,000 pixels exceed"):
        ImageDecoder()(bytes(bomb))


def test_a_png_chunk_that_claims_gigabytes_is_refused(photos: Photos) -> None:
    data = bytearray(photos["png_rgb"].read_bytes())
    data[33:37] = b"\xff\xff\xff\xf0"
    with pytest.raises(DecodeError, match="a chunk ends at byte 4,294,967,325 of"):
        ImageDecoder()(bytes(data))


def test_bytes_after_the_end_are_ignored(photos: Photos) -> None:
    for name in ("jpeg_420", "png_rgb"):
        data = photos[name].read_bytes()
        np.testing.assert_array_equal(ImageDecoder()(data + b"appended by a tool"), ImageDecoder()(data))


# Crops


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
    measures: dict[str, Callable[[NDArray[np.int64]], NDArray[Any]]] = {
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


def test_raw_bytes_are_unchanged() -> None:
    data = b"any \0 bytes"
    assert RawBytes()(data) == data
    array = RawBytes(as_array=True)(data)
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.uint8
    assert array.tolist() == list(data)


def test_decoders_with_a_fixed_output_declare_its_shape() -> None:
    assert RandomResizedCrop(224).output_shape == (224, 224, 3)
    assert ResizeCenterCrop((96, 128)).output_shape == (96, 128, 3)
    assert not hasattr(ImageDecoder(), "output_shape")
    assert not hasattr(RawBytes(), "output_shape")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RandomResizedCrop(0), "size must be a positive number of pixels, or .height, width., got 0"),
        (lambda: RandomResizedCrop((2, -1)), "size must be"),
        (lambda: RandomResizedCrop([2, 2]), "size must be"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(2, scale=(0.5, 0.1)), "scale must be two positive numbers, the smaller first"),
        (lambda: RandomResizedCrop(2, scale=(0.5, 1.5)), "must not exceed 1"),
        (lambda: RandomResizedCrop(2, ratio=(0.0, 1.0)), "ratio must be"),
        (lambda: RandomResizedCrop(2, ratio=(1.0, math.inf)), "ratio must be"),
        (lambda: RandomResizedCrop(2, flip=1.5), r"flip must be in \[0, 1\], got 1.5"),
        (lambda: ResizeCenterCrop((2, 100), resize=99), "resize must be at least as long as the crop"),
        (lambda: Limits(max_bytes=0), "max_bytes must be positive, got 0"),
        (lambda: ImageDecoder(max_pixels=0), "max_pixels must be positive, got 0"),
    ],
)
def test_invalid_arguments_of_decoders_are_refused(build: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()  # type: ignore[operator]
