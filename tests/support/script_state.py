"""A script whose transforms and datasets depend on what it has set, and on tensors that it shares with workers.

python script_state.py CASE INDEX [STRATEGY]

It prints what workers that are no forks make of it.
"""

import sys
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from mpload import MPDataset, MPLoader, RawBytes, Topology


@lru_cache(maxsize=5)
def table(number: int) -> int:
    return number if number < 2 else table(number - 1) + table(number - 2)


def with_cache(data: bytes) -> np.ndarray[Any, Any]:
    return np.array([table(20), table.cache_parameters()["maxsize"]])


class Prepared:
    """Has a property that is computed once, and a method with a cache."""

    @cached_property
    def offset(self) -> int:
        return 7

    @lru_cache  # noqa: B019  as users write it
    def scaled(self, number: int) -> int:
        return 3 * number

    def __call__(self, data: bytes) -> np.ndarray[Any, Any]:
        return np.array([self.offset, self.scaled(2)])


def with_dtype(data: bytes) -> np.ndarray[Any, Any]:
    return torch.ones(1).numpy()


def with_flags(data: bytes) -> np.ndarray[Any, Any]:
    from PIL import Image, ImageFile

    return np.array([ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS == 123])


class Shared(Dataset[int]):
    """Counts its samples in shared memory, and returns a number that the script changes between epochs."""

    def __init__(self) -> None:
        self.counts = torch.zeros(8, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self.same_counts = self.counts[2:]
        self.number = torch.zeros((), dtype=torch.int32).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.counts[index] += 1
        return int(self.number)


def shared() -> None:
    dataset = Shared()
    with MPLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="spawn") as loader:
        for epoch in range(3):
            dataset.number.fill_(epoch)
            found = {number for batch in loader for number in batch.tolist()}
            counts = dataset.counts.tolist()
            print(sorted(found), min(counts) > epoch, dataset.same_counts.tolist() == counts[2:])


def main(case: str, index: str, strategy: str = "file_descriptor") -> None:
    torch.multiprocessing.set_sharing_strategy(strategy)  # type: ignore[no-untyped-call]
    if case == "shared":
        shared()
        return
    if case == "dtype":
        torch.set_default_dtype(torch.float64)
    if case == "flags":
        from PIL import Image, ImageFile

        ImageFile.LOAD_TRUNCATED_IMAGES = True
        Image.MAX_IMAGE_PIXELS = 123
    transforms: dict[str, Any] = {"cache": with_cache, "property": Prepared(), "dtype": with_dtype, "flags": with_flags}
    dataset = MPDataset(index, decode=RawBytes(), transform=transforms[case], batch_size=2, topology=Topology())
    with MPLoader(dataset, num_workers=1) as loader:
        data, _ = next(iter(loader))
        print(data.dtype, data.tolist()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
