"""Refuses masks among photographs: decoding them as photographs would destroy class ids, palettes and depths.

Without a dict of column decoders, all files of a sample go through the same decoder and transform. Files that these
would destroy are refused, because of the column's name or the file's header. Several columns of photographs are fine:
they are cropped and transformed alike.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mpload.errors import ArgumentError, DecodeError
from mpload.images.image import is_image
from mpload.images.jpeg_header import ImageBytes
from mpload.images.opencv import cv2
from mpload.images.pnm import pnm_format, read_pnm_header

__all__ = ["PhotographsOnly", "holds_values", "values_of"]

_NAMES = re.compile(
    r"(?:^|[^a-z])(?:annotations?|depth|disparity|ground_?truth|gt|instances?|labels?|masks?|panoptic|segm?|segmentations?|semantic|trimap)"
    r"(?:$|[^a-z])"
)
_MAX_IDS = 32
"""A mask has few distinct values; a grayscale photograph has nearly all 256."""
_BITS, _PHOTOMETRIC, _SAMPLES, _PALETTE = 258, 262, 277, 3  # three TIFF tags; a value of `_PHOTOMETRIC`
_ADVICE = 'Give each column a decoder of its own: decode={"image": RandomResizedCrop(224), "mask": Mask()}'


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotographsOnly:
    """Refuses samples with several files if treating one of them as a photograph would destroy it."""

    columns: tuple[str, ...]
    """Names of the file columns."""
    treatment: str
    """The name of the decoder or transform that all files go through, such as `RandomResizedCrop`."""
    keeps_gray: bool = False
    """Whether the treatment repeats a single 8-bit channel three times, unchanged."""

    def check_names(self) -> None:
        """Raise `ArgumentError` if a column's name says that it holds no photographs."""
        for column in self.columns:
            if _is_name_of_values(column):
                raise ArgumentError(
                    f"the name of column {column!r} says that it holds no photographs. {self.treatment} is applied to "
                    f"all file columns and would destroy its values. {_ADVICE}; if it does hold photographs, rename it"
                )

    def check(self, files: Sequence[ImageBytes]) -> None:
        """Raise `DecodeError` if the headers of a sample's files show different kinds of values."""
        kinds = [self._kind(data) for data in files]
        if len(set(kinds)) > 1:
            raise DecodeError(self._refusal(kinds))

    def check_values(self, files: Sequence[ImageBytes]) -> None:
        """Check as `check` does; also refuse palette and one-channel files with so few values that they must be ids.

        Raises:
            ArgumentError: A file would be destroyed.
        """
        kinds = [self._kind(data) for data in files]
        if len(set(kinds)) > 1 or any(kind and _has_few_values(data) for kind, data in zip(kinds, files, strict=True)):
            raise ArgumentError(self._refusal(kinds))

    def check_images(self, samples: Sequence[Sequence[ImageBytes]]) -> None:
        """Raise `ArgumentError` if no sample has an image in one of the columns, but some have images in another."""
        seen = [[is_image(data) for data in files] for files in samples]
        for column, are_images in zip(self.columns, zip(*seen, strict=True), strict=False):
            if not any(are_images) and any(map(any, seen)):
                raise ArgumentError(
                    f"the files of column {column!r} are not images, but {self.treatment} is applied to all file "
                    'columns. Give each column a decoder of its own: decode={"image": RandomResizedCrop(224), '
                    f"{column!r}: Text()}}. Or leave the column out of the index: mpload index --columns"
                )

    def check_arrays(self, arrays: Sequence[object]) -> None:
        """Raise `DecodeError` if the decoded files of a sample differ in type, dtype, dimensions or channels."""
        kinds = [_array_kind(array) for array in arrays]
        if len(set(kinds)) > 1:
            raise DecodeError(self._refusal(kinds))

    def _kind(self, data: ImageBytes) -> str | None:
        kind = values_of(data)
        return None if self.keeps_gray and kind == "one channel of 8 bits" else kind

    def _refusal(self, kinds: Sequence[str | None]) -> str:
        found = ", ".join(f"{name!r} {kind or 'RGB'}" for name, kind in zip(self.columns, kinds, strict=False))
        return (
            f"masks or similar data would be destroyed: {self.treatment} treats all file columns as photographs, but "
            f"they hold: {found}. {_ADVICE}"
        )


def holds_values(column: str, files: Sequence[ImageBytes]) -> bool:
    """Return whether a column, besides others, holds no photographs, but values or files that are no images.

    Values are class ids, for example. A column alone would rather hold drawings, if it has few values.

    Args:
        column: Its name.
        files: Some of its files. All must be alike.
    """
    if _is_name_of_values(column):
        return True
    if not files:
        return False
    return not any(map(is_image, files)) or all(values_of(data) is not None and _has_few_values(data) for data in files)


def _is_name_of_values(column: str) -> bool:
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", column).lower()  # imageMask
    return _NAMES.search(words) is not None


def values_of(data: ImageBytes) -> str | None:
    """Return what an image file's header says of its values: `"a palette"` or `"one channel of 8 bits"`.

    None if they are colours, and for JPEG, whose compression would not preserve ids.
    """
    start = bytes(data[:32])
    if start.startswith(b"\x89PNG\r\n\x1a\n") and len(start) > 25:
        depth, color = start[24], start[25]
        return "a palette" if color == 3 else f"one channel of {depth} bits" if color in {0, 4} else None
    if start.startswith(b"GIF8"):
        return "a palette"
    if start.startswith(b"BM") and len(start) > 29:
        return "a palette" if int.from_bytes(start[28:30], "little") <= 8 else None
    if start.startswith((b"II*\0", b"MM\0*")):
        return _tiff_values(data, "little" if start[:1] == b"I" else "big")
    if pnm_format(start) == "PGM":
        with suppress(DecodeError):  # raised again by the decoder
            return f"one channel of {8 if read_pnm_header(data).max_value < 256 else 16} bits"
    return None


def _tiff_values(data: ImageBytes, order: Literal["little", "big"]) -> str | None:
    def number(position: int, num_bytes: int) -> int:
        return int.from_bytes(data[position : position + num_bytes], order)

    directory = number(4, 4)
    tags = {_BITS: 1, _SAMPLES: 1}
    for entry in range(directory + 2, min(directory + 2 + 12 * number(directory, 2), len(data)), 12):
        if number(entry + 4, 4) == 1:  # the entry holds a single value itself, but only the offset of several
            tags[number(entry, 2)] = number(entry + 8, 2)
    if tags.get(_PHOTOMETRIC) == _PALETTE:
        return "a palette"
    return f"one channel of {tags[_BITS]} bits" if tags[_SAMPLES] == 1 else None


def _has_few_values(data: ImageBytes) -> bool:
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return False
    if pixels is None:
        return False
    return len(np.unique(pixels.reshape(-1, *pixels.shape[2:]), axis=0)) <= _MAX_IDS


def _array_kind(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    channels = value.shape[2] if value.ndim == 3 else 1
    return f"{value.dtype} of {value.ndim} dimensions, {channels} channel{'s' * (channels != 1)}"
