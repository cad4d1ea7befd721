"""The decoders of JPEGs that are installed: the native module, where it was built, and simplejpeg."""

from collections.abc import Callable
from functools import cache
from typing import Final, Literal, NamedTuple, Protocol

from mpload.errors import ArgumentError, warn
from mpload.images.jpeg_header import ImageBytes
from mpload.images.resize import Box, Pixels
from mpload.native import how_to_build, native_module

__all__ = [
    "BACKENDS",
    "HOW_TO_BUILD",
    "NATIVE",
    "Backend",
    "Native",
    "StoredView",
    "can_note_rows",
    "check_backend",
    "jpeg_backend",
    "jpeg_codec",
    "native_decoder",
]

Backend = Literal["auto", "native", "simplejpeg"]
"""What decodes JPEGs: the native module if it was built, else simplejpeg; the native module or an error; simplejpeg."""

BACKENDS: Final = ("auto", "native", "simplejpeg")


class StoredView(NamedTuple):
    """A view of a JPEG as it is stored, decoded at a scale. The native decoder draws it; its source calls it `View`.

    Attributes:
        size: Height and width of the whole image; images of other sizes are declined.
        denominator: The image is decoded at 1 / `denominator` of its size: 1, 2, 4 or 8.
        box: The part to show, in pixels of the image at that scale.
        full: Height and width that the box is resized to.
        corner: Top and left of the result in the resized box. The size of the result is that of the output array.
        mirror: Swap left and right.
        antialias: As in `View`.
    """

    size: tuple[int, int]
    denominator: int
    box: Box
    full: tuple[int, int]
    corner: tuple[int, int]
    mirror: bool
    antialias: bool


class Native(Protocol):
    """The module `mpload.images._jpeg`."""

    LIBJPEG_TURBO_VERSION: str
    WITH_HUFFMAN: bool
    """Whether it decodes the Huffman codes of plain JPEGs itself, which is faster. The pixels are the same."""
    SIMD: str
    """The instructions that it resizes with: `avx2`, `sse2`, `neon` or `plain`. The pixels are the same."""

    def decode(self, data: ImageBytes, view: StoredView, out: Pixels, entry: bytes | None = None) -> bytes | str | None:
        """Write a view to `out`, C-contiguous uint8 [height, width, 3].

        Return None, or the reason for declining it as a `str`; if `entry` is not an entry of this file, its new one.
        """
        ...

    def decode_parts(self, data: ImageBytes, views: tuple[StoredView, ...], outs: tuple[Pixels, ...]) -> str | None:
        """Write at most four views as `decode` does, with less work; return None, or the reason for declining them."""
        ...

    def resize(self, pixels: Pixels, view: StoredView, out: Pixels) -> str | None:
        """Write a view to `out` as `decode` does, but of decoded pixels; return None, or the reason for declining it.

        `pixels` is uint8 [n]: RGB [height, width, 3] of the view's size, then PADDING_BYTES more. The view's
        denominator is ignored.
        """
        ...

    PADDING_BYTES: int
    decode_crops: Callable[..., bool]
    decode_crops_of_many: Callable[..., None]
    """Both write several crops of photos; see `mpload.images.crops_of_photo`."""
    decode_many: Callable[..., None]
    """Decodes many photos; see `mpload.images.many`."""


NATIVE: Final[Native | None] = native_module("images._jpeg")


def native_decoder(backend: Backend) -> Native | None:
    """Return the native module if `backend` tries it first, else None."""
    return None if backend == "simplejpeg" else NATIVE


def jpeg_codec() -> str:
    """Return what the pixels of decoded JPEGs depend on: `native (libjpeg-turbo 3.1.0)`, or `simplejpeg`."""
    return "simplejpeg" if NATIVE is None else f"native (libjpeg-turbo {NATIVE.LIBJPEG_TURBO_VERSION})"


def jpeg_backend() -> str:
    """Return what decodes JPEGs here: `native (libjpeg-turbo 3.1.0)`, or `simplejpeg`.

    The native decoder decodes Huffman codes itself, faster than libjpeg-turbo does. With the environment variable
    `MPLOAD_LIBJPEG_HUFFMAN=1`, or if a self-test at import finds pixels that differ from libjpeg-turbo's, it leaves the
    codes to libjpeg-turbo. The answer then is
    `native (libjpeg-turbo 3.1.0, slower: without mpload's Huffman decoder)`.
    """
    codec = jpeg_codec()
    if NATIVE is None or NATIVE.WITH_HUFFMAN:
        return codec
    return f"{codec.removesuffix(')')}, slower: without mpload's Huffman decoder)"


def can_note_rows() -> bool:
    """Return whether the decoder here notes where the rows of a JPEG begin."""
    return NATIVE is not None and NATIVE.WITH_HUFFMAN


def check_backend(name: str) -> None:
    """Raise `ArgumentError` if `name` is not an installed backend; warn if `"auto"` means the slow one."""
    if name not in BACKENDS:
        raise ArgumentError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {name!r}")
    if NATIVE is not None:
        return
    if name == "native":
        raise ArgumentError(
            f"backend='native': the native decoder was not built. {HOW_TO_BUILD}, or use backend='auto'"
        )
    if name == "auto":
        _warn_of_slow_decoding()


HOW_TO_BUILD = how_to_build("libjpeg-turbo's headers", "libjpeg62-turbo-dev")


@cache  # Python shows warnings again whenever any library changes the filters
def _warn_of_slow_decoding() -> None:
    warn(
        "JPEGs are decoded by simplejpeg, as mpload was installed without its native decoder: a crop takes 2.2 to 2.3 "
        "times as long, 4.5 to 4.9 times as long with antialias=True. "  # benchmarks/records/decode.jsonl
        f"{HOW_TO_BUILD}, or set backend='simplejpeg' to hide this warning"
    )
