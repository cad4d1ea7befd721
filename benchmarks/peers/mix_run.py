"""The process of a contestant of `bench_mixture_peers.py`.

python -m peers.mix_run MODULE --data DIR --prepare LENGTHS
python -m peers.mix_run MODULE --data DIR --name NAME --num-samples N --out FILE [--num-workers 2] [--seed 0]
    [--save FILE] [--resume FILE]

It writes the samples that it reads as a NumPy file, and prints a line with the facts. With `--save` it then writes its
state, and waits to be killed, in the middle of its iteration. `--resume` starts from such a state.
"""

import argparse
import importlib
import json
import pickle
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from peers.mix import Mix

__all__: list[str] = []

WARM_BATCHES = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prepare", type=json.loads)
    parser.add_argument("--name")
    parser.add_argument("--num-samples", type=int)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--distribution")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--resume", type=Path)
    arguments = parser.parse_args()
    module = importlib.import_module(f"peers.{arguments.module}")
    if arguments.prepare:
        module.prepare(arguments.data, arguments.prepare)
        return
    mix = Mix(
        data=arguments.data,
        num_workers=arguments.num_workers,
        seed=arguments.seed,
        state=pickle.loads(arguments.resume.read_bytes()) if arguments.resume else None,
    )
    feed = module.FEEDS[arguments.name](mix)
    found, num_found, began, num_before = [], 0, 0.0, 0
    while num_found < arguments.num_samples:
        found.append(np.array(next(feed.batches), np.int64))
        num_found += len(found[-1])
        if len(found) == WARM_BATCHES:
            began, num_before = time.perf_counter(), num_found
    seconds = time.perf_counter() - began
    np.save(arguments.out, np.concatenate(found))
    facts = {"version": version(arguments.distribution), "samples_per_second": (num_found - num_before) / seconds}
    if arguments.save:
        arguments.save.write_bytes(pickle.dumps(feed.state()))
    print(json.dumps(facts), flush=True)
    if arguments.save:
        time.sleep(600)


if __name__ == "__main__":
    main()
