"""Grain's MapDataset.mix over ArrayRecord files."""

from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from peers.mix import BATCH_SIZE, SOURCES, Feed, Mix, number_of

__all__ = ["FEEDS", "prepare"]


def prepare(data: Path, lengths: dict[str, int]) -> None:
    """Write a file for each source."""
    for source, (name, length) in enumerate(lengths.items()):
        writer = ArrayRecordWriter(str(data / f"{name}.array_record"), "group_size:1")
        for row in range(length):
            writer.write(str(number_of(source, row)).encode())
        writer.close()


def start(mix: Mix) -> Feed:
    sources = [
        grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(mix.data / f"{name}.array_record")))
        .seed(mix.seed + number)
        .shuffle()
        .repeat()
        .map(int)
        for number, name in enumerate(SOURCES)
    ]
    mixed = grain.MapDataset.mix(sources, weights=[weight for _, weight in SOURCES.values()])
    dataset: Any = mixed.batch(BATCH_SIZE, batch_fn=lambda samples: np.array(samples, np.int64)).to_iter_dataset()
    if mix.num_workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=mix.num_workers))
    iterator = iter(dataset)
    if mix.state is not None:
        iterator.set_state(mix.state)
    return Feed(batches=iterator, state=iterator.get_state)


FEEDS = {"Grain, mix": start}
