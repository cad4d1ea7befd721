"""How the bytes of an image file start."""

__all__ = ["looks_like_image"]

_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"BM", b"II*\0", b"MM\0*", b"GIF87a", b"GIF89a")


def looks_like_image(data: bytes | memoryview) -> bool:
    """Whether bytes start as an image does."""
    return bytes(data[:8]).startswith(_STARTS)
