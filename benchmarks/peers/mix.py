"""What the contestants of `bench_mixture_peers.py` share: three sources of different size, and how they are mixed.

A sample is an integer that says its source and its number there. Each contestant reads it from files of its own format.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BATCH_SIZE", "EPOCH_SAMPLES", "SOURCES", "STRIDE", "Feed", "Mix", "number_of", "source_lengths"]

SOURCES = {"large": (10_000, 0.7), "middle": (1_000, 0.2), "small": (72, 0.1)}
"""Name -> number of samples, and weight."""
BATCH_SIZE = 64
EPOCH_SAMPLES = 11_072  # of all sources together: 173 batches
STRIDE = 10**8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What a contestant is asked for."""

    data: Path
    """The folder that its `prepare` has written."""
    num_workers: int
    seed: int
    state: Any = None
    """What `Feed.state` of an earlier process returned, if the run goes on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The batches of a contestant without end, epoch after epoch, each as int64 [n]."""

    batches: Iterator[NDArray[np.int64]]
    state: Callable[[], Any]
    """Returns a state after the batches that were received, which can be pickled."""


def number_of(source: int, row: int) -> int:
    """Return the sample of a source."""
    return source * STRIDE + row


def source_lengths(scale: int) -> dict[str, int]:
    """Return the length of each source; the large one is `scale` times as long."""
    return {name: length * (scale if name == "large" else 1) for name, (length, _) in SOURCES.items()}
