"""What does an order cost per sample_id, depending on the number of samples and the number of positions at once?

    python benchmarks/bench_order.py [--quick]

Each case runs in a fresh process, and asks for blocks of consecutive positions at random places of the epoch. Records:
benchmarks/records/order.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import product

import numpy as np
from records import write_record

from mpload.plan.order import BlockShuffle, OrderChoice, Sequential, Shuffle

CHOICES: dict[str, OrderChoice] = {
    choice.spec: choice
    for choice in (
        Sequential(),
        Shuffle(),
        BlockShuffle(block_samples=256, window_blocks=16),
        BlockShuffle(block_samples=300, window_blocks=20),
    )
}
NUMS_SAMPLES = [10**4, 2**20, 2**20 + 1, 1_281_167, 10**8, 10**10]  # ImageNet, and both sides of a power of two
NUMS_POSITIONS = [256, 4096]


def measure(spec: str, num_samples: int, num_positions: int, repetitions: int) -> dict[str, float]:
    """Return nanoseconds per sample_id, for blocks of `num_positions`."""
    order = CHOICES[spec].order(num_samples=num_samples, seed=0, epoch=0)
    places = np.random.default_rng(0).integers(0, num_samples - num_positions, repetitions + 10)
    nanoseconds = []
    for place in places.tolist():
        positions = np.arange(place, place + num_positions)
        start = time.perf_counter_ns()
        order.sample_ids(positions)
        nanoseconds.append((time.perf_counter_ns() - start) / num_positions)
    measured = nanoseconds[10:]  # the first ones warm the caches
    return {
        "median_ns_per_id": round(statistics.median(measured), 1),
        "min_ns_per_id": round(min(measured), 1),
        "max_ns_per_id": round(max(measured), 1),
        "repetitions": repetitions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two numbers of samples; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(**json.loads(arguments.case))))
        return
    nums_samples = [1_281_167, 10**8] if arguments.quick else NUMS_SAMPLES
    for spec, num_samples, num_positions in product(CHOICES, nums_samples, NUMS_POSITIONS):
        case = {"spec": spec, "num_samples": num_samples, "num_positions": num_positions}
        repetitions = {"repetitions": 30 if arguments.quick else 200}
        command = [sys.executable, __file__, "--case", json.dumps(case | repetitions)]
        figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{spec:52} {num_samples:14,} {num_positions:5} {figures['median_ns_per_id']:8.1f} ns per id")
        if not arguments.quick:
            write_record("order", case, figures)


if __name__ == "__main__":
    main()
