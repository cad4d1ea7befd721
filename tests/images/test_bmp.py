"""BMP files whose header says which bits hold which colour are decoded rightly, or refused."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import DecodeError
from mpload.images.decoders import ImageDecoder
from mpload.images.limits import Limits
from tests.support.photos import photo

PHOTO = photo(23, 31, np.random.default_rng(0))
ORDERS = {"BGRX": (2, 1, 0, 3), "RGBX": (0, 1, 2, 3), "XBGR": (3, 2, 1, 0), "XRGB": (3, 0, 1, 2)}


def bmp(
    order: Sequence[int], *, header_bytes: int = 40, compression: int = 3, masks: Sequence[int] = (), up: bool = True
) -> bytes:
    """Return a BMP with 32 bits per pixel, in which each pixel's channels have an order; channel 3 is not shown."""
    height, width, _ = PHOTO.shape
    masks = masks or [0xFF << 8 * order.index(channel) for channel in range(3)]
    rows = np.dstack([PHOTO, np.full((height, width), 77, np.uint8)])[:: -1 if up else 1, :, list(order)].tobytes()
    sizes = header_bytes, width, height if up else -height, 1, 32, compression, len(rows), 2835, 2835, 0, 0
    header = struct.pack("<IiiHHIIiiII", *sizes)
    header += struct.pack("<IIII", *masks, 0) + b"BGRs".ljust(max(0, header_bytes - 56), b"\0")[: header_bytes - 56]
    first_pixel = 14 + len(header)
    return b"BM" + struct.pack("<IHHI", first_pixel + len(rows), 0, 0, first_pixel) + header + rows


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("header_bytes", [40, 56, 108, 124])
@pytest.mark.parametrize("order", ORDERS)
def test_masks_say_where_the_colours_are(order: str, header_bytes: int, up: bool) -> None:
    data = bmp(ORDERS[order], header_bytes=header_bytes, compression=6 if order == "XRGB" else 3, up=up)
    for kind in (bytes, bytearray, memoryview):
        pixels = ImageDecoder()(kind(data))
        np.testing.assert_array_equal(pixels, PHOTO)
        assert pixels.flags.writeable


@pytest.mark.parametrize(
    "masks", [(0x3FF00000, 0xFFC00, 0x3FF), (0xFF, 0xFF, 0xFF00), (0, 0, 0xFF), (0xFF, 0xFF00, 0xFF8)]
)
def test_colours_that_are_not_in_bytes_of_their_own_are_refused(masks: tuple[int, ...]) -> None:
    with pytest.raises(DecodeError, match=rf"the bits {masks[0]:#010x}, .*each must have a byte of its own"):
        ImageDecoder()(bmp((0, 1, 2, 3), masks=masks))


@pytest.mark.parametrize("header_bytes", [40, 108])
def test_masks_of_0_are_none(header_bytes: int) -> None:
    data = bmp(ORDERS["BGRX"], header_bytes=header_bytes, masks=(0, 0, 0))
    np.testing.assert_array_equal(ImageDecoder()(data), PHOTO)


def test_colours_of_10_bits_are_read_where_the_header_has_them() -> None:
    words = np.bitwise_or.reduce(PHOTO.astype(np.uint32) << np.array([2, 12, 22], np.uint32), axis=2)
    data = bmp(ORDERS["BGRX"], header_bytes=108, masks=(0x3FF, 0xFFC00, 0x3FF00000), up=False)
    data = data[: -words.nbytes] + words.astype("<u4").tobytes()
    assert np.abs(ImageDecoder()(data).astype(int) - PHOTO).max() <= 1


def test_a_truncated_file_is_an_error() -> None:
    data = bmp((0, 1, 2, 3))
    for length in range(2, len(data), 10):
        with pytest.raises(DecodeError):
            ImageDecoder()(data[:length])
    with pytest.raises(DecodeError, match=r"BMP is damaged or truncated: its pixels end at byte 2,922 of 2,921"):
        ImageDecoder()(data[:-1])


@given(st.dictionaries(st.integers(2, 69), st.integers(0, 255), max_size=4))
def test_a_damaged_header_gives_an_image_or_a_decode_error(changes: dict[int, int]) -> None:
    data = bytearray(bmp((0, 1, 2, 3)))
    for place, byte in changes.items():
        data[place] = byte
    try:
        pixels = ImageDecoder(limits=Limits(max_pixels=1 << 20))(data)
    except DecodeError:
        return
    assert pixels.shape[2] == 3
