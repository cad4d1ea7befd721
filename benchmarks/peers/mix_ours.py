"""mpload's Mixture."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import mpload
from peers.mix import BATCH_SIZE, EPOCH_SAMPLES, SOURCES, Feed, Mix, number_of

__all__ = ["FEEDS", "prepare"]


def prepare(data: Path, lengths: dict[str, int]) -> None:
    """Write an index for each source."""
    for source, (name, length) in enumerate(lengths.items()):
        numbers = range(number_of(source, 0), number_of(source, length))
        (data / f"{name}.txt").write_text("#mpload 1\n#columns n:int\n" + "".join(f"{each}\n" for each in numbers))
        mpload.open_index(data / f"{name}.txt")


def start(mix: Mix) -> Feed:
    weights = {str(mix.data / f"{name}.txt"): weight for name, (_, weight) in SOURCES.items()}
    mixture = mpload.Mixture(weights, epoch_samples=EPOCH_SAMPLES)
    dataset: mpload.MPDataset = mpload.MPDataset(
        mixture, batch_size=BATCH_SIZE, shuffle=True, seed=mix.seed, as_dict=True
    )
    loader = mpload.MPLoader(dataset, num_workers=mix.num_workers)
    if mix.state is not None:
        loader.load_state_dict(mix.state)

    def batches() -> Iterator[NDArray[np.int64]]:
        while True:
            for batch in loader:
                yield batch["n"].numpy().copy()

    return Feed(batches=batches(), state=loader.state_dict)


FEEDS = {"mpload": start}
