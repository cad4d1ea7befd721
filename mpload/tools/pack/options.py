"""The options of a pack, and the conversion of a sample's bytes to the stored form."""

import io
from dataclasses import dataclass
from enum import StrEnum, auto

import numpy as np

from mpload.errors import ArgumentError
from mpload.images.baseline import HuffmanTables
from mpload.images.decoders import ResizeCenterCrop
from mpload.images.image import image_format, open_image
from mpload.images.shrink import shrunk_jpeg

__all__ = ["JpegForm", "PackOptions", "ShardFormat", "stored_as"]

_ENDINGS = {"JPEG": "jpg", "TIFF": "tif"} | {name: name.lower() for name in ("PNG", "WebP", "BMP", "GIF", "PGM", "PPM")}


class ShardFormat(StrEnum):
    """The file format of shards."""

    TAR = auto()
    LMDB = auto()
    ARRAYS = auto()

    @property
    def ending(self) -> str:
        """The extension of the shards' names."""
        return "npy" if self is ShardFormat.ARRAYS else str(self)


class JpegForm(StrEnum):
    """How a pack stores JPEGs."""

    KEEP = auto()
    """As they are given, byte for byte. Those that are resized have the Huffman tables of the JPEG standard."""
    BASELINE = auto()
    """Rewritten without loss as baseline JPEGs, all with the same Huffman tables, which suit the data. They decode
    faster: progressive ones take less than a third of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """Options for packing an index into shards.

    Attributes:
        shard_bytes: The approximate size of a shard. All shards hold the same number of samples, except the last.
        shuffle_seed: The seed for shuffling the samples once. None keeps the order of the index.
        resize_short: The number of pixels to which longer short sides of images are shrunk. Images are then stored as
            upright JPEGs. None stores the original bytes.
        quality: The quality of these JPEGs, 1 to 100.
        format: The file format of the shards: tar, LMDB data files, or arrays. Arrays are `.npy` files with one row per
            sample. Images are stored decoded; all of them, or all arrays, must have one shape and dtype.
        jpeg: How JPEGs are stored. `JpegForm.BASELINE` keeps their pixels and the markers in their headers, but not
            their bytes. JPEGs that cannot be rewritten, such as damaged ones, are stored as they are.
        decode: The size of the square centre crop that is stored as raw pixels, uint8 [size, size, 3] in `.npy`, as
            `ResizeCenterCrop(size, resize=size, antialias=True)` makes it. None stores encoded images.

    Raises:
        ArgumentError: A number is out of range, there is no such `format` or `jpeg`, or an option of JPEGs is given
            together with `decode` or with arrays.
    """

    shard_bytes: int = 1 << 30
    shuffle_seed: int | None = None
    resize_short: int | None = None
    quality: int = 90
    jpeg: JpegForm = JpegForm.KEEP
    decode: int | None = None
    format: ShardFormat = ShardFormat.TAR

    def __post_init__(self) -> None:
        # Callers may also give the values of the enums, such as "baseline".
        object.__setattr__(self, "format", _member(ShardFormat, "format", self.format))
        object.__setattr__(self, "jpeg", _member(JpegForm, "jpeg", self.jpeg))
        for name in ("shard_bytes", "resize_short", "decode"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name} must be positive, got {value}")
        if not 1 <= self.quality <= 100:
            raise ArgumentError(f"quality must be in [1, 100], got {self.quality}")
        if self.resize_short is not None and self.decode is not None:
            raise ArgumentError("resize_short stores JPEGs and decode stores raw pixels: give only one of them")
        if self.jpeg is JpegForm.BASELINE and self.decode is not None:
            raise ArgumentError("jpeg='baseline' stores JPEGs and decode stores raw pixels: give only one of them")
        if self.format is ShardFormat.ARRAYS and (self.resize_short is not None or self.jpeg is JpegForm.BASELINE):
            raise ArgumentError(
                "resize_short and jpeg='baseline' store JPEGs and format arrays stores raw pixels: give decode instead"
            )


def _member(kind: type[StrEnum], name: str, value: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(repr(str(member)) for member in kind)
        raise ArgumentError(f"{name} must be one of {names}, got {value!r}") from None


def stored_as(
    data: bytes,
    options: PackOptions,
    tables: HuffmanTables | None = None,
    crop: ResizeCenterCrop | None = None,
) -> tuple[str, bytes]:
    """Convert the bytes of a sample to the stored form. Return the file extension and the stored bytes.

    Args:
        data: The bytes of the sample.
        options: The form.
        tables: What all stored JPEGs are rewritten with. None leaves them as they are.
        crop: What makes raw pixels, if they are stored.
    """
    if crop is not None:
        buffer = io.BytesIO()
        np.save(buffer, crop(data), allow_pickle=False)
        return "npy", buffer.getvalue()
    ending, stored = _ENDINGS.get(image_format(data), "bin"), data
    if options.resize_short is not None:
        image, ending = open_image(data), "jpg"
        if min(image.height, image.width) > options.resize_short or data[:2] != b"\xff\xd8":
            stored = shrunk_jpeg(image, short_side=options.resize_short, quality=options.quality)
    return ending, stored if tables is None else tables.rewrite(stored)
