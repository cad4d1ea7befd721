"""Grain, Google's loader for JAX: its worker processes over a list of paths."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import numpy as np

from peers.crops import crop_with
from peers.race import MEAN, STD, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]

AHEAD = 2
"""Batches that each process has ready."""


def grains(library: str) -> Contestant:
    def start(race: Race) -> Epoch:
        crop = crop_with(library, race.output)
        samples = paths_and_labels(race)
        mean, scale = 255 * np.array(MEAN, np.float32), 1 / (255 * np.array(STD, np.float32))

        def make(sample: tuple[str, int]) -> Any:
            path, label = sample
            made = crop(Path(path).read_bytes())
            if race.output is Output.FLOAT32:
                made = (made.astype(np.float32) - mean) * scale
            return made, label

        def collate(made: Any) -> Any:
            return list(made)

        batches = grain.MapDataset.source(samples).shuffle(seed=0).map(make)
        if race.output is Output.BYTES:
            batches = batches.batch(race.batch_size, batch_fn=collate)
        else:
            batches = batches.batch(race.batch_size)
        num_batches = len(batches)
        read_options = grain.ReadOptions(num_threads=1 if race.num_workers else 2, prefetch_buffer_size=AHEAD)
        iterable = batches.repeat().to_iter_dataset(read_options)
        if race.num_workers:
            iterable = iterable.mp_prefetch(grain.MultiprocessingOptions(num_workers=race.num_workers))
        iterator = iter(iterable)  # one for all epochs: starting its processes takes seconds

        def epoch(number: int) -> Iterator[int]:
            if number:  # what was made while others had their turn
                for _ in islice(iterator, (AHEAD + 3) * max(1, race.num_workers)):
                    pass
            yield 0
            for batch in islice(iterator, num_batches):
                yield len(batch) if race.output is Output.BYTES else len(batch[1])

        return epoch

    return start


CONTESTANTS: dict[str, Contestant] = {"Grain, OpenCV": grains("albumentations")}
