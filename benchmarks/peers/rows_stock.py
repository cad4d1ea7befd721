"""torch's own DataLoader over a mapped array: a sampler of batches, and one gather for each batch."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from peers.race import Batch, Contestant, Epoch, Race
from peers.rows import mapped_rows

__all__ = ["CONTESTANTS", "on_loader"]


class Batches:
    """Samples whole batches in random order."""

    def __init__(self, num_samples: int, batch_size: int) -> None:
        self.num_samples = num_samples
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(self.num_samples / self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        yield from torch.split(torch.randperm(self.num_samples), self.batch_size)


class Rows(Dataset[Any]):
    """The rows of a batch, gathered by NumPy."""

    def __init__(self, race: Race) -> None:
        self.rows, self.labels = mapped_rows(race.data)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, ids: Any) -> Batch:
        return torch.from_numpy(self.rows[ids.numpy()]), torch.from_numpy(self.labels[ids.numpy()])


class SharedRows(Rows):
    """The same, gathered straight into the shared memory in which a worker passes it on."""

    def __getitem__(self, ids: Any) -> Batch:
        shape = (len(ids), *self.rows.shape[1:])
        if get_worker_info() is None:
            images = torch.empty(shape, dtype=torch.uint8)
        else:
            new_shared: Any = torch.UntypedStorage._new_shared  # noqa: SLF001  as torch's default_collate does
            shared = new_shared(math.prod(shape))
            images = torch.empty(0, dtype=torch.uint8).set_(shared).view(shape)
        np.take(self.rows, ids.numpy(), axis=0, out=images.numpy(), mode="clip")
        return images, torch.from_numpy(self.labels[ids.numpy()])


def on_loader(dataset: Callable[[Race], Any]) -> Contestant:
    """Return the contestant that reads a map-style dataset, whose items are batches, in a DataLoader."""

    def start(race: Race) -> Epoch:
        rows = dataset(race)
        loader: DataLoader[Any] = DataLoader(
            rows,
            sampler=Batches(len(rows), race.batch_size),
            batch_size=None,
            num_workers=race.num_workers,
            persistent_workers=race.num_workers > 0,
        )

        def epoch(number: int) -> Iterator[Batch]:
            del number
            for images, labels in loader:
                yield images.movedim(-1, -3), labels

        return epoch

    return Contestant(start=start, library=None)


CONTESTANTS: dict[str, Contestant] = {
    "DataLoader, NumPy gather": on_loader(Rows),
    "DataLoader, NumPy gather into shared memory": on_loader(SharedRows),
}
