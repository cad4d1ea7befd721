"""Decodes BMP files with 32 bits per pixel whose header says which of them hold which colour.

OpenCV ignores that in headers of version 3, which end before it, and shows other colours.
"""

import struct
from typing import Final

import numpy as np

from mpload.errors import DecodeError
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Pixels

__all__ = ["bmp_pixels", "has_masks"]

_BY_MASKS = frozenset({3, 6})  # "compression" with masks of red, green and blue, and of alpha
_VERSION_4_BYTES = 108  # size of the header
_MASKS_END = 66  # masks follow the header of version 3, and belong to those of later versions
_BYTES: Final = {0xFF << 8 * place: place for place in range(4)}


def has_masks(data: ImageBytes) -> bool:
    """Return whether a BMP has 32 bits per pixel, and masks of its colours that OpenCV may ignore.

    It reads those of headers from version 4 on, also of other numbers of bits. Masks of 0 are none.
    """
    if len(data) < _MASKS_END:
        return False
    header_bytes, _, _, _, bits, compression = struct.unpack_from("<IiiHHI", data, 14)
    masks = struct.unpack_from("<III", data, 54)
    is_known = header_bytes >= _VERSION_4_BYTES and not _are_bytes(masks)
    return header_bytes >= 40 and bits == 32 and compression in _BY_MASKS and any(masks) and not is_known


def bmp_pixels(data: ImageBytes, *, limits: Limits) -> Pixels:
    """Return the pixels of a BMP that has masks, uint8 RGB [height, width, 3].

    Raises:
        DecodeError: The file is damaged or truncated, exceeds `limits`, or a colour is not stored in a byte of its own.
    """
    width, height = struct.unpack_from("<ii", data, 18)
    limits.check_size("BMP", abs(height), width, len(data))
    masks = struct.unpack_from("<III", data, 54)
    if not _are_bytes(masks):
        words = ", ".join(f"{mask:#010x}" for mask in masks)
        raise DecodeError(
            f"the BMP stores red, green and blue in the bits {words}; each must have a byte of its own. Convert it to "
            "24 bits per pixel, or to PNG"
        )
    first_pixel = int.from_bytes(data[10:14], "little")
    end = first_pixel + 4 * width * abs(height)
    if end > len(data):
        raise DecodeError(f"BMP is damaged or truncated: its pixels end at byte {end:,} of {len(data):,}")
    stored = np.frombuffer(data, np.uint8, 4 * width * abs(height), first_pixel).reshape(abs(height), width, 4)
    rows = stored[::-1] if height > 0 else stored  # a positive height: the last row comes first
    return rows[..., [_BYTES[mask] for mask in masks]]


def _are_bytes(masks: tuple[int, ...]) -> bool:
    """Return whether each colour has a byte of its own."""
    return len(set(masks)) == len(masks) and _BYTES.keys() >= set(masks)
