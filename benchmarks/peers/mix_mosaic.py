"""mosaicml-streaming's Streams over its own shards."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from peers.mix import BATCH_SIZE, EPOCH_SAMPLES, SOURCES, Feed, Mix, number_of

__all__ = ["FEEDS", "prepare"]


def prepare(data: Path, lengths: dict[str, int]) -> None:
    """Write the shards of each source."""
    for source, (name, length) in enumerate(lengths.items()):
        with MDSWriter(out=str(data / name), columns={"n": "int"}, size_limit=1 << 16) as writer:
            for row in range(length):
                writer.write({"n": number_of(source, row)})


def feed(**options: Any) -> Callable[[Mix], Feed]:
    def start(mix: Mix) -> Feed:
        clean_stale_shared_memory()
        streams = [Stream(local=str(mix.data / name), proportion=weight) for name, (_, weight) in SOURCES.items()]
        dataset = StreamingDataset(
            streams=streams,
            epoch_size=EPOCH_SAMPLES,
            batch_size=BATCH_SIZE,
            shuffle=True,
            shuffle_algo="py1br",  # of its algorithms, the one that mixed these sources best
            shuffle_seed=mix.seed,
            num_canonical_nodes=1,
            **options,
        )
        loader: Any = StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=mix.num_workers)
        if mix.state is not None:
            loader.load_state_dict(mix.state)

        def batches() -> Iterator[NDArray[np.int64]]:
            while True:
                for batch in loader:
                    yield batch["n"].numpy()

        return Feed(batches=batches(), state=loader.state_dict)

    return start


FEEDS = {
    "mosaicml-streaming, Stream(proportion=)": feed(),
    "mosaicml-streaming, stratified batches": feed(batching_method="stratified"),
}
