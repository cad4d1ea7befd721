"""WebDataset's RandomMix over tar shards."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

from peers.mix import BATCH_SIZE, SOURCES, Feed, Mix, number_of

__all__ = ["FEEDS", "prepare"]

NUM_SHARDS = 4  # of each source: every worker needs one


def prepare(data: Path, lengths: dict[str, int]) -> None:
    """Write the shards of each source."""
    for source, (name, length) in enumerate(lengths.items()):
        pattern = str(data / f"{name}-%03d.tar")
        with webdataset.ShardWriter(pattern, maxcount=-(-length // NUM_SHARDS), verbose=0) as writer:
            for row in range(length):
                writer.write({"__key__": f"{row:09d}", "cls": number_of(source, row)})


def start(mix: Mix) -> Feed:
    random.seed(mix.seed)
    sources = [
        webdataset.WebDataset(
            sorted(str(path) for path in mix.data.glob(f"{name}-*.tar")), shardshuffle=NUM_SHARDS, seed=mix.seed
        )
        .repeat()
        .shuffle(1000)
        .decode()
        .to_tuple("cls")
        for name in SOURCES
    ]
    mixed = webdataset.RandomMix(sources, [weight for _, weight in SOURCES.values()])
    batched = webdataset.DataPipeline(mixed, webdataset.batched(BATCH_SIZE, collation_fn=as_array))
    loader = webdataset.WebLoader(batched, batch_size=None, num_workers=mix.num_workers)
    return Feed(batches=iter(loader), state=no_state)


def as_array(samples: list[tuple[int]]) -> Any:
    return np.array([number for (number,) in samples], np.int64)


def no_state() -> Any:
    raise NotImplementedError("it has no state")


FEEDS = {"WebDataset, RandomMix": start}
