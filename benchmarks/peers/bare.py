"""A plain loop instead of a loader: it opens, reads and closes one file after the other."""

import random
from collections.abc import Iterator
from pathlib import Path

from peers.race import Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


def start(race: Race) -> Epoch:
    if race.output is not Output.BYTES:
        raise SystemExit("the bare loop reads bytes only")
    samples = paths_and_labels(race)

    def epoch(number: int) -> Iterator[Batch]:
        order = list(samples)
        random.Random(number).shuffle(order)
        for first in range(0, len(order), race.batch_size):
            paths, labels = zip(*order[first : first + race.batch_size], strict=True)
            yield [Path(path).read_bytes() for path in paths], labels

    return epoch


CONTESTANTS: dict[str, Contestant] = {"bare loop": Contestant(start=start, library=None)}
