"""Iterable datasets for tests. Workers import this module."""

import os
import signal
from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Counting(IterableDataset[int]):
    def __init__(self, num_samples: int = 10) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[int]:
        yield from range(self.num_samples)


class OwnIterator(Counting):
    """Its own iterator, which `__iter__` sets to the begin."""

    def __iter__(self) -> Iterator[int]:
        self.next = 0
        return self

    def __next__(self) -> int:
        self.next += 1
        if self.next > self.num_samples:
            raise StopIteration
        return self.next - 1


class KeepingPosition(Counting):
    """Its iterator is made once."""

    def __init__(self, num_samples: int = 10) -> None:
        super().__init__(num_samples)
        self.numbers = iter(range(num_samples))

    def __iter__(self) -> Iterator[int]:
        return self.numbers


class Sharded(Counting):
    """Each worker yields a part."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(self.num_samples)[info.id :: info.num_workers] if info else range(self.num_samples)

    def __len__(self) -> int:
        return self.num_samples


class Failing(Counting):
    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        raise LookupError("no more")


class Dying(Counting):
    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Counting):
    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        signal.pause()


class Random(Counting):
    def __iter__(self) -> Iterator[float]:  # type: ignore[override]
        for _ in range(self.num_samples):
            yield torch.rand(()).item()
