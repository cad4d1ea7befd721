"""What does a table of weights cost to make, and a draw from it, depending on the number of samples?

    python benchmarks/bench_weights.py [--nums-samples 1000000,1000000000] [--folder /tmp] [--quick]

Each case makes a table of random weights in a fresh process, and then draws blocks of consecutive positions at random
places of the epoch. The table is in the page cache: it takes 8 bytes per sample. Private memory is measured without
pages that the kernel may drop, as those of the table. Records: benchmarks/records/weights.jsonl.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from records import write_record

from mpload.index.draws import DrawChoice, DrawTable, write_table
from mpload.index.table_files import BLOCK_ROWS
from mpload.memory.usage import process_memory

NUMS_POSITIONS = [256, 4096]


def weights(num_samples: int) -> Iterator[NDArray[np.float64]]:
    """Yield weights that differ by five orders of magnitude; the same few blocks again and again."""
    rng = np.random.default_rng(0)
    blocks = [np.exp(rng.normal(size=BLOCK_ROWS)) for _ in range(8)]
    for number, start in enumerate(range(0, num_samples, BLOCK_ROWS)):
        yield blocks[number % len(blocks)][: num_samples - start]


def nanoseconds_per_id(choice: DrawChoice, num_samples: int, num_positions: int, repetitions: int) -> float:
    order = choice.order(num_samples=num_samples, seed=0, epoch=0)
    places = np.random.default_rng(0).integers(0, num_samples - num_positions, repetitions + 10)
    measured = []
    for place in places.tolist():
        positions = np.arange(place, place + num_positions)
        start = time.perf_counter_ns()
        order.sample_ids(positions)
        measured.append((time.perf_counter_ns() - start) / num_positions)
    return round(statistics.median(measured[10:]), 1)  # the first ones warm the caches


def measure(num_samples: int, folder: str, repetitions: int) -> dict[str, float]:
    path = Path(folder, "table")
    start = time.perf_counter()
    with path.open("wb") as file:
        digest = write_table(file, weights(num_samples), num_samples=num_samples, facts={})
        file.flush()
        os.fsync(file.fileno())  # pages that are not on the disk yet cannot be dropped
    seconds = time.perf_counter() - start
    table = DrawTable(path=path, num_samples=num_samples, digest=digest)
    choice = DrawChoice(spec="", table=table, shown="")
    figures: dict[str, float] = {"make_ns_per_sample": round(seconds / num_samples * 1e9, 1)}
    for count in NUMS_POSITIONS:
        figures[f"draw_{count}_ns_per_id"] = nanoseconds_per_id(choice, num_samples, count, repetitions)
    memory = process_memory()
    return figures | {"uss_mb": round((memory.uss_bytes - memory.clean_bytes) / 1e6, 1), "repetitions": repetitions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nums-samples", default="10000,1281167,100000000,1000000000", help="separated by commas")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--quick", action="store_true", help="two small tables; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(**json.loads(arguments.case))))
        return
    for num_samples in [10_000, 1_281_167] if arguments.quick else map(int, arguments.nums_samples.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            case = {"num_samples": num_samples, "folder": folder, "repetitions": 30 if arguments.quick else 500}
            command = [sys.executable, __file__, "--case", json.dumps(case)]
            figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{num_samples:14,} samples: {figures['make_ns_per_sample']:.0f} ns each to make, "
            f"{figures['draw_4096_ns_per_id']:.0f} ns per id, USS {figures['uss_mb']:.0f} MB"
        )
        if not arguments.quick:
            write_record("weights", {"num_samples": num_samples}, figures)


if __name__ == "__main__":
    main()
