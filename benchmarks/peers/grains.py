"""Grain, Google's loader for JAX: worker processes over a list of paths."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grain

from peers.crops import as_columns, crop_with, finished
from peers.race import Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS", "epochs_of"]

AHEAD = 2
"""Number of batches that each process prefetches."""


def epochs_of(batches: Any, race: Race) -> Epoch:
    """Return the epochs of a dataset of batches, made by as many worker processes as the race has."""
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


def grains(library: str) -> Contestant:
    def start(race: Race) -> Epoch:
        crop = crop_with(library, race.output)
        samples = paths_and_labels(race)
        os.environ["OMP_NUM_THREADS"] = "1"  # for torch, which normalises in each worker process

        def make(sample: tuple[str, int]) -> Any:
            path, label = sample
            made = crop(Path(path).read_bytes())
            return (made if race.output is Output.BYTES else finished(made, race.output)), label

        batches = grain.MapDataset.source(samples).shuffle(seed=0).map(make)
        if race.output is Output.BYTES:
            batches = batches.batch(race.batch_size, batch_fn=as_columns)
        else:
            batches = batches.batch(race.batch_size)
        return epochs_of(batches, race)

    return Contestant(start=start, library=library)


CONTESTANTS: dict[str, Contestant] = {"Grain, simplejpeg": grains("simplejpeg")}
