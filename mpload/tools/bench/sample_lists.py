"""Lists of samples of any length. Their files are never opened, so that only the list takes memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mpload.storage.ranges import ByteRange

__all__ = ["LINE_BYTES", "NoFiles", "write_list"]

_LINE = b"n0000/000000000.JPEG\t100\n"
LINE_BYTES: Final = len(_LINE)
_BLOCK_SAMPLES = 1 << 20


def write_list(path: Path, num_samples: int, *, columns: str = "image:path label:int") -> None:
    """Write an index with lines of equal length. A path contains its sample's number; a label has three digits."""
    with path.open("wb") as file:
        file.write(f"#mpload 1\n#columns {columns}\n".encode())
        for start in range(0, num_samples, _BLOCK_SAMPLES):
            numbers = np.arange(start, min(start + _BLOCK_SAMPLES, num_samples))
            lines = np.tile(np.frombuffer(_LINE, np.uint8), (len(numbers), 1))
            _write_digits(lines[:, 1:5], numbers % 900)
            _write_digits(lines[:, 6:15], numbers)
            _write_digits(lines[:, 21:24], numbers % 900 + 100)
            file.write(lines.tobytes())


class NoFiles:
    """A storage whose files are all empty."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return empty bytes for each range."""
        return [b""] * len(ranges)


def _write_digits(cells: NDArray[np.uint8], numbers: NDArray[np.int64]) -> None:
    for place in range(cells.shape[1]):
        cells[:, -1 - place] = ord("0") + numbers // 10**place % 10
