"""JPEGs of all varieties that the native decoder tells apart, and views of them."""

from typing import Any

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from hypothesis import strategies as st
from PIL import Image

from mpload.images import backends
from mpload.images.backends import StoredView
from mpload.images.resize import Box
from tests.support.photos import encode, photo

__all__ = [
    "ALL_VARIETIES",
    "NATIVE",
    "VARIETIES",
    "in_three_scans",
    "make",
    "view_of_all",
    "views",
    "without_last_scan",
]

NATIVE: Any = backends.NATIVE
VARIETIES: dict[str, dict[str, Any]] = {
    "420": {"subsampling": "4:2:0"},
    "422": {"subsampling": "4:2:2"},
    "444": {"subsampling": "4:4:4"},
    "440": {},
    "411": {},
    "optimised": {"optimize": True},
    "restarts": {"restart_marker_blocks": 5},
    "restart rows": {"restart_marker_rows": 1, "subsampling": "4:4:4"},
    "rgb": {"keep_rgb": True},
    "gray": {},
    "gray restarts": {"restart_marker_blocks": 3},
}
"""JPEGs whose Huffman codes mpload decodes itself."""
ALL_VARIETIES = {**VARIETIES, "progressive": {"progressive": True}}


def make(variety: str, height: int, width: int, *, seed: int, quality: int = 90) -> bytes:
    pixels = photo(height, width, np.random.default_rng(seed))
    if variety in {"440", "411"}:
        return bytes(simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling=variety))
    image = Image.fromarray(pixels)
    image = image.convert("L") if variety.startswith("gray") else image
    return encode(image, "JPEG", quality=quality, **ALL_VARIETIES[variety])


def without_last_scan(progressive: bytes) -> bytes:
    """Return a progressive JPEG that lacks some bits of its coefficients. Decoders smooth its blocks."""
    return progressive[: progressive.rindex(b"\xff\xc4", 0, progressive.rindex(b"\xff\xda"))] + b"\xff\xd9"


def in_three_scans(gray: bytes, *, table: int = 0, quantization: int = 0) -> bytes:
    """Return a colour JPEG with three scans, each the scan of `gray`. The last has these tables."""
    frame, scan = gray.index(b"\xff\xc0"), gray.index(b"\xff\xda")
    components = bytes([1, 0x11, 0, 2, 0x11, 0, 3, 0x11, quantization])
    file = (
        gray[:frame] + b"\xff\xc0\0\x11" + gray[frame + 4 : frame + 9] + b"\x03" + components + gray[frame + 13 : scan]
    )
    for component, tables in ((1, 0), (2, 0), (3, 0x11 * table)):
        file += b"\xff\xda\0\x08\x01" + bytes([component, tables]) + gray[scan + 7 : -2]
    return file + b"\xff\xd9"


def view_of_all(height: int, width: int, denominator: int = 1) -> tuple[StoredView, tuple[int, int]]:
    scaled = -(-height // denominator), -(-width // denominator)
    whole = Box(top=0, left=0, height=scaled[0], width=scaled[1])
    view = StoredView((height, width), denominator, whole, scaled, (0, 0), mirror=False, antialias=False)
    return view, scaled


@st.composite
def views(draw: st.DrawFn, height: int, width: int) -> tuple[StoredView, tuple[int, int]]:
    """Any box at any scale; resized, mirrored, or as it is."""
    denominator = draw(st.sampled_from((1, 2, 4, 8)))
    rows, columns = -(-height // denominator), -(-width // denominator)
    box_height, box_width = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    top, left = draw(st.integers(0, rows - box_height)), draw(st.integers(0, columns - box_width))
    full = draw(st.sampled_from(((box_height, box_width), (24, 24), (60, 7))))
    box = Box(top=top, left=left, height=box_height, width=box_width)
    mirror, antialias = draw(st.booleans()), draw(st.booleans())
    return StoredView((height, width), denominator, box, full, (0, 0), mirror, antialias), full
