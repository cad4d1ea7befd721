"""Parts of the native photo decoder, called alone through ctypes: the header, the random numbers and the crops."""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpload.images.decoders import RandomResizedCrop
from mpload.images.many import crop_numbers

__all__ = ["NUM_DRAWS", "NativeParts", "build_parts"]

NUM_DRAWS = 23
_IMAGES = Path(__file__).parents[2] / "mpload" / "images"
_SOURCES = [_IMAGES / name for name in ("_header.c", "_philox.c", "_crop.c")]


def build_parts(folder: Path) -> "NativeParts":
    """Compile the parts as setup.py does, and load them."""
    library = folder / "parts.so"
    flags = ["-O3", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, *_SOURCES, "-lm", "-o", library], check=True, timeout=100)
    return NativeParts(ctypes.CDLL(str(library)))


class NativeParts:
    """The functions of `_photos.h`, with Python's types."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._header = (ctypes.c_int * 4)()
        self._shown = (ctypes.c_int * 11)()
        self._view = (ctypes.c_int * 15)()
        self._draws = (ctypes.c_double * NUM_DRAWS)()

    def header(self, data: bytes) -> tuple[int, ...] | None:
        """Return height, width, orientation, and whether there are restarts; None if the header was declined."""
        made = self._library.read_header(data, ctypes.c_size_t(len(data)), self._header)
        return tuple(self._header) if made else None

    def draws(self, key: tuple[int, int], sample_id: int) -> list[float]:
        """Return the random numbers of a sample."""
        self._library.draw_doubles((ctypes.c_uint64 * 2)(*key), ctypes.c_uint64(sample_id), self._draws, NUM_DRAWS)
        return list(self._draws)

    def random_shown(
        self, crop: RandomResizedCrop, height: int, width: int, draws: Sequence[float]
    ) -> tuple[int, ...] | None:
        """Return box, full size, window and whether to mirror, flat; None if the crop was declined."""
        numbers = (ctypes.c_double * 7)(*(crop_numbers(crop) or ()))
        size, self._draws[:] = (ctypes.c_int * 2)(*crop.output_shape[:2]), list(draws)
        made = self._library.random_shown(numbers, height, width, self._draws, size, self._shown)
        return tuple(self._shown) if made else None

    def center_shown(self, short_side: int, height: int, width: int, size: tuple[int, int]) -> tuple[int, ...] | None:
        """Return what `random_shown` returns."""
        made = self._library.center_shown(short_side, height, width, (ctypes.c_int * 2)(*size), self._shown)
        return tuple(self._shown) if made else None

    def stored_view(self, header: tuple[int, int, int], shown: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of `View` in _decoder.h, without `antialias`."""
        self._header[:], self._shown[:] = [*header, 0], list(shown)
        self._library.stored_view(self._header, self._shown, self._view)
        return tuple(self._view[:14])
