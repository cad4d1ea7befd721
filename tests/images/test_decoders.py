"""Decoders give Pillow's pixels, keep to their limits, and raise `DecodeError` for bad bytes."""

import math
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mpload.errors import ArgumentError, DecodeError, SampleError
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, RawBytes, ResizeCenterCrop
from mpload.images.image import open_image
from mpload.images.jpeg import _rgb_from_cmyk
from mpload.images.jpeg_header import libjpeg_header, read_header
from mpload.images.letterbox import Letterbox
from mpload.images.limits import Limits
from mpload.images.patches import RandomCrop
from mpload.index.opening import open_index
from mpload.samples.column_batches import batch_of_columns
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from tests.support.photos import Photos, distance, encode, photo

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


def pillow(data: bytes) -> NDArray[np.uint8]:
    with Image.open(BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


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
    assert ImageDecoder(exif_orientation=False)(data).shape == (40, 60, 3)


@pytest.mark.parametrize("order", ["little", "big"])
def test_an_orientation_with_32_bits_is_honoured(order: Literal["little", "big"]) -> None:
    entry = [(0x0112, 2), (4, 2), (1, 4), (6, 4)]
    tiff = b"".join(
        number.to_bytes(num_bytes, order) for number, num_bytes in [(42, 2), (8, 4), (1, 2), *entry, (0, 4)]
    )
    exif = b"Exif\0\0" + (b"II" if order == "little" else b"MM") + tiff
    jpeg = encode(Image.fromarray(photo(40, 60, np.random.default_rng(0))), "JPEG", exif=exif)
    assert pillow(jpeg).shape == (60, 40, 3)
    assert distance(ImageDecoder()(jpeg), pillow(jpeg)) <= 2


@pytest.mark.parametrize("stray", [b"\0", b"stray", bytes(100_000)])
def test_an_orientation_behind_stray_bytes_is_honoured(stray: bytes) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg = encode(Image.fromarray(photo(40, 60, np.random.default_rng(0))), "JPEG", exif=exif)
    damaged = jpeg[:2] + jpeg[2:].replace(b"\xff\xe1", stray + b"\xff\xe1", 1)
    assert distance(ImageDecoder()(damaged), ImageDecoder()(jpeg)) <= 2


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
        batch_of_columns(pipeline, np.array([0]), seed=0, epoch=0)


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
        (lambda: RandomResizedCrop([2, 2, 2]), "size must be"),  # type: ignore[arg-type]
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


@pytest.mark.parametrize("kind", [RandomResizedCrop, ResizeCenterCrop, Letterbox, RandomCrop])
def test_sizes_from_yaml_json_or_numpy_make_the_same_decoder(kind: Any) -> None:
    assert kind([16, np.int64(24)]) == kind((16, 24))
    assert repr(kind([16, np.int64(24)])) == repr(kind((16, 24)))
    assert repr(kind(np.int32(16))) == repr(kind(16))
    for wrong in ([16], [16, 0], "16", [1, 2, 3], 1.5, ["a", "b"]):
        with pytest.raises(ArgumentError, match="size must be a positive number of pixels"):
            kind(wrong)
