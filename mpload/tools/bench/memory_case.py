"""One case of `mpload bench memory`, run in a process of its own: read a list of samples with a loader.

Prints a line of JSON for the first batch, for each epoch, and when all epochs are done. It then keeps its memory, so
that it can be measured, until stdin is closed. No file of the list is opened, and nothing is decoded.
"""

import json
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from mpload.loader.dataset import MPDataset
from mpload.loader.loader import MPLoader
from mpload.plan.topology import Topology
from mpload.tools.bench.sample_lists import NoFiles
from mpload.tools.doctor.empty import EmptyDecoder

__all__ = ["LOADERS", "run"]

_BATCH_SIZE = 256


class _Listed(Dataset[tuple[str, int]]):
    """The usual dataset: a list with a tuple of path and label for each sample."""

    def __init__(self, path: Path) -> None:
        self.samples = _read(path)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[str, int]:
        return self.samples[number]


class _Serialised(Dataset[tuple[str, int]]):
    """The usual remedy: all samples pickled into one array, which has a single reference count."""

    def __init__(self, path: Path) -> None:
        pickled = [np.frombuffer(pickle.dumps(sample, -1), np.uint8) for sample in _read(path)]
        self.ends = np.cumsum([len(sample) for sample in pickled])
        self.bytes = np.concatenate(pickled)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> tuple[str, int]:
        start = self.ends[number - 1] if number else 0
        sample: tuple[str, int] = pickle.loads(self.bytes[start : self.ends[number]].data)  # noqa: S301  pickled by this class
        return sample


def _read(path: Path) -> list[tuple[str, int]]:
    with path.open(encoding="utf-8") as file:
        cells = (line.rstrip("\n").split("\t") for line in file if not line.startswith("#"))
        return [(name, int(label)) for name, label in cells]


def _columns(samples: list[tuple[str, int]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    paths, labels = zip(*samples, strict=True)
    return paths, labels


def _stock(dataset: Dataset[Any], num_workers: int, start_method: str) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=_BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=_columns,
        multiprocessing_context=start_method if num_workers else None,
        persistent_workers=num_workers > 0,
    )


def _dataset(path: Path) -> MPDataset:
    black = EmptyDecoder(output_shape=(1, 1, 3))
    return MPDataset(path, decode=black, storage=NoFiles(), batch_size=_BATCH_SIZE, shuffle=True, topology=Topology())


def _iterated(path: Path, num_workers: int) -> DataLoader[Any]:
    return DataLoader(_dataset(path), batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0)


LOADERS: dict[str, Callable[[Path, int], Iterable[Any]]] = {
    "list-fork": lambda path, num_workers: _stock(_Listed(path), num_workers, "fork"),
    "list-spawn": lambda path, num_workers: _stock(_Listed(path), num_workers, "spawn"),
    "numpy-fork": lambda path, num_workers: _stock(_Serialised(path), num_workers, "fork"),
    "mpdataset": _iterated,
    "mploader": lambda path, num_workers: MPLoader(_dataset(path), num_workers=num_workers),
}


def run(name: str, path: Path, *, num_workers: int, num_epochs: int, max_seconds: float) -> None:
    """Make the list and its loader, and iterate. Start another epoch only if it should end within `max_seconds`."""
    started = time.perf_counter()
    loader = LOADERS[name](path, num_workers)
    with loader if isinstance(loader, MPLoader) else nullcontext():
        for _ in range(num_epochs):
            num_samples, epoch_started = 0, time.perf_counter()
            for batch in loader:
                if not num_samples:
                    _tell(first_batch_seconds=time.perf_counter() - started)
                num_samples += len(batch[0])
            now = time.perf_counter()
            _tell(epoch_seconds=now - epoch_started, num_samples_seen=num_samples)
            if now - started + now - epoch_started > max_seconds:
                break
        _tell(done=True)
        sys.stdin.read()


def _tell(**event: float) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    _, _name, _path, *_numbers = sys.argv
    _num_workers, _num_epochs, _max_seconds = map(float, _numbers)
    run(_name, Path(_path), num_workers=int(_num_workers), num_epochs=int(_num_epochs), max_seconds=_max_seconds)
