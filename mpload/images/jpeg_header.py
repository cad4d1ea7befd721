"""Reads a JPEG's header, the segments before its first scan: size, orientation, and whether it has a single scan."""

import re
import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Literal, NamedTuple

import imagesize  # type: ignore[import-untyped]
import numpy as np
import simplejpeg  # type: ignore[import-untyped]

__all__ = ["ImageBytes", "JpegHeader", "has_more_scans", "is_progressive", "libjpeg_header", "read_header"]

ImageBytes = bytes | bytearray | memoryview

_SCAN, _END = b"\xff\xda", b"\xff\xd9"
_PROGRESSIVE_FRAMES = frozenset({b"\xff\xc2", b"\xff\xca"})  # with Huffman codes, with arithmetic codes
_SCALABLE_FRAMES = _PROGRESSIVE_FRAMES | {b"\xff\xc0", b"\xff\xc1", b"\xff\xc9"}  # and sequential ones
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]", re.DOTALL)  # a segment with a length, or the end marker


_MAX_SEGMENTS = 4096  # in a header; an ICC profile takes at most 255
_FILL_STEP_BYTES = 1 << 16
_SEGMENT = struct.Struct(">BBH").unpack_from  # 0xFF, marker, length of the segment after its marker
_SIZE = struct.Struct(">HH").unpack_from
_NUMBER_BYTES = {3: 2, 4: 4}  # of a number of EXIF data, by its type
_PARSED_MARKERS = frozenset({0xC0, 0xC1, 0xDA, 0xDD, 0xE1})  # frame, frame, scan, restart interval, EXIF


class JpegHeader(NamedTuple):
    """The facts in a JPEG's header.

    Attributes:
        height: Height of the stored image in pixels; 0 if the header gives no size.
        width: Width of the stored image in pixels; 0 if the header gives no size.
        orientation: The EXIF orientation, 1 to 8; 1 if it is missing or unreadable.
        frame: Offset of the frame header of a simple JPEG: a single sequential scan with one or three components and
            without restart intervals (a search for the end marker would meet their markers first). 0 for others.
        has_one_scan: Whether a single sequential scan holds all components.
    """

    height: int
    width: int
    orientation: int
    frame: int
    has_one_scan: bool


def read_header(data: ImageBytes) -> JpegHeader:
    """Read the segments before the first scan."""
    position, orientation, frame, restarts, has_one_scan, last = 2, 0, 0, False, False, len(data) - 10
    has_stray_bytes = False
    for _ in range(_MAX_SEGMENTS):
        if position > last:
            break
        start, marker, length = _SEGMENT(data, position)
        if start != 0xFF:  # libjpeg-turbo skips such bytes, with a warning
            position, has_stray_bytes = _next_fill_byte(data, position), True
            continue
        if marker == 0xFF:  # fill bytes, perhaps many
            position = _last_fill_byte(data, position)
            continue
        if marker in _PARSED_MARKERS:
            if marker == 0xDA:  # start of the first scan
                has_one_scan = frame > 0 and not has_stray_bytes and data[position + 4] == data[frame + 9]
                if has_one_scan and not restarts and data[frame + 9] in {1, 3}:
                    height, width = _SIZE(data, frame + 5)
                    return JpegHeader(height, width, orientation or 1, frame, has_one_scan)
                break
            if marker == 0xE1:
                if orientation == 0 and data[position + 4 : position + 10] == b"Exif\0\0":
                    orientation = _tiff_orientation(bytes(data[position + 10 : position + 2 + length]))
            elif marker == 0xDD:
                restarts = True
            else:
                frame = position
        position += 2 + length
    if (header := libjpeg_header(data)) is not None:
        height, width, _ = header
    else:
        width, height = imagesize.get(BytesIO(data), exif_rotation=False)
    return JpegHeader(height, width, orientation or 1, 0, has_one_scan)


def _next_fill_byte(data: ImageBytes, position: int) -> int:
    while step := bytes(data[position : position + _FILL_STEP_BYTES]):
        if (found := step.find(b"\xff")) >= 0:
            return position + found
        position += len(step)
    return position


def _last_fill_byte(data: ImageBytes, position: int) -> int:
    while step := bytes(data[position : position + _FILL_STEP_BYTES]):
        num_filled = len(step) - len(step.lstrip(b"\xff"))
        position += num_filled
        if num_filled < len(step):
            break
    return position - 1


def libjpeg_header(data: ImageBytes) -> tuple[int, int, str] | None:
    """Return height, width and colour space as simplejpeg reads them, or None if it cannot."""
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError):  # KeyError: a colour space or subsampling that it has no name for
        return None
    return height, width, colors


def has_more_scans(data: ImageBytes, num_scans: int) -> bool:
    """Return whether a JPEG has more than `num_scans` scans before its end marker."""
    values = np.frombuffer(data, np.uint8)
    markers = values[np.flatnonzero(values[:-1] == _SCAN[0]) + 1]
    if np.count_nonzero(markers == _SCAN[1]) <= num_scans:  # may include scans of a thumbnail
        return False
    data = bytes(data)
    position = 2
    while (found := _MARKER.search(data, position)) is not None and found[0] != _END:
        num_scans -= found[0] == _SCAN
        if num_scans < 0:
            return True
        position = found.start() + 2 + int.from_bytes(data[found.start() + 2 : found.start() + 4], "big")
    return False


def is_progressive(data: bytes) -> bool:
    """Return whether the first scan of a JPEG belongs to a progressive frame."""
    return any(marker in _PROGRESSIVE_FRAMES for marker in _header_markers(data))


def can_be_scaled(data: ImageBytes) -> bool:
    """Return whether libjpeg-turbo can decode a JPEG at a smaller scale. With a lossless one, it would crash."""
    return any(marker in _SCALABLE_FRAMES for marker in _header_markers(bytes(data)))


def _header_markers(data: bytes) -> Iterator[bytes]:
    """Yield the markers before the first scan."""
    position = 2
    while (found := _MARKER.search(data, position)) is not None and found[0] not in {_SCAN, _END}:
        yield found[0]
        position = found.start() + 2 + int.from_bytes(data[found.start() + 2 : found.start() + 4], "big")


def _tiff_orientation(exif: bytes) -> int:
    if exif[:2] not in {b"II", b"MM"}:
        return 1
    order: Literal["little", "big"] = "little" if exif[:2] == b"II" else "big"
    directory = int.from_bytes(exif[4:8], order)
    num_entries = int.from_bytes(exif[directory : directory + 2], order)
    for entry in range(directory + 2, min(directory + 2 + 12 * num_entries, len(exif) - 11), 12):
        tag, kind = (int.from_bytes(exif[entry + at : entry + at + 2], order) for at in (0, 2))
        if tag == 0x0112 and kind in _NUMBER_BYTES:
            orientation = int.from_bytes(exif[entry + 8 : entry + 8 + _NUMBER_BYTES[kind]], order)
            return orientation if 1 <= orientation <= 8 else 1
    return 1
