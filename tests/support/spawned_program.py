"""A script that trains in a process spawned by `torch.multiprocessing`: what it defines must reach the workers."""

import sys
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch.multiprocessing.spawn import spawn
from torch.utils.data import Dataset

from mpload import MPDataset, MPLoader, Topology
from tests.support.decoders import number_in

T = TypeVar("T")


class Pair(NamedTuple):
    """A sample."""

    number: int
    square: int


@lru_cache
def squared(number: int) -> int:
    """Return the square of a number."""
    return number * number


class Pairs(Dataset[Pair], Generic[T]):
    """Has samples of a class of the script."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Pair:
        return Pair(number, squared(number))


class Key(NamedTuple):
    """What a sampler of the script asks for."""

    number: int


class ByKey(Pairs[int]):
    """Takes the keys of the script."""

    def __getitem__(self, key: Any) -> Pair:
        return Pair(key.number, squared(key.number))


def as_list(samples: list[Pair]) -> list[Pair]:
    """Return a batch that only a `collate_fn` makes."""
    return [Pair(*sample) for sample in samples]


def plus_one(array: Any) -> Any:
    """Transform a sample of an index."""
    return array + 1


def main(_: int, index: str) -> None:
    """Print what the loaders of the spawned process yield."""
    options: Any = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "spawn", "topology": Topology()}
    with MPLoader(Pairs[int](), **options) as loader:
        batches = list(loader)
    print({type(batch) is Pair for batch in batches}, [batch.square.tolist() for batch in batches])
    with MPLoader(Pairs[int](), collate_fn=as_list, **options) as loader:
        pairs = [pair for batch in loader for pair in batch]
    print({type(pair) is Pair for pair in pairs}, [pair.square for pair in pairs])
    del options["topology"]
    with MPLoader(ByKey(), sampler=[Key(3), Key(5)], **options) as loader:
        print([batch.square.tolist() for batch in loader])
    dataset = MPDataset(index, decode=number_in, transform=plus_one, batch_size=2, topology=Topology())
    with MPLoader(dataset, num_workers=1) as loader:
        print(np.concatenate([numbers for numbers, _ in loader]).ravel().tolist())


if __name__ == "__main__":
    spawn(main, args=(sys.argv[1],))  # type: ignore[no-untyped-call,unused-ignore]
