"""Grain over a mapped array: batches of row numbers, and one gather for each batch."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import grain
import numpy as np

from peers.race import Batch, Contestant, Epoch, Race
from peers.rows import mapped_rows

__all__ = ["CONTESTANTS"]

AHEAD = 2
"""Number of batches that each process prefetches."""


def start(race: Race) -> Epoch:
    rows, labels = mapped_rows(race.data)

    def gather(ids: Any) -> Batch:
        return rows[ids], labels[ids]

    batches = grain.MapDataset.range(len(rows)).shuffle(seed=0).batch(race.batch_size, batch_fn=np.array).map(gather)
    num_batches = len(batches)
    read_options = grain.ReadOptions(num_threads=1 if race.num_workers else 2, prefetch_buffer_size=AHEAD)
    iterable = batches.repeat().to_iter_dataset(read_options)
    if race.num_workers:
        iterable = iterable.mp_prefetch(grain.MultiprocessingOptions(num_workers=race.num_workers))
    iterator = iter(iterable)  # one for all epochs: starting its processes takes seconds

    def epoch(number: int) -> Iterator[Batch | None]:
        if number:  # discard the batches made while others had their turn
            for _ in islice(iterator, (AHEAD + 3) * max(1, race.num_workers)):
                pass
        yield None
        yield from islice(iterator, num_batches)

    return epoch


CONTESTANTS: dict[str, Contestant] = {"Grain": Contestant(start=start, library=None)}
