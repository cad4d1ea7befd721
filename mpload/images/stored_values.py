"""Reads the numbers that an image file stores for its pixels: class ids or depths, not colours.

OpenCV decodes most files. It would turn the numbers of a palette into colours and stretch those of 1 to 4 bits to 8, so
that a copy of the file is decoded in which the numbers themselves are shades of gray.
"""

import struct
from typing import Any
from zlib import crc32, decompressobj
from zlib import error as zlib_error

import numpy as np
from numpy.typing import NDArray

from mpload.errors import DecodeError
from mpload.images.claims import PEAK_PIXEL_BYTES, Claim
from mpload.images.decoders import NumpyDecoder
from mpload.images.jpeg import oriented
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.opencv import cv2
from mpload.images.pnm import pgm_values, pnm_format
from mpload.images.tiff import as_stored, check_whole, first_number, tiff_size, tiff_tags, with_number

__all__ = ["stored_values"]

_PNG, _NPY = b"\x89PNG\r\n\x1a\n", b"\x93NUMPY"
_IHDR = struct.Struct(">IIBBBBB")
_GRAY, _PALETTE = 0, 3  # colour types of PNG
_BITS, _PHOTOMETRIC = 258, 262  # tags of TIFF
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _COLOR_MAP = 0, 1, 3  # values of `_PHOTOMETRIC`


def stored_values(data: ImageBytes, *, limits: Limits, claim: Claim) -> NDArray[Any]:
    """Return the numbers that a PNG, BMP, TIFF, PGM or `.npy` file with one channel stores, [height, width].

    A palette is ignored. Numbers are never stretched: 1 bit gives 0 and 1. EXIF orientation is applied.

    Args:
        data: The bytes of the file.
        limits: Which files are refused.
        claim: Called with a number of bytes before that much memory is allocated.

    Raises:
        DecodeError: The file is damaged, of another format, has several channels, or exceeds `limits`.
    """
    limits.check_bytes(len(data))
    start = bytes(data[:8])
    if start == _PNG:
        return _png_values(data, limits, claim)
    if start.startswith(b"BM"):
        return _bmp_values(data, limits, claim)
    if start.startswith((b"II*\0", b"MM\0*")):
        return _tiff_values(data, limits, claim)
    if start.startswith(_NPY):
        values = NumpyDecoder(max_bytes=limits.max_bytes)(data)
        if values.dtype.kind == "c":
            raise DecodeError(f"the .npy file holds {values.dtype}; a mask holds real numbers")
        if values.ndim != 2 or not values.size:
            raise DecodeError(f"the .npy file holds an array {list(values.shape)}; one value per pixel is [H, W]")
        limits.check_size(".npy", values.shape[0], values.shape[1], len(data))
        return values
    if kind := pnm_format(start):
        if kind == "PPM":
            raise _several_channels(kind, 3)
        return pgm_values(data, limits=limits, claim=claim)
    if start.startswith(b"\xff\xd8\xff"):
        raise DecodeError("a JPEG does not preserve values: its compression changes them. Store PNG files")
    found = f"starts with {start!r}" if start else "0 bytes"
    raise DecodeError(f"not a file of values: {found}. PNG, BMP, TIFF, PGM and .npy are read")


def _png_values(data: ImageBytes, limits: Limits, claim: Claim) -> NDArray[Any]:
    header, place = bytes(data[12:33]), 8
    if len(header) < 21 or header[:4] != b"IHDR" or crc32(header[:17]) != int.from_bytes(header[17:], "big"):
        raise DecodeError("PNG header is damaged or truncated")
    width, height, bits, color, *rest = _IHDR.unpack(header[4:17])
    limits.check_size("PNG", height, width, len(data))
    if color not in {_GRAY, _PALETTE}:
        raise _several_channels("PNG", 4 if color == 6 else 3 if color == 2 else 2)
    gray = b"IHDR" + _IHDR.pack(width, height, bits, _GRAY, *rest)
    parts: list[ImageBytes] = [_PNG, b"\0\0\0\x0d", gray, crc32(gray).to_bytes(4, "big")]
    view, pixels, is_turned = memoryview(data), [], False
    kind = b""
    while kind != b"IEND":
        end = place + 12 + int.from_bytes(view[place : place + 4], "big")
        kind = bytes(view[place + 4 : place + 8])
        if end > len(data) or not kind:
            raise DecodeError(f"PNG is damaged or truncated: a chunk ends at byte {end:,} of {len(data):,}")
        if kind in {b"IDAT", b"IEND", b"eXIf"}:
            parts.append(view[place:end])
        if kind == b"IDAT":
            pixels.append(view[place + 8 : end - 4])
        is_turned |= kind == b"eXIf"
        place = end
    claim(PEAK_PIXEL_BYTES * height * width)
    if bits == 8 and rest == [0, 0, 0] and not is_turned:
        plain = _plain_values(b"".join(pixels), height, width)
        if plain is not None:
            return plain
    values = _decoded("PNG", b"".join(parts), cv2.IMREAD_ANYDEPTH)
    return values if bits >= 8 else values // (255 // ((1 << bits) - 1))


def _plain_values(pixels: bytes, height: int, width: int) -> NDArray[np.uint8] | None:
    """Return the 8-bit values of a PNG whose rows are stored as they are, which most programs do with palettes.

    That takes half as long as OpenCV. None if the rows are stored in another way, or are damaged.
    """
    num_bytes = height * (width + 1)
    inflate = decompressobj()
    try:
        rows = np.frombuffer(inflate.decompress(pixels, num_bytes + 1), np.uint8)
    except zlib_error:
        return None
    if len(rows) != num_bytes or not inflate.eof or rows[:: width + 1].any():  # the first byte is the row's filter
        return None
    return rows.reshape(height, width + 1)[:, 1:]


def _bmp_values(data: ImageBytes, limits: Limits, claim: Claim) -> NDArray[Any]:
    header_bytes = int.from_bytes(data[14:18], "little")
    if header_bytes < 40 or len(data) < 54:
        raise DecodeError("BMP header is damaged, truncated, or of a version that is not read")
    width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
    limits.check_size("BMP", abs(height), width, len(data))
    if bits > 8:
        raise _several_channels("BMP", bits // 8)
    # A complete palette, since OpenCV would turn values beyond the file's palette into 0.
    palette = bytes(value for color in range(1 << bits) for value in (color, color, color, 0))
    copy = bytearray(data[: 14 + header_bytes])
    first_pixel = int.from_bytes(data[10:14], "little")
    if not len(copy) <= first_pixel <= len(data):
        raise DecodeError(f"BMP is damaged or truncated: its pixels begin at byte {first_pixel:,} of {len(data):,}")
    copy[10:14] = (len(copy) + len(palette)).to_bytes(4, "little")
    copy[46:50] = bytes(4)  # the palette has as many colours as there are values
    claim(PEAK_PIXEL_BYTES * abs(height) * width)
    return _decoded("BMP", b"".join([copy, palette, memoryview(data)[first_pixel:]]), cv2.IMREAD_GRAYSCALE)


def _tiff_values(data: ImageBytes, limits: Limits, claim: Claim) -> NDArray[Any]:
    tags = tiff_tags(data)
    (width, height), bits = tiff_size(tags), first_number(tags, _BITS, 1)
    limits.check_size("TIFF", height, width, len(data))
    check_whole(data, tags)
    if first_number(tags, _PHOTOMETRIC, _BLACK_IS_ZERO) in {_COLOR_MAP, _WHITE_IS_ZERO}:
        data = with_number(data, tags[_PHOTOMETRIC], _BLACK_IS_ZERO)
    data, orientation = as_stored(data, tags)
    claim(PEAK_PIXEL_BYTES * height * width)
    values = oriented(_decoded("TIFF", data, cv2.IMREAD_UNCHANGED), orientation)
    limits.check_size("TIFF", values.shape[0], values.shape[1], len(data))
    if bits in {2, 4}:
        raise DecodeError(f"a TIFF with {bits} bits per value is not read. Store 8 or 16 bits, or PNG files")
    if bits > 1:
        return values
    if values.dtype != np.uint8:
        raise DecodeError(f"TIFF is damaged: its values are said to have 1 bit, but are {values.dtype}")
    return values // 255


def _decoded(kind: str, data: ImageBytes, flags: int) -> NDArray[Any]:
    try:
        values: NDArray[Any] | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        values = None
    if values is None:
        raise DecodeError(f"{kind} is damaged, truncated, or of a kind that OpenCV {cv2.__version__} cannot decode")
    if values.ndim != 2:
        raise _several_channels(kind, values.shape[2])
    return values


def _several_channels(kind: str, num_channels: int) -> DecodeError:
    return DecodeError(
        f"the {kind} has {num_channels} channels of colour; one value per pixel is needed. Convert colours to ids, or "
        "pass a callable of your own"
    )
