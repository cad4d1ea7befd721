"""Which files are decoded, and which are refused."""

from dataclasses import dataclass

from mpload.errors import ArgumentError, DecodeError

__all__ = ["Limits"]

_ALWAYS_PLAUSIBLE_PIXELS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which files are decoded, and which are refused.

    Attributes:
        max_bytes: The largest file; where its size is known before it is read, it is not read either.
        max_pixels: The largest image, by the size its header gives. While an image is decoded whole, a worker takes 3
            to 13 bytes for each of its pixels, at this default up to 2.3 GB: workers of an `MPLoader` wait for each
            other with images that take more than their part of `memory_budget`. Which images are refused depends on
            this number only, so a budget that is to hold one of the largest has room for 26 bytes times `max_pixels`.
        max_pixels_per_byte: The most pixels that a byte of a file may stand for, in images of more than 16 million: a
            file of 35 bytes can say that it is a GIF of 13,000 x 13,000.
        max_scans: The most scans of a JPEG (progressive ones have several): each takes as long as a plain JPEG, and
            may be one of some bytes.
        allow_truncated: Take a JPEG that breaks off: the pixels that are there, the rest gray (of a progressive one the
            whole image, blurred). Other formats are refused when they break off.

    Raises:
        ArgumentError: A number is not positive.
    """

    max_bytes: int = 1 << 30  # which holds `max_pixels` stored plainly, 16 bits a channel
    max_pixels: int = 178_956_970  # where Pillow calls an image a decompression bomb: 0.5 GB of RGB
    max_pixels_per_byte: int = 100_000  # a blank page by CCITT takes a bit a row: 8 times its width; a PNG, 8,258
    max_scans: int = 64  # encoders write about ten, and decoding each one touches the whole picture
    allow_truncated: bool = False

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_pixels_per_byte", "max_scans"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")

    def check_bytes(self, num_bytes: int) -> None:
        """Raise `DecodeError` where a file of `num_bytes` is too large."""
        if num_bytes > self.max_bytes:
            raise DecodeError(f"{num_bytes:,} bytes exceed max_bytes={self.max_bytes:,}")

    def check_size(self, kind: str, height: int, width: int, num_bytes: int) -> None:
        """Check the size that a header gives.

        Args:
            kind: of image, such as PNG.
            height: in pixels; 0 where the header gives none.
            width: as `height`.
            num_bytes: of the file.

        Raises:
            DecodeError: there is no size, or it exceeds the limits.
        """
        num_pixels = height * width
        if height <= 0 or width <= 0:
            raise DecodeError(f"{kind} header is damaged or cut off: it gives no size ({num_bytes:,} bytes in all)")
        if num_pixels > self.max_pixels:
            raise DecodeError(f"{width}x{height} = {num_pixels:,} pixels exceed max_pixels={self.max_pixels:,}")
        if num_pixels > _ALWAYS_PLAUSIBLE_PIXELS and num_pixels > num_bytes * self.max_pixels_per_byte:
            raise DecodeError(
                f"{width}x{height} = {num_pixels:,} pixels in {num_bytes:,} bytes exceed "
                f"max_pixels_per_byte={self.max_pixels_per_byte:,}"
            )
