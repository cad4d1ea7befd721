"""What does an index of many parts cost beside a single one with as many lines?

    python benchmarks/bench_parts.py [--parts 1000] [--lines 100000] [--folder /tmp]

A process is sent the opened index, as a worker is, and looks up the lines of 256 samples at a time: of random ones,
and of consecutive ones in random order, as with BlockShuffle. It may have 1,024 file descriptors, which is the usual
limit, or enough to keep all parts open. Its private memory (USS) is measured before it gets the index and at the end.
All lines fit in the page cache. `--lines` is the number of lines in each part. Records: benchmarks/records/parts.jsonl.
"""

import argparse
import json
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from records import write_record

from mpload import list_parts, open_index
from mpload.index.index import lines_of
from mpload.index.parts import parts_of
from mpload.tools.bench.sample_lists import write_list

BATCH_SIZE = 256
NUM_BATCHES = 300
NUM_OPENINGS = 5
COLUMNS = "text:str label:int"
DESCRIPTORS = {"one file": 1024, "parts": 1024, "parts, all open": 20_000}


def ns_per_id(index: Any, sample_ids: Callable[[np.random.Generator], NDArray[np.int64]]) -> float:
    """Return the median over batches."""
    rng, seconds = np.random.default_rng(0), []
    for _ in range(NUM_BATCHES):
        ids = sample_ids(rng)
        start = time.perf_counter()
        lines_of(index, ids)
        seconds.append(time.perf_counter() - start)
    return 1e9 * statistics.median(seconds[NUM_BATCHES // 3 :]) / BATCH_SIZE


def look_up(pickled: Path, *, max_descriptors: int) -> dict[str, float]:
    """Measure in this process, which is a fresh one."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, max_descriptors))
    data = pickled.read_bytes()
    pickle.loads(pickle.dumps(parts_of))  # all modules are imported
    process = psutil.Process()
    before = process.memory_full_info().uss
    index = pickle.loads(data)
    size = len(index)

    def block(rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.permutation(BATCH_SIZE) + rng.integers(size - BATCH_SIZE)

    figures = {
        "random_ns_per_id": ns_per_id(index, lambda rng: rng.integers(size, size=BATCH_SIZE)),
        "block_ns_per_id": ns_per_id(index, block),
    }
    return figures | {"uss_mb": (process.memory_full_info().uss - before) / 1e6, "pickled_bytes": float(len(data))}


def opening_ms(path: Path) -> float:
    """Return the median time to open an index whose sidecars exist."""
    seconds = []
    for _ in range(NUM_OPENINGS):
        start = time.perf_counter()
        open_index(path)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--quick", action="store_true", help="10 parts of 1,000 lines, and no record")
    parser.add_argument("--case", choices=DESCRIPTORS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(look_up(arguments.folder, max_descriptors=DESCRIPTORS[arguments.case])))
        return
    num_parts, num_lines = (10, 1000) if arguments.quick else (arguments.parts, arguments.lines)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        whole, parts = folder / "whole.txt", [folder / f"part-{number}.txt" for number in range(num_parts)]
        write_list(whole, num_parts * num_lines, columns=COLUMNS)
        for part in parts:
            write_list(part, num_lines, columns=COLUMNS)
        start = time.perf_counter()
        listed = list_parts(parts, folder / "list.txt")
        print(f"sidecars of all parts and the list: {time.perf_counter() - start:.0f} s")
        open_index(whole)
        for case, max_descriptors in DESCRIPTORS.items():
            path = whole if case == "one file" else listed
            pickled = folder / "pickled"
            pickled.write_bytes(pickle.dumps(open_index(path)))
            command = [sys.executable, __file__, "--case", case, "--folder", str(pickled)]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            figures = {"opening_ms": opening_ms(path), **found}
            print(f"{case:16}", "  ".join(f"{figure} {value:,.1f}" for figure, value in figures.items()))
            if not arguments.quick:
                facts = {"case": case, "parts": num_parts, "lines": num_parts * num_lines}
                write_record("parts", facts | {"descriptors": max_descriptors}, figures)


if __name__ == "__main__":
    main()
