"""Samples without cost, which show the cost of transport. Workers import this module, so it imports little."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["EmptyDecoder", "SameSample", "write_empty_index"]

_NUM_LINES = 1 << 16


@dataclass(frozen=True, slots=True)
class EmptyDecoder:
    """A decoder that writes nothing. Every sample has this shape and dtype."""

    output_shape: tuple[int, ...]
    output_dtype: DTypeLike = "uint8"

    def __call__(self, data: bytes, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return `out` as it is, or zeros if there is no `out`."""
        del data
        return np.zeros(self.output_shape, self.output_dtype) if out is None else out


@dataclass(frozen=True, slots=True)
class SameSample:
    """A map-style dataset whose samples are all the same object."""

    sample: Any
    num_samples: int

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> Any:
        return self.sample


def write_empty_index(folder: Path) -> Path:
    """Write an index whose samples are all the same tiny file. Return its path."""
    (folder / "sample").write_bytes(b"0")
    path = folder / "empty.txt"
    path.write_text("#mpload 1\n#columns image:path label:int\n" + "sample\t0\n" * _NUM_LINES, encoding="ascii")
    return path
