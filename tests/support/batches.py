"""Datasets of numbers and of crops, and helpers to read and compare their batches."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpload import Index, MPDataset, RandomResizedCrop, Topology
from tests.support.decoders import number_in

Batches = list[list[int]]


def numbers_index(folder: Path, num_samples: int) -> Path:
    """Write an index of spans; the bytes of each are its sample's number."""
    path = folder / f"{num_samples}.txt"
    if not path.exists():
        (folder / f"{num_samples}.bin").write_bytes(np.arange(num_samples, dtype=np.int64).tobytes())
        lines = [f"{8 * i}+8@{num_samples}.bin\t{i}\n" for i in range(num_samples)]
        path.write_text("#mpload 1\n#columns number:span label:int\n" + "".join(lines))
    return path


def numbers(folder: Path, num_samples: int, **options: Any) -> MPDataset:
    options = {"batch_size": 4, "shuffle": True, "seed": 7, "topology": Topology(), **options}
    return MPDataset(numbers_index(folder, num_samples), decode=number_in, **options)


def crops(index: Path | Index, **options: Any) -> MPDataset:
    options = {"batch_size": 4, "shuffle": True, "topology": Topology(), **options}
    return MPDataset(index, decode=RandomResizedCrop(64), **options)


def ids(batches: Any) -> Batches:
    """Return the labels of each batch, after checking that they equal its decoded numbers."""
    found = []
    for values, labels in batches:
        assert isinstance(labels, torch.Tensor)
        if len(labels):
            assert values[:, 0].tolist() == labels.tolist()
        found.append(labels.tolist())
    return found


def flat(batches: Batches) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(itertools.starmap(same, zip(a, b, strict=True)))
    return bool(a == b)


def plain(batches: Any) -> list[tuple[list[bytes], list[int]]]:
    """Return the data and labels of each batch as lists."""
    return [(data, labels.tolist()) for data, labels in batches]
