"""Recognises image files by their first bytes."""

import re

__all__ = ["looks_like_image"]

_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"BM", b"II*\0", b"MM\0*", b"GIF87a", b"GIF89a")

_PNM = re.compile(rb"P[56]\s+(?:\d|#)")  # a text is less likely to begin like this than with P5 or P6


def looks_like_image(data: bytes | memoryview) -> bool:
    """Whether `data` starts like an image file."""
    return bytes(data[:8]).startswith(_STARTS) or _PNM.match(data[:8]) is not None
