"""How a decoder requests memory before it allocates it, so that a loader's workers take turns with large images."""

from collections.abc import Callable
from typing import Final

__all__ = ["PEAK_PIXEL_BYTES", "PLAIN_PIXEL_BYTES", "Claim", "unclaimed"]

Claim = Callable[[int], object]
"""Called with a number of bytes before that much memory is allocated; returns when it is available."""
PEAK_PIXEL_BYTES: Final = 13
"""Upper bound of the memory to decode a pixel. GIFs reach it; a progressive CMYK JPEG takes 12, most others 6 to 9."""
PLAIN_PIXEL_BYTES: Final = 6
"""Memory to decode one pixel of a JPEG with a single scan and turn it upright."""


def unclaimed(num_bytes: int) -> None:
    """Grant any request at once."""
