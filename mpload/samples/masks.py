"""Masks among photographs: all files of a sample go one way, which would destroy class ids, palettes and depths.

Until each column has a decoder of its own, what would be destroyed is refused: by the name of its column, or by the
header of its file. Several columns of photographs are cropped and transformed alike, and nothing is wrong with that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from mpload.errors import ArgumentError, DecodeError
from mpload.images.jpeg_header import ImageBytes

__all__ = ["PhotographsOnly", "values_of"]

_NAMES = re.compile(
    r"(?:^|[^a-z])(?:annotations?|depth|disparity|ground_?truth|gt|instances?|labels?|masks?|panoptic|segm?|segmentations?|semantic|trimap)"
    r"(?:$|[^a-z])"
)
_MOST_IDS = 32
"""A mask has few different values; a photograph in shades of gray has nearly all of them."""
_BITS, _PHOTOMETRIC, _SAMPLES, _PALETTE = 258, 262, 277, 3  # tags of TIFF, and what one of them may be
_ADVICE = (
    "Decode by a callable of your own, which can tell such files by their bytes, and leave the transform to it; or put "
    "the column into an index of its own"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotographsOnly:
    """Refuses samples of several files, of which one would be destroyed if it were treated like a photograph."""

    columns: tuple[str, ...]
    """Names of the columns of files."""
    treatment: str
    """What all of them go through: `RandomResizedCrop`."""
    keeps_gray: bool = False
    """Whether one channel of 8 bits comes out as it is, three times."""

    def check_names(self) -> None:
        """Raise `ArgumentError` where a column is no photograph, by its name."""
        for column in self.columns:
            words = re.sub("(?<=[a-z])(?=[A-Z])", "_", column).lower()  # imageMask
            if _NAMES.search(words):
                raise ArgumentError(
                    f"column {column!r} holds no photographs, by its name, and would be destroyed: all columns of "
                    f"files go through {self.treatment}. {_ADVICE}; or give it another name if it does hold photographs"
                )

    def check(self, files: Sequence[ImageBytes]) -> None:
        """Raise `DecodeError` where one of a sample's files is of another kind than the others, by its header."""
        kinds = [self._kind(data) for data in files]
        if len(set(kinds)) > 1:
            raise DecodeError(self._refusal(kinds))

    def check_values(self, files: Sequence[ImageBytes]) -> None:
        """Raise as `check` does, also where files of one kind have so few values that they must be ids.

        Raises:
            ArgumentError: they would be destroyed.
        """
        kinds = [self._kind(data) for data in files]
        if len(set(kinds)) > 1 or any(kind and _is_ids(data) for kind, data in zip(kinds, files, strict=True)):
            raise ArgumentError(self._refusal(kinds))

    def check_arrays(self, arrays: Sequence[object]) -> None:
        """Raise `DecodeError` where what was decoded of a sample's files is not alike."""
        kinds = [_array_kind(array) for array in arrays]
        if len(set(kinds)) > 1:
            raise DecodeError(self._refusal(kinds))

    def _kind(self, data: ImageBytes) -> str | None:
        kind = values_of(data)
        return None if self.keeps_gray and kind == "one channel of 8 bits" else kind

    def _refusal(self, kinds: Sequence[str | None]) -> str:
        found = ", ".join(f"{name!r} {kind or 'RGB'}" for name, kind in zip(self.columns, kinds, strict=False))
        return (
            f"masks and the like would be destroyed: {self.treatment} makes photographs of all columns of files, and "
            f"these hold: {found}. {_ADVICE}"
        )


def values_of(data: ImageBytes) -> str | None:
    """Return what the values of an image file are, by its header: `"a palette"`, `"one channel of 8 bits"`.

    None where they are colours, and for JPEG, in which no ids survive.
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
    return None


def _tiff_values(data: ImageBytes, order: Literal["little", "big"]) -> str | None:
    def number(position: int, num_bytes: int) -> int:
        return int.from_bytes(data[position : position + num_bytes], order)

    directory = number(4, 4)
    tags = {_BITS: 1, _SAMPLES: 1}
    for entry in range(directory + 2, min(directory + 2 + 12 * number(directory, 2), len(data)), 12):
        if number(entry + 4, 4) == 1:  # a single number stands here, of several only their place
            tags[number(entry, 2)] = number(entry + 8, 2)
    if tags.get(_PHOTOMETRIC) == _PALETTE:
        return "a palette"
    return f"one channel of {tags[_BITS]} bits" if tags[_SAMPLES] == 1 else None


def _is_ids(data: ImageBytes) -> bool:
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return False
    if pixels is None:
        return False
    return len(np.unique(pixels.reshape(-1, *pixels.shape[2:]), axis=0)) <= _MOST_IDS


def _array_kind(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    channels = value.shape[2] if value.ndim == 3 else 1
    return f"{value.dtype} of {value.ndim} dimensions, {channels} channel{'s' * (channels != 1)}"
