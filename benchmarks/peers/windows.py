"""The process of a contestant over a network: it makes batches without end, and times windows of them.

python -m peers.windows MODULE --name NAME --data DIR --output uint8 --batch-size 64 --num-workers 2

Each line of standard input, "DISCARDED SECONDS", asks for a window: so many batches are discarded first, since a loader
has made some while others had their turn, and then batches are counted for so many seconds. The first answer has the
facts of the batches that were discarded.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path

from peers.look import Look
from peers.race import Batch, Epoch, Output, Race

__all__: list[str] = []


def endless(epoch: Epoch) -> Iterator[Batch]:
    """Yield the batches of one epoch after another."""
    return (batch for batch in chain.from_iterable(map(epoch, count())) if batch is not None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--output", type=Output, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--distribution", required=True)
    parser.add_argument("--started", type=float)
    arguments = parser.parse_args()
    race = Race(
        data=arguments.data,
        output=arguments.output,
        batch_size=arguments.batch_size,
        num_workers=arguments.num_workers,
    )
    module = importlib.import_module(f"peers.{arguments.module}")
    batches = endless(module.CONTESTANTS[arguments.name].start(race))
    look: Look | None = Look(race.output)
    for line in sys.stdin:
        num_discarded, seconds = line.split()
        for _ in range(int(num_discarded)):
            batch = next(batches)
            if look is not None:
                look.first_epoch(batch)
            del batch  # the loader may be waiting for its memory
        start, taken, num_samples = time.perf_counter(), 0.0, 0
        while taken < float(seconds):
            num_samples += len(next(batches)[1])
            taken = time.perf_counter() - start
        found = {
            "num_samples": num_samples,
            "seconds": taken,
            "version": version(arguments.distribution),
            "looked": look and look.facts(),
        }
        look = None
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
