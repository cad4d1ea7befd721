"""A contestant's process: runs an epoch for each number that it reads, and says how long that took.

python -m peers.run MODULE --prepare --data DIR
python -m peers.run MODULE --name NAME --data DIR --output uint8 --batch-size 64 --num-workers 2 --started SECONDS

With `--max-batches` an epoch ends early, and all that was made for it is kept until the next; `--listing` is a list to
read instead of the photographs.
"""

import argparse
import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.race import Output, Race

__all__: list[str] = []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--name")
    parser.add_argument("--output", type=Output)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--num-workers", type=int)
    parser.add_argument("--distribution")
    parser.add_argument("--started", type=float)
    parser.add_argument("--listing", type=Path)
    parser.add_argument("--max-batches", type=int)
    arguments = parser.parse_args()
    module = importlib.import_module(f"peers.{arguments.module}")
    if arguments.prepare:
        if hasattr(module, "prepare"):
            module.prepare(arguments.data)
        return
    race = Race(
        data=arguments.data,
        output=arguments.output,
        batch_size=arguments.batch_size,
        num_workers=arguments.num_workers,
        listing=arguments.listing,
    )
    made = time.time()
    epoch = module.CONTESTANTS[arguments.name](race)
    for line in sys.stdin:
        start, first, num_samples, num_batches = time.perf_counter(), 0.0, 0, 0
        batches = epoch(int(line))
        for num in batches:
            if not num:
                start = time.perf_counter()
                continue
            first = first or time.time()
            num_samples += num
            num_batches += 1
            if num_batches == arguments.max_batches:
                break
        found: dict[str, Any] = {
            "num_samples": num_samples,
            "num_batches": num_batches,
            "seconds": time.perf_counter() - start,
            "first_batch_seconds": first - arguments.started,
            "start_seconds": first - made,
            "version": version(arguments.distribution),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
