"""Text in pictures. OpenCV 5 can draw Latin, Greek, Cyrillic, Chinese, Japanese and Korean; OpenCV 4 only ASCII."""

import unicodedata
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from mpload.images.resize import Pixels

__all__ = ["Lettering"]

_SIZE = 14
_HERSHEY = cv2.FONT_HERSHEY_SIMPLEX, 0.44
_SCALE = 2  # supersampling factor: text is drawn larger and shrunk, so that thin strokes look smooth
_RISE, _FALL = 15, 6
_RIGHT_TO_LEFT = {"R", "AL"}


class Lettering:
    """Draws lines of text into pictures with OpenCV's font."""

    def __init__(self) -> None:
        self._face = cv2.FontFace("uni") if hasattr(cv2, "FontFace") else None
        self._missing = self._drawn("?")

    def has(self, text: str) -> bool:
        """Whether the font can render `text`: it has every character, and the script runs from left to right."""
        return text.isprintable() and all(character.isascii() or self._has(character) for character in text)

    def write(self, canvas: Pixels, text: str, *, row: int, colour: Sequence[int], indent: int = 0) -> None:
        r"""Draw a line of text with its baseline at `row`, cut to the width of the canvas.

        Characters that the font lacks are drawn as Python escapes such as `\u732b`.
        """
        drawable = "".join(each if self.has(each) else each.encode("unicode_escape").decode() for each in text)
        max_width = canvas.shape[1] - indent - 2
        if self._width(drawable) > max_width:
            while drawable and self._width(f"{drawable}...") > max_width:
                drawable = drawable[:-1]
            drawable += "..."
        top, bottom = max(0, row - _RISE), min(canvas.shape[0], row + _FALL)
        strip = canvas[top:bottom, indent:]
        mask = self._mask(drawable, width=strip.shape[1], height=bottom - top, base=row - top)
        cover = cv2.resize(mask, strip.shape[1::-1], interpolation=cv2.INTER_AREA)[..., None] / np.float32(255)
        strip[:] = strip + (np.asarray(colour, np.float32) - strip) * cover

    def _has(self, character: str) -> bool:
        is_plain = unicodedata.bidirectional(character) not in _RIGHT_TO_LEFT and not unicodedata.combining(character)
        return self._face is not None and is_plain and self._drawn(character) != self._missing

    def _drawn(self, character: str) -> bytes:
        return self._mask(character, width=2 * _SIZE, height=2 * _SIZE, base=_RISE).tobytes()

    def _mask(self, text: str, *, width: int, height: int, base: int) -> NDArray[np.uint8]:
        """Return uint8 [_SCALE * height, _SCALE * width], 255 where there is text."""
        mask = np.zeros((_SCALE * height, _SCALE * width), np.uint8)
        origin = (0, _SCALE * base)
        if self._face is None:
            font, scale = _HERSHEY
            cv2.putText(mask, text, origin, font, scale * _SCALE, 255, _SCALE, cv2.LINE_AA)
        else:
            cv2.putText(mask, text, origin, (255,), self._face, _SIZE * _SCALE)
        return mask

    def _width(self, text: str) -> float:
        if self._face is None:
            font, scale = _HERSHEY
            return cv2.getTextSize(text, font, scale * _SCALE, _SCALE)[0][0] / _SCALE
        left, _, width, _ = cv2.getTextSize((1 << 14, 1 << 14), text, (0, 0), self._face, _SIZE * _SCALE)
        return (left + width) / _SCALE
