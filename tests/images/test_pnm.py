"""PGM and PPM files have Pillow's pixels; a file that is damaged, truncated or a bomb is an error."""

import time
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from mpload import ImageDecoder, PilTransform
from mpload.errors import DecodeError
from mpload.images.image import image_format, open_image
from mpload.images.limits import Limits
from mpload.images.pnm import read_pnm_header
from mpload.tools.pack.options import PackOptions, stored_as
from tests.support.photos import encode, photo

SPACES = st.text(" \t\n\v\f\r", min_size=1, max_size=3).map(str.encode)
COMMENTS = st.binary(max_size=8).map(lambda text: b"#" + text.translate(None, b"\r\n") + b"\n")
GAPS = st.tuples(SPACES, st.lists(SPACES | COMMENTS, max_size=4)).map(lambda gap: gap[0] + b"".join(gap[1]))
MAXIMA = st.sampled_from([1, 2, 34, 100, 254, 255, 256, 1023, 65_534, 65_535]) | st.integers(1, 65_535)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, NDArray[Any], int]:
    """Draw a file, its values, [H, W, 1 or 3], and the maximum value."""
    maximum = draw(MAXIMA)
    dtype = ">u1" if maximum < 256 else ">u2"
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 3])))
    values: NDArray[Any] = draw(arrays.arrays(dtype, shape))  # some exceed the maximum
    header = b"P5" if shape[2] == 1 else b"P6"
    for number in (shape[1], shape[0], maximum):
        header += draw(GAPS) + str(number).zfill(draw(st.integers(1, 6))).encode()
    return header + draw(st.sampled_from([b" ", b"\n", b"\t"])) + values.tobytes(), values, maximum


@given(files(), st.binary(max_size=3))
def test_any_legal_header_gives_the_values_scaled_as_in_pillow(
    file: tuple[bytes, NDArray[Any], int], more: bytes
) -> None:
    data, values, maximum = file
    pixels = ImageDecoder()(data + more)
    expected = [min(255, round(value / maximum * 255)) for value in values.ravel().tolist()]
    np.testing.assert_array_equal(pixels, np.broadcast_to(np.reshape(expected, values.shape), pixels.shape))
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    with Image.open(BytesIO(data)) as image:
        if image.mode != "I":  # gray with 16 bits, which `convert` would clip at 255
            np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))


@given(files(), st.data())
def test_a_truncated_file_is_an_error_wherever_it_ends(
    file: tuple[bytes, NDArray[Any], int], data: st.DataObject
) -> None:
    whole = file[0]
    with pytest.raises(DecodeError, match=r"truncated|not an image"):
        open_image(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.sampled_from([b"P5", b"P6"]), st.lists(st.sampled_from(b" \n\r#0123456789-P\0\xff"), max_size=40).map(bytes))
@example(b"P6", b"\n2 1\n255")
def test_a_header_of_nonsense_is_an_error_or_that_of_pillow(magic: bytes, text: bytes) -> None:
    data = magic + text + bytes(200)
    try:
        header = read_pnm_header(data)
    except DecodeError:
        return
    if not header.width or not header.height:
        with pytest.raises(DecodeError, match="gives no size"):
            open_image(data)
        return
    with Image.open(BytesIO(data)) as image:
        assert image.size == (header.width, header.height)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"P6\n0 5\n255\n", "PPM header is damaged or truncated: it gives no size"),
        (b"P5\n5 0\n255\n", "PGM header is damaged or truncated: it gives no size"),
        (b"P6\n-2 1\n255\n", "three numbers, width, height and the maximum value"),
        (b"P6\n2 1\n0\n", r"the maximum value must be in \[1, 65535\], got 0"),
        (b"P6\n2 1\n65536\n", r"the maximum value must be in \[1, 65535\], got 65536"),
        (b"P6\n2 1\n255#\n", "three numbers"),  # readers disagree about where the pixels begin
        (b"P6\n2#\n1 255\n", "three numbers"),  # or whether the width is 2 or 21
        (b"P6\n2 1\n#", "three numbers"),
        (b"P6#\n2 1 255\n", "not an image"),
        (b"P62 1 255\n", "not an image"),
        (b"P6\n12345678901 1\n255\n", "three numbers"),
        (b"P6\n99999 99999\n255\n", "99999x99999 = 9,999,800,001 pixels exceed max_pixels"),
        (b"P6\n13000 13000\n255\n", "max_pixels_per_byte"),
        (b"P6\n4000 4000\n255\n", r"PPM is truncated: its pixels end at byte 48,000,017 of 1,017"),
        (b"P6" + b" " * 70_000 + b"2 1 255\n", "three numbers"),
        (b"P3\n2 1\n255\n", r"not an image: .* PGM \(P5\) and PPM \(P6\) are decoded"),
    ],
)
def test_a_bad_header_is_refused_before_memory_is_claimed(header: bytes, message: str) -> None:
    claims: list[int] = []
    with pytest.raises(DecodeError, match=message):
        open_image(header + bytes(1000), claim=claims.append)
    assert not claims


@pytest.mark.parametrize("filling", [b" ", b"#\n", b"#"])
def test_padding_in_the_header_takes_no_time(filling: bytes) -> None:
    data = b"P6 " + filling * ((50 << 20) // len(filling))
    started = time.process_time()
    with pytest.raises(DecodeError, match="three numbers"):
        open_image(data)
    assert time.process_time() - started < 0.5


def test_limits_apply() -> None:
    data = b"P5 9 1 255 " + bytes(9)
    assert open_image(data, limits=Limits(max_pixels=9)).pixels().shape == (1, 9, 3)
    with pytest.raises(DecodeError, match="9x1 = 9 pixels exceed max_pixels=8"):
        open_image(data, limits=Limits(max_pixels=8))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_pixels_are_a_copy_of_any_type_of_buffer(kind: Any) -> None:
    pixels = photo(300, 400, np.random.default_rng(0))  # of more values than are scaled at a time
    stored = bytearray(encode(Image.fromarray(pixels), "PPM"))
    made = ImageDecoder()(kind(stored))
    deep = ImageDecoder()(kind(b"P6 400 300 65535 " + (pixels.astype(">u2") * 257).astype(">u2").tobytes()))
    stored[:] = bytes(len(stored))
    np.testing.assert_array_equal(made, pixels)
    np.testing.assert_array_equal(deep, pixels)
    np.testing.assert_array_equal(PilTransform(lambda image: image)(encode(Image.fromarray(pixels), "PPM")), pixels)


def test_formats_are_named_and_texts_are_no_images() -> None:
    assert [image_format(data) for data in (b"P5\n1 1 255 a", b"P6 1 1 255 abc")] == ["PGM", "PPM"]
    assert stored_as(b"P5\n1 1 255 a", PackOptions())[0] == "pgm"  # which `mpload index` takes for an image
    assert stored_as(b"P6\n1 1 255 abc", PackOptions())[0] == "ppm"
    assert [image_format(data) for data in (b"P5", b"P4\n1 1 a", b"P6a", b"P60 1 1 255")] == [""] * 4
