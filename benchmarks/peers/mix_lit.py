"""litData's CombinedStreamingDataset over its own chunks."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
from numpy.typing import NDArray

from peers.mix import BATCH_SIZE, SOURCES, Feed, Mix, number_of

__all__ = ["FEEDS", "prepare"]


def prepare(data: Path, lengths: dict[str, int]) -> None:
    """Write the chunks of each source."""
    for source, (name, length) in enumerate(lengths.items()):
        litdata.optimize(
            fn=partial(number_of, source),
            inputs=list(range(length)),
            output_dir=str(data / name),
            chunk_size=max(16, length // 8),
            num_workers=1,
        )


def start(mix: Mix) -> Feed:
    datasets = [litdata.StreamingDataset(str(mix.data / name), shuffle=True, seed=mix.seed) for name in SOURCES]
    weights = [weight for _, weight in SOURCES.values()]
    combined = litdata.CombinedStreamingDataset(datasets, seed=mix.seed, weights=weights, iterate_over_all=False)
    loader: Any = litdata.StreamingDataLoader(combined, batch_size=BATCH_SIZE, num_workers=mix.num_workers)
    if mix.state is not None:
        loader.load_state_dict(mix.state)

    def batches() -> Iterator[NDArray[np.int64]]:
        while True:
            for batch in loader:
                yield batch.numpy()

    return Feed(batches=batches(), state=loader.state_dict)


FEEDS = {"litData, CombinedStreamingDataset": start}
