"""Grain over a mapped array: batches of row numbers, and one gather for each batch."""

from typing import Any

import grain
import numpy as np

from peers.grains import epochs_of
from peers.race import Batch, Contestant, Epoch, Race
from peers.rows import mapped_rows

__all__ = ["CONTESTANTS"]


def start(race: Race) -> Epoch:
    rows, labels = mapped_rows(race.data)

    def gather(ids: Any) -> Batch:
        return rows[ids], labels[ids]

    batches = grain.MapDataset.range(len(rows)).shuffle(seed=0).batch(race.batch_size, batch_fn=np.array).map(gather)
    return epochs_of(batches, race)


CONTESTANTS: dict[str, Contestant] = {"Grain": Contestant(start=start, library=None)}
