"""The rows that all contestants of `bench_arrays.py` read: images uint8 [n, 32, 32, 3] and labels int64 [n]."""

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SHAPE", "mapped_rows", "write_rows"]

SHAPE = (32, 32, 3)


def write_rows(data: Path, num_samples: int) -> None:
    """Write random rows to `rows.npy` and their labels to `labels.npy`, unless they are there."""
    if (data / "labels.npy").exists():
        return
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(data / "rows.npy", mode="w+", dtype=np.uint8, shape=(num_samples, *SHAPE))
    for first in range(0, num_samples, 10_000):
        part = rows[first : first + 10_000]
        part[:] = rng.integers(256, size=part.shape, dtype=np.uint8)
    rows.flush()
    np.save(data / "labels.npy", np.arange(num_samples) % 10)


def mapped_rows(data: Path) -> tuple[Any, Any]:
    """Return the rows, mapped into memory, and the labels."""
    return np.load(data / "rows.npy", mmap_mode="r"), np.load(data / "labels.npy")
