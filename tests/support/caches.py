"""Datasets with a PartialCache, and helpers to read them and look into their caches."""

import random
from pathlib import Path
from typing import Any

from mpload import MPDataset, PartialCache, RawBytes, Topology
from mpload.samples.cache.folder import segment_name
from mpload.samples.cache.opened import OpenCache

NUM_FILES = 120


def raw(index: Path, cache: PartialCache | None, **options: Any) -> MPDataset:
    return MPDataset(
        index, decode=RawBytes(), batch_size=8, tail="ragged", shuffle=True, topology=Topology(), cache=cache, **options
    )


def opened(dataset: MPDataset) -> OpenCache:
    assert dataset._run.cache is not None
    return dataset._run.cache


def sources(index: Path) -> list[bytes]:
    return [(index.parent / "data" / f"{number}.bin").read_bytes() for number in range(NUM_FILES)]


def read_epoch(dataset: MPDataset) -> list[bytes]:
    """Read an epoch and return the samples' bytes, ordered by sample number."""
    found: dict[int, bytes] = {}
    for data, labels in dataset:
        found.update(zip(labels.tolist(), data, strict=True))
    return [found[number] for number in sorted(found)]


def num_held(cache: OpenCache, num_samples: int) -> int:
    return sum(map(cache.holds, range(num_samples)))


def segments(cache: OpenCache) -> list[Path]:
    return [cache.folder.path / segment_name(number) for number in cache.folder.segments()]


def overwrite(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        for _ in range(40):
            file.seek(rng.randrange(path.stat().st_size))
            file.write(rng.randbytes(rng.randrange(1, 64)))
