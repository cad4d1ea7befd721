"""The process of a contestant: for each number on standard input it runs that epoch, and prints its time and facts.

python -m peers.run MODULE --prepare --data DIR
python -m peers.run MODULE --name NAME --data DIR --output uint8 --batch-size 64 --num-workers 2 --started SECONDS

`--prepare` writes the files that the contestants of MODULE read, and MODULE.codecs with the decoder of each. Every
batch of epoch 0 is checked, and the answer includes the facts found. With `--max-batches` an epoch ends early, and its
iterator is kept until the next epoch. `--listing` is a list to read instead of the photographs.
"""

import argparse
import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers.codecs import codec
from peers.look import Look
from peers.race import Output, Race

__all__: list[str] = []


def prepare(module: Any, name: str, data: Path) -> None:
    if hasattr(module, "prepare"):
        module.prepare(data)
    codecs = {name: codec(each.library) if each.library else "" for name, each in module.CONTESTANTS.items()}
    (data / f"{name}.codecs").write_text(json.dumps(codecs), encoding="utf-8")


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
        prepare(module, arguments.module, arguments.data)
        return
    race = Race(
        data=arguments.data,
        output=arguments.output,
        batch_size=arguments.batch_size,
        num_workers=arguments.num_workers,
        listing=arguments.listing,
    )
    made = time.time()
    epoch = module.CONTESTANTS[arguments.name].start(race)
    look = Look(race.output)
    is_first_epoch = True
    for line in sys.stdin:
        start, first, num_samples, num_batches, num_repeated = time.perf_counter(), 0.0, 0, 0, 0
        for batch in epoch(int(line)):
            if batch is None:
                start = time.perf_counter()
                continue
            first = first or time.time()
            if is_first_epoch:
                look.first_epoch(batch)
            elif not num_batches:
                num_repeated = look.later_epoch(batch)
            num_samples += len(batch[1])
            num_batches += 1
            del batch  # the loader may be waiting for its memory
            if num_batches == arguments.max_batches:
                break
        found: dict[str, Any] = {
            "num_samples": num_samples,
            "num_batches": num_batches,
            "seconds": time.perf_counter() - start,
            "first_batch_seconds": first - arguments.started,
            "start_seconds": first - made,
            "version": version(arguments.distribution),
            "num_repeated": num_repeated,
            "looked": look.facts() if is_first_epoch else None,
        }
        is_first_epoch = False
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
