"""Small files that claim to be large images, or would take long to decode, are refused before a pixel is decoded."""

import struct
import subprocess
import sys
import time
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from mpload.errors import ArgumentError, DecodeError
from mpload.images.image import open_image
from mpload.images.jpeg_header import ImageBytes, read_header
from mpload.images.limits import Limits
from tests.support.photos import encode

SIDE = 13_000
"""169 million pixels: fewer than `max_pixels`."""


def gif(canvas: int, frame: int) -> bytes:
    screen = struct.pack("<HHBBB", canvas, canvas, 0x80, 0, 0) + bytes(6)
    return b"GIF89a" + screen + b"," + struct.pack("<HHHHB", 0, 0, frame, frame, 0) + b"\x02\x02\x44\x01\x00;"


def bmp(side: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header


def tiff(*widths: int, height: int, num_bytes: int = 100) -> bytes:
    longs = [*((256, width) for width in widths), (257, height), (273, 8), (278, height), (279, num_bytes)]
    shorts = [(258, 8), (259, 1), (262, 1), (277, 1)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in longs]
    entries += [struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in shorts]
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + num_bytes) + bytes(num_bytes) + directory


def blank_page(width: int, height: int) -> bytes:
    """Return a blank bilevel TIFF with CCITT group 4 compression, which stores a row like the one above in one bit."""
    num_bytes = -(-height // 8)
    longs = [(256, width), (257, height), (273, 8), (278, height), (279, num_bytes)]
    shorts = [(258, 1), (259, 4), (262, 0), (277, 1)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in longs]
    entries += [struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in shorts]
    directory = struct.pack("<H", len(entries)) + b"".join(sorted(entries)) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + num_bytes) + b"\xff" * num_bytes + directory


def png(side: int, *, bits: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, bits, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


WEBP = b"RIFF" + struct.pack("<I", 26) + b"WEBPVP8L" + struct.pack("<IBI", 13, 0x2F, 12_999 | 12_999 << 14) + bytes(8)

BOMBS = {
    "gif": gif(SIDE, 1),
    "gif with a full frame": gif(SIDE, SIDE),
    "bmp": bmp(SIDE),
    "tiff": tiff(SIDE, height=SIDE),
    "tiff whose second width is small": tiff(SIDE, 10, height=SIDE),
    "png": png(SIDE, bits=1, rows=bytes(100)),
    "webp": WEBP,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_tiny_file_that_claims_a_huge_image_is_refused(name: str) -> None:
    assert len(BOMBS[name]) < 300
    with pytest.raises(
        DecodeError, match=r"13000x13000 = 169,000,000 pixels in \d+ bytes exceed max_pixels_per_byte=100,000"
    ):
        open_image(BOMBS[name])


def test_a_blank_mask_is_decoded_however_well_it_is_compressed() -> None:
    side = 5_000
    mask = png(side, bits=1, rows=bytes((1 + side // 8) * side))
    assert side * side / len(mask) > 5_000  # pixels per byte
    assert open_image(mask).pixels().shape == (side, side, 3)
    with pytest.raises(DecodeError, match="max_pixels_per_byte=1,000"):
        open_image(mask, limits=Limits(max_pixels_per_byte=1_000))


def test_a_blank_page_is_decoded_however_well_it_is_compressed() -> None:
    width, height = 4_960, 7_016  # A4 at 600 dpi
    page = blank_page(width, height)
    assert width * height / len(page) > 30_000  # pixels per byte
    pixels = open_image(page).pixels()
    assert pixels.shape == (height, width, 3)
    assert pixels.min() == 255


PEAK = """
import sys
from pathlib import Path
from mpload.images.image import open_image
def peak_bytes():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
open_image(sys.stdin.buffer.read(int(sys.argv[1]))).pixels()
before = peak_bytes()
open_image(sys.stdin.buffer.read()).pixels()
print(peak_bytes() - before)
"""


def peak_bytes(small: bytes, large: bytes) -> int:
    """Return how many more bytes a new process takes at its peak to decode `large`, after it has decoded `small`."""
    command = [sys.executable, "-c", PEAK, str(len(small))]
    return int(subprocess.run(command, input=small + large, stdout=subprocess.PIPE, check=True, timeout=60).stdout)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ending", [".png", ".webp", ".bmp", ".tiff", ".gif", "progressive .jpg"])
def test_decoding_takes_at_most_the_documented_bytes_per_pixel(ending: str) -> None:
    rng = np.random.default_rng(0)

    def file(side: int) -> bytes:
        pixels = cv2.resize(rng.integers(0, 255, (30, 30, 3), np.uint8), (side, side))
        if ending == ".webp":  # OpenCV's lossless encoder, which has no such option, takes seven times as long
            return encode(Image.fromarray(pixels), "WEBP", lossless=True, quality=0, method=0)
        if ending == "progressive .jpg":
            return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
        return cv2.imencode(ending, pixels)[1].tobytes()

    small, large = file(64), file(2_500)
    assert peak_bytes(small, large) < (13.5 if ending == ".gif" else 9.5) * 2_500**2 + len(large)


def progressive(num_scans: int, *, behind: bytes = b"", before: bytes = b"") -> bytes:
    """Return a progressive JPEG that repeats one of its scans until there are `num_scans`."""
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    last = data.rindex(b"\xff\xda")
    body, scan = data[2:last], data[last:-2]
    scans = scan * (num_scans - body.count(b"\xff\xda"))
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(before)) + before if before else b""
    return b"\xff\xd8" + comment + body + scans + b"\xff\xd9" + behind


def test_a_jpeg_with_too_many_scans_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(DecodeError, match="more than max_scans=64 scans"):
        open_image(progressive(65))
    with pytest.raises(DecodeError, match="more than max_scans=9 scans"):
        open_image(progressive(10), limits=Limits(max_scans=9))
    assert open_image(progressive(10)).pixels().shape == (32, 32, 3)
    assert open_image(progressive(64)).height == 32


def test_scans_of_other_images_in_the_file_do_not_count() -> None:
    other = progressive(60)
    open_image(progressive(10, behind=other * 3))
    open_image(progressive(10, before=other))
    with pytest.raises(DecodeError, match="max_scans"):  # an end marker inside a comment does not hide scans
        open_image(progressive(65, before=b"\xff\xd9"))


def test_scans_are_counted_in_any_type_of_buffer() -> None:
    for kind in (bytes, bytearray, memoryview):
        with pytest.raises(DecodeError, match="max_scans"):
            open_image(kind(progressive(65)))


@pytest.mark.parametrize("name", ["max_scans", "max_pixels_per_byte"])
def test_a_limit_must_be_positive(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be positive"):
        Limits(**dict[str, Any]({name: 0}))


@pytest.mark.parametrize("filling", [b"\xff", b"\xff\xfe\0\2"], ids=["fill bytes", "empty comments"])
def test_padding_in_the_header_takes_no_time(filling: bytes) -> None:
    jpeg = cv2.imencode(".jpg", np.zeros((32, 48, 3), np.uint8))[1].tobytes()
    bomb = jpeg[:2] + filling * ((50 << 20) // len(filling)) + jpeg[2:]
    started = time.process_time()
    assert read_header(bomb).orientation == 1
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("num_bytes", [1, 2, 65_535, 65_536, 65_537, 131_072])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_frame_header_is_found_after_fill_bytes(num_bytes: int, kind: type[ImageBytes]) -> None:
    jpeg = cv2.imencode(".jpg", np.zeros((32, 48, 3), np.uint8))[1].tobytes()
    header = read_header(jpeg)
    filled = kind(jpeg[:2] + b"\xff" * num_bytes + jpeg[2 : header.frame] + b"\xff" * num_bytes + jpeg[header.frame :])
    assert header.frame > 0
    assert read_header(filled) == header._replace(frame=header.frame + 2 * num_bytes)
