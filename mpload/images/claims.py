"""Memory that a decoder asks for before it takes it: workers of one loader take turns with large images."""

from collections.abc import Callable
from typing import Final

__all__ = ["PEAK_PIXEL_BYTES", "PLAIN_PIXEL_BYTES", "Claim", "unclaimed"]

Claim = Callable[[int], object]
"""Called with a number of bytes before so much memory is taken; returns when there is room."""
PEAK_PIXEL_BYTES: Final = 13
"""What decoding takes at most for a pixel: GIFs do; a progressive JPEG of four inks takes 12, most others 6 to 9."""
PLAIN_PIXEL_BYTES: Final = 6
"""What decoding takes for a pixel of a JPEG of one scan, turned upright."""


def unclaimed(num_bytes: int) -> None:
    """Take memory without asking."""
