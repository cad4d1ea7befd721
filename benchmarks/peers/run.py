"""A contestant's process: runs an epoch for each number that it reads, and says how long that took.

python -m peers.run MODULE --prepare --data DIR
python -m peers.run MODULE --name NAME --data DIR --output uint8 --batch-size 64 --num-workers 2 --started SECONDS
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
    )
    epoch = module.CONTESTANTS[arguments.name](race)
    for line in sys.stdin:
        start, first, num_samples = time.perf_counter(), 0.0, 0
        for num in epoch(int(line)):
            if not num:
                start = time.perf_counter()
            first = first or time.time()
            num_samples += num
        found: dict[str, Any] = {
            "num_samples": num_samples,
            "seconds": time.perf_counter() - start,
            "first_batch_seconds": first - arguments.started,
            "version": version(arguments.distribution),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
