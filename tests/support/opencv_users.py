"""Code of users that imports OpenCV when it is called, not before. Run it: it prints what jobs with it make.

python -m tests.support.opencv_users INDEX
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from mpload import MPDataset, MPLoader, RandomResizedCrop, Topology

__all__: list[str] = []


def drawn() -> float:
    import cv2

    return float(cv2.randu(np.empty((2, 1)), 0, 1)[0, 0])  # type: ignore[call-overload]


class Items:
    """Draws a number for each sample, and counts how often it is asked for one."""

    def __init__(self) -> None:
        self.num_asked = [0] * 4

    def __len__(self) -> int:
        return len(self.num_asked)

    def __getitem__(self, number: int) -> list[float]:
        self.num_asked[number] += 1
        return [drawn(), self.num_asked[number]]


class Stream(IterableDataset[list[float]]):
    def __iter__(self) -> Iterator[list[float]]:
        worker = get_worker_info()
        for number in range(3):
            yield [worker.id if worker else 0, number, drawn()]


def shortened(samples: list[int]) -> list[float]:
    """Take a sample out of the list: it must not be called again with the same list."""
    first = samples.pop(0)
    return [first, sum(samples), drawn()]


def collated(samples: list[Any]) -> list[float]:
    return [drawn() for _ in samples[0]]


def collated_with_rng(samples: list[Any], rng: np.random.Generator) -> list[float]:
    return [drawn() for _ in samples[0]]


def transform(image: NDArray[Any]) -> NDArray[Any]:
    return np.array([drawn()])


def batches(dataset: Any, num_workers: int, **options: Any) -> list[Any]:
    with MPLoader(dataset, num_workers=num_workers, **options) as loader:
        return [np.asarray(batch, object).tolist() for batch in loader]


def run(index: str, num_workers: int, seed: int) -> dict[str, list[Any]]:
    """Return what each job makes."""

    def photos(**options: Any) -> MPDataset[Any]:
        crop, here = RandomResizedCrop(32), Topology()
        return MPDataset(index, decode=crop, batch_size=2, shuffle=False, topology=here, seed=seed, **options)

    transformed = [batch[0].tolist() for batch in photos(transform=transform)]
    with MPLoader(photos(transform=transform), num_workers=num_workers) as loader:
        assert transformed == [batch[0].tolist() for batch in loader]
    with MPLoader(Items(), batch_size=1, num_workers=num_workers, seed=seed) as items:
        found = [[column.tolist() for column in batch] for batch in items]
    return {
        "transform": transformed,
        "items": found,
        "stream": batches(Stream(), num_workers, batch_size=None, seed=seed),
        "collate_fn": batches(range(6), num_workers, batch_size=3, collate_fn=shortened, seed=seed),
        "collate": batches(photos(collate=collated), num_workers),
        "collate, beside rng": batches(photos(collate=collated_with_rng), num_workers),
    }


if __name__ == "__main__":
    print(json.dumps([run(sys.argv[1], num_workers, seed) for num_workers in (1, 2) for seed in (3, 4)]))
