"""Which files are decoded, and which are refused."""

from dataclasses import dataclass

from mpload.errors import ArgumentError, DecodeError

__all__ = ["Limits"]

_ALWAYS_PLAUSIBLE_PIXELS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which files are decoded, and which are refused.

    Attributes:
        max_bytes: Maximum size of a file. A larger file is not even read if its size is known before.
        max_pixels: Maximum number of pixels, by the size in the header. Decoding a whole image takes 3 to 13 bytes of
            memory per pixel, with this default up to 2.3 GB. Workers of an `MPLoader` take turns with images that
            exceed their part of `memory_budget`. Images are refused because of this number only, never because of the
            budget: to hold one of the largest, the budget must allow 26 bytes times `max_pixels`.
        max_pixels_per_byte: Maximum number of pixels per byte of a file, for images of more than 16 million pixels: a
            file of 35 bytes can claim to be a GIF of 13,000 x 13,000.
        max_scans: Maximum number of scans of a JPEG (progressive ones have several). Each scan can take as long to
            decode as a whole JPEG, even if it has only a few bytes.
        allow_truncated: Accept a truncated JPEG. Its missing pixels are gray (a progressive image is complete, but
            blurred). Truncated files of other formats are refused.

    Raises:
        ArgumentError: A number is not positive.
    """

    max_bytes: int = 1 << 30  # enough for `max_pixels` uncompressed, 16 bits per channel
    max_pixels: int = 178_956_970  # Pillow's limit for a decompression bomb: 0.5 GB of RGB
    max_pixels_per_byte: int = 100_000  # CCITT stores a blank row in one bit: 8 times the width; PNG reaches 8,258
    max_scans: int = 64  # encoders write about ten; decoding each one touches the whole image
    allow_truncated: bool = False

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_pixels_per_byte", "max_scans"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")

    def check_bytes(self, num_bytes: int) -> None:
        """Raise `DecodeError` if a file of `num_bytes` is too large."""
        if num_bytes > self.max_bytes:
            raise DecodeError(f"{num_bytes:,} bytes exceed max_bytes={self.max_bytes:,}")

    def check_size(self, kind: str, height: int, width: int, num_bytes: int) -> None:
        """Check the image size in a header.

        Args:
            kind: The image's format, such as PNG.
            height: The image's height in pixels; 0 if the header gives none.
            width: The image's width in pixels; 0 if the header gives none.
            num_bytes: The file's size in bytes.

        Raises:
            DecodeError: The size is missing or exceeds the limits.
        """
        num_pixels = height * width
        if height <= 0 or width <= 0:
            raise DecodeError(f"{kind} header is damaged or truncated: it gives no size ({num_bytes:,} bytes in all)")
        if num_pixels > self.max_pixels:
            raise DecodeError(f"{width}x{height} = {num_pixels:,} pixels exceed max_pixels={self.max_pixels:,}")
        if num_pixels > _ALWAYS_PLAUSIBLE_PIXELS and num_pixels > num_bytes * self.max_pixels_per_byte:
            raise DecodeError(
                f"{width}x{height} = {num_pixels:,} pixels in {num_bytes:,} bytes exceed "
                f"max_pixels_per_byte={self.max_pixels_per_byte:,}"
            )
