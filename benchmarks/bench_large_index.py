"""How long does a record of an index take that is larger than the machine's memory?

    python benchmarks/bench_large_index.py [--lines 1000000000] [--folder /tmp]

Two processes read records in exact random order: one by one, so that each waits for a row of the sidecar and then for a
line of the text; and as the two workers of an MPLoader, which load the lines of whole chunks at a time and ahead of
their turn. Before each case, the index is evicted from the page cache. By default, the text and its sidecar are 1.6
times the machine's memory: 41 bytes on disk per line. They are removed afterwards. Records:
benchmarks/records/large_index.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
from records import write_record

from mpload import Index, MPDataset, MPLoader, open_index
from mpload.tools.bench.sample_lists import LINE_BYTES, write_list

NUM_PROCESSES = 2
BATCH_SIZE = 1024
SIDECAR_BYTES = 16  # per line, with a label
TIMES_MEMORY = 1.6
CASES = ("one by one", "loader")


def evict(index: Index) -> None:
    for path in (index.path, index.path.with_name(f"{index.path.name}.mpx")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def one_by_one(index: Index, *, part: int) -> Iterator[int]:
    rng = np.random.default_rng(part)
    while True:
        index[int(rng.integers(len(index)))]
        yield 1


def from_loader(index: Index) -> Iterator[int]:
    dataset: MPDataset = MPDataset(index, batch_size=BATCH_SIZE, shuffle=True, tail="ragged")
    with MPLoader(dataset, num_workers=NUM_PROCESSES) as loader:
        for texts, _labels in loader:
            yield len(texts)


def rate(samples: Iterator[int], *, seconds: float) -> float:
    """Return the samples per second from the first one on, over about `seconds`."""
    next(samples)
    start, count = time.perf_counter(), 0
    for num_samples in samples:
        count += num_samples
        if time.perf_counter() - start > seconds:
            break
    return count / (time.perf_counter() - start)


def run(case: str, path: Path, *, seconds: float) -> float:
    """Return the microseconds per record, from fresh processes."""
    num_processes = NUM_PROCESSES if case == "one by one" else 1
    command = [sys.executable, __file__, "--case", case, "--folder", str(path), "--seconds", str(seconds), "--part"]
    processes = [
        subprocess.Popen([*command, str(part)], stdout=subprocess.PIPE, text=True) for part in range(num_processes)
    ]
    rates: list[float] = [json.loads(process.communicate()[0]) for process in processes]
    return 1e6 / sum(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    memory_bytes = psutil.virtual_memory().total
    default = int(TIMES_MEMORY * memory_bytes / (LINE_BYTES + SIDECAR_BYTES))
    parser.add_argument("--lines", type=int, default=default)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each case")
    parser.add_argument("--quick", action="store_true", help="100,000 lines, to check that it runs; write no record")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        index = open_index(arguments.folder)
        samples = one_by_one(index, part=arguments.part) if arguments.case == "one by one" else from_loader(index)
        print(json.dumps(rate(samples, seconds=arguments.seconds)))
        return
    num_lines, seconds = (100_000, 1.0) if arguments.quick else (arguments.lines, arguments.seconds)
    figures = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        path = Path(name, "train.txt")
        write_list(path, num_lines, columns="text:str label:int")
        index = open_index(path)
        for case in CASES:
            evict(index)
            figures[f"{case.replace(' ', '_')}_us_per_record"] = run(case, path, seconds=seconds)
    index_bytes = num_lines * (LINE_BYTES + SIDECAR_BYTES)
    for name, value in figures.items():
        print(f"{name:28} {value:,.1f}")
    if not arguments.quick:
        case_facts = {"lines": num_lines, "times_memory": index_bytes / memory_bytes, "processes": NUM_PROCESSES}
        write_record("large_index", case_facts, figures)


if __name__ == "__main__":
    main()
