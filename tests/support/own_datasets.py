"""Datasets of a user, which `mpload doctor` examines as they are. Workers import this module, so it imports little."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload import ErrorPolicy, MPDataset, PartialCache, RandomResizedCrop

__all__ = ["as_doubles", "cached", "empty", "gaps", "mapped", "of_none", "tolerant"]


class Photos:
    """A map-style dataset whose samples take 20 ms of waiting."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, number: int) -> Any:
        time.sleep(0.02)
        return np.full((8, 8), number, np.float64), number


class Gaps:
    """A map-style dataset, every third sample of which is missing."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, number: int) -> Any:
        return {each: each for each in range(100) if each % 3}[number]


class Alike:
    """A map-style dataset of samples that are all the same."""

    def __init__(self, sample: Any, *, num_samples: int) -> None:
        self.sample = sample
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> Any:
        return self.sample


mapped, gaps, empty, of_none = Photos(), Gaps(), Alike(0, num_samples=0), Alike(None, num_samples=10)


def as_doubles(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return eight times as many bytes."""
    return image.astype(np.float64)


def _index() -> Path:
    return Path(os.environ["MPLOAD_TEST_INDEX"])


def cached() -> MPDataset:
    """Return a dataset with a cache."""
    cache = PartialCache(_index().with_name("cache"), fraction=0.5)
    return MPDataset(_index(), decode=RandomResizedCrop(32), batch_size=4, shuffle=True, cache=cache)


def tolerant() -> MPDataset:
    """Return a dataset that goes on if a few samples are broken."""
    policy = ErrorPolicy(action="substitute", report=_index().with_name("bad.jsonl"), max_error_fraction=0.9)
    return MPDataset(_index(), decode=RandomResizedCrop(32), batch_size=4, shuffle=True, on_error=policy)
