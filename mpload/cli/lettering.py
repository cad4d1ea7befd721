"""Text in pictures: Latin, Greek, Cyrillic, Chinese, Japanese and Korean with OpenCV 5, ASCII with OpenCV 4."""

import unicodedata
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from mpload.images.resize import Pixels

__all__ = ["Lettering"]

_SIZE = 14
_HERSHEY = cv2.FONT_HERSHEY_SIMPLEX, 0.44
_FINE = 2  # text is drawn so many times larger, then shrunk: thin strokes come out smooth
_RISE, _FALL = 15, 6
_RIGHT_TO_LEFT = {"R", "AL"}


class Lettering:
    """Writes lines of text into pictures, in the letters that OpenCV's font has."""

    def __init__(self) -> None:
        self._face = cv2.FontFace("uni") if hasattr(cv2, "FontFace") else None
        self._missing = self._drawn("?")

    def has(self, text: str) -> bool:
        """Whether the font shows `text` as it is read: it has all letters, and they go from left to right."""
        return text.isprintable() and all(character.isascii() or self._has(character) for character in text)

    def write(self, canvas: Pixels, text: str, *, row: int, colour: Sequence[int], indent: int = 0) -> None:
        """Write a line with its base line at `row`, shortened to the width of the canvas.

        What the font does not have is written as Python escapes it.
        """
        shown = "".join(each if self.has(each) else each.encode("unicode_escape").decode() for each in text)
        room = canvas.shape[1] - indent - 2
        if self._width(shown) > room:
            while shown and self._width(f"{shown}...") > room:
                shown = shown[:-1]
            shown += "..."
        top, bottom = max(0, row - _RISE), min(canvas.shape[0], row + _FALL)
        strip = canvas[top:bottom, indent:]
        mask = self._mask(shown, width=strip.shape[1], height=bottom - top, base=row - top)
        cover = cv2.resize(mask, strip.shape[1::-1], interpolation=cv2.INTER_AREA)[..., None] / np.float32(255)
        strip[:] = strip + (np.asarray(colour, np.float32) - strip) * cover

    def _has(self, character: str) -> bool:
        is_plain = unicodedata.bidirectional(character) not in _RIGHT_TO_LEFT and not unicodedata.combining(character)
        return self._face is not None and is_plain and self._drawn(character) != self._missing

    def _drawn(self, character: str) -> bytes:
        return self._mask(character, width=2 * _SIZE, height=2 * _SIZE, base=_RISE).tobytes()

    def _mask(self, text: str, *, width: int, height: int, base: int) -> NDArray[np.uint8]:
        """Return uint8 [_FINE * height, _FINE * width], 255 where the text is."""
        mask = np.zeros((_FINE * height, _FINE * width), np.uint8)
        origin = (0, _FINE * base)
        if self._face is None:
            font, scale = _HERSHEY
            cv2.putText(mask, text, origin, font, scale * _FINE, 255, _FINE, cv2.LINE_AA)
        else:
            cv2.putText(mask, text, origin, (255,), self._face, _SIZE * _FINE)
        return mask

    def _width(self, text: str) -> float:
        if self._face is None:
            font, scale = _HERSHEY
            return cv2.getTextSize(text, font, scale * _FINE, _FINE)[0][0] / _FINE
        left, _, width, _ = cv2.getTextSize((1 << 14, 1 << 14), text, (0, 0), self._face, _SIZE * _FINE)
        return (left + width) / _FINE
