"""TIFF files are decoded rightly or refused: truncated ones, turned ones, and those with lengths that are wrong."""

import struct
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mpload.errors import DecodeError
from mpload.images.decoders import ImageDecoder, ResizeCenterCrop
from mpload.images.mask import Mask
from mpload.images.tiff import tiff_tags, with_number
from tests.support.photos import encode, photo

PHOTO = photo(49, 67, np.random.default_rng(0))
PLANES = np.ascontiguousarray(PHOTO.transpose(2, 0, 1))
IDS = np.random.default_rng(1).integers(0, 21, (49, 67)).astype(np.uint8)
_PLACES, _LENGTHS, _TILE_LENGTHS = 273, 279, 325  # tags with a number for each strip or tile


def tiff(values: Any, **options: Any) -> bytes:
    file = BytesIO()
    tifffile.imwrite(file, values, **options)
    return file.getvalue()


def planar(**options: Any) -> bytes:
    return tiff(PLANES, photometric="rgb", planarconfig="separate", **options)


def palette(compression: str | None = None) -> bytes:
    """Return a file whose palette, and list of strips, lie behind its pixels if they are compressed."""
    image = Image.fromarray(IDS, "P")
    image.putpalette(np.random.default_rng(2).integers(0, 256, 768).astype(np.uint8).tobytes())
    return encode(image, "TIFF", **({"compression": compression} if compression else {}))


FILES = {
    "one strip": tiff(PHOTO, photometric="rgb"),
    "strips": tiff(PHOTO, photometric="rgb", rowsperstrip=8),
    "strips, zlib": tiff(PHOTO, photometric="rgb", rowsperstrip=8, compression="zlib"),
    "tiles": tiff(PHOTO, photometric="rgb", tile=(32, 32)),
    "planes": planar(),
    "planes, big endian": planar(byteorder=">", rowsperstrip=8),
    "planes, zlib": planar(compression="zlib"),
    "planes, strips, zlib": planar(compression="zlib", rowsperstrip=8),
    "planes, tiles": planar(tile=(32, 32)),
    "planes, tiles, zlib": planar(tile=(32, 32), compression="zlib"),
    "palette": palette(),
    "palette, lzw": palette("tiff_lzw"),
    "palette, deflate": palette("tiff_adobe_deflate"),
    "first of two pages": tiff(np.stack([PHOTO, PHOTO[::-1]]), photometric="rgb"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_whole_file_is_decoded(name: str) -> None:
    expected = np.asarray(Image.open(BytesIO(FILES[name])).convert("RGB"))
    for data in (FILES[name], bytearray(FILES[name]), memoryview(FILES[name])):
        np.testing.assert_array_equal(ImageDecoder()(data), expected)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_an_error_unless_nothing_of_the_image_is_missing(name: str) -> None:
    data = FILES[name]
    expected, num_refused = ImageDecoder()(data), 0
    for length in range(4, len(data), max(1, len(data) // 50)):
        try:
            pixels = ImageDecoder()(data[:length])
        except DecodeError:
            num_refused += 1
        else:
            np.testing.assert_array_equal(pixels, expected)
    assert num_refused > 20


@pytest.mark.parametrize("name", ["palette, lzw", "palette, deflate"])
def test_a_truncated_mask_is_an_error(name: str) -> None:
    data = FILES[name]
    np.testing.assert_array_equal(Mask()(data), IDS)
    for length in range(4, len(data) - 4, max(1, len(data) // 50)):
        with suppress(DecodeError):
            assert np.array_equal(Mask()(data[:length]), IDS)
    with pytest.raises(DecodeError, match=r"TIFF is damaged or truncated: .* ends at byte"):
        Mask()(data[: -len(data) // 9])


def test_the_second_page_may_be_missing() -> None:
    data = FILES["first of two pages"]
    np.testing.assert_array_equal(ImageDecoder()(data[: -PHOTO.size // 2]), PHOTO)


def with_lengths(data: bytes, tag: int, change: int) -> bytes:
    """Return a file in which each strip or tile is said to be longer or shorter than it is."""
    found, changed = tiff_tags(data)[tag], bytearray(data)
    kind = f"{'<' if found.order == 'little' else '>'}{'H' if found.end - found.start == 2 else 'I'}"
    for at in range(found.start, found.values_end, found.end - found.start):
        struct.pack_into(kind, changed, at, max(0, struct.unpack_from(kind, data, at)[0] + change))
    return bytes(changed)


def without(data: bytes, tag: int) -> bytes:
    """Return a file in which a tag has a number that no reader knows."""
    order: Any = tiff_tags(data)[tag].order
    first = int.from_bytes(data[4:8], order)
    entry = next(at for at in range(first + 2, len(data), 12) if int.from_bytes(data[at : at + 2], order) == tag)
    return data[:entry] + (65_000).to_bytes(2, order) + data[entry + 2 :]


@pytest.mark.parametrize("name", ["one strip", "planes"])
def test_lengths_of_uncompressed_strips_may_be_missing(name: str) -> None:
    np.testing.assert_array_equal(ImageDecoder()(without(FILES[name], _LENGTHS)), PHOTO)


@pytest.mark.parametrize("name", ["one strip", "planes"])
def test_lengths_of_uncompressed_strips_may_be_too_large(name: str) -> None:
    np.testing.assert_array_equal(ImageDecoder()(with_lengths(FILES[name], _LENGTHS, 1)), PHOTO)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("planes") and name.endswith("zlib")])
def test_planes_that_are_compressed_must_have_lengths(name: str) -> None:
    tag = _TILE_LENGTHS if "tiles" in name else _LENGTHS
    for data in (without(FILES[name], tag), with_lengths(FILES[name], tag, -100_000)):
        with pytest.raises(DecodeError, match=r"TIFF is damaged: it does not say how long a (strip|tile) is"):
            ImageDecoder()(data)
    with pytest.raises(DecodeError, match=r"TIFF is damaged or truncated: a (strip|tile) ends at byte"):
        ImageDecoder()(with_lengths(FILES[name], tag, 9_000))


def test_a_file_must_have_all_its_strips() -> None:
    data = FILES["planes, big endian"]
    with pytest.raises(DecodeError, match="TIFF is damaged: it has 21 of 147 strips"):
        ImageDecoder()(with_number(data, tiff_tags(data)[278], 1))  # rows per strip


@given(st.sampled_from(sorted(FILES)), st.dictionaries(st.integers(0, 20), st.tuples(*[st.integers(0, 255)] * 3)))
def test_a_damaged_tag_gives_an_image_or_a_decode_error(name: str, changes: dict[int, tuple[int, int, int]]) -> None:
    data = bytearray(FILES[name])
    entry = int.from_bytes(data[4:8], "big" if data[:2] == b"MM" else "little") + 2
    for number, (at, byte, other) in changes.items():
        place = entry + 12 * number + at % 12
        data[place : place + 1 + at % 2] = bytes([byte, other])[: 1 + at % 2]
    for decoder in (ImageDecoder(exif_orientation=False), Mask(dtype="float64")):
        with suppress(DecodeError):
            decoder(data)


@pytest.mark.parametrize("kind", ["H", "I"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_tiff_can_be_ignored(orientation: int, kind: str) -> None:
    tag = (274, kind, 1, orientation, True)
    for values in (PHOTO, IDS):
        data = tiff(values, extratags=[tag], **({"photometric": "rgb"} if values is PHOTO else {}))
        image = Image.fromarray(values)
        image.getexif()[0x0112] = orientation
        upright = ImageOps.exif_transpose(image)
        np.testing.assert_array_equal(ImageDecoder()(data), np.asarray(upright.convert("RGB")))
        np.testing.assert_array_equal(
            ImageDecoder(exif_orientation=False)(data), np.asarray(Image.fromarray(values).convert("RGB"))
        )
    np.testing.assert_array_equal(Mask()(data), np.asarray(upright))


@pytest.mark.parametrize("tile", [(16, 16), (32, 64), (128, 128)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_with_tiles_is_turned_upright(orientation: int, tile: tuple[int, int]) -> None:
    for height, width in ((49, 67), (48, 64)):  # the latter are whole tiles of 16
        ids = IDS[:height, :width]
        for values in (PHOTO[:height, :width], ids, ids > 9):
            image = Image.fromarray(values)
            image.getexif()[0x0112] = orientation
            upright = ImageOps.exif_transpose(image)
            data = tiff(
                values,
                photometric="rgb" if values.ndim == 3 else "minisblack",
                extratags=[(274, "H", 1, orientation, True)],
                tile=tile,
                compression="zlib",
            )
            np.testing.assert_array_equal(ImageDecoder()(data), np.asarray(upright.convert("RGB")))
            if values.ndim == 2:
                np.testing.assert_array_equal(Mask()(data), np.asarray(upright))
                crop = ResizeCenterCrop(20, resize=30).draw_geometry(*np.asarray(upright).shape)
                expected = Mask()(encode(Image.fromarray(np.asarray(upright).astype(np.uint8)), "PNG"), crop)
                np.testing.assert_array_equal(Mask()(data, crop), expected)


@pytest.mark.parametrize("orientation", [0, 9, 65_535])
def test_an_orientation_that_does_not_exist_is_ignored(orientation: int) -> None:
    data = tiff(PHOTO, photometric="rgb", extratags=[(274, "H", 1, orientation, True)])
    np.testing.assert_array_equal(ImageDecoder()(data), PHOTO)


@pytest.mark.parametrize("shape", [(49, 67, 3), (49, 67)])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_signed_numbers_are_no_colours(dtype: str, shape: tuple[int, ...]) -> None:
    data = tiff(np.ones(shape, dtype), photometric="rgb" if len(shape) == 3 else "minisblack")
    with pytest.raises(DecodeError, match="the TIFF holds signed numbers"):
        ImageDecoder()(data)
