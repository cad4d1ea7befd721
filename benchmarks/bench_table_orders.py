"""What does a `Curriculum` or `PKBatches` cost, depending on the number of samples?

    python benchmarks/bench_table_orders.py [--nums-samples 1000000,100000000] [--folder /tmp] [--quick]

Each case has a fresh process. It sorts random numbers into a table, or writes the table of 1,000 classes of the same
size, and then takes batches of 256 positions at random places of the epoch. Private memory is that of no file: its peak
while the table is made, and its size after all batches. Records: benchmarks/records/table_orders.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from records import write_record

from mpload.index.class_order import ClassBatchChoice, ClassTable
from mpload.index.sorted_order import CurriculumChoice
from mpload.index.sorted_rows import write_sorted_rows
from mpload.index.table_files import BLOCK_ROWS, HEAD_BYTES, MappedTable, facts_of, write_head

NUM_CLASSES = 1000
BATCH_SIZE = 256


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("Linux says how much memory is private")


class Peak:
    """The largest private memory while it is open, looked at every 10 ms."""

    def __enter__(self) -> Self:
        self.num_bytes, self._ends = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ends.wait(0.01):
            self.num_bytes = max(self.num_bytes, private_bytes())

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def random_numbers(num_samples: int) -> Iterator[NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    return (rng.random(min(BLOCK_ROWS, num_samples - start)) for start in range(0, num_samples, BLOCK_ROWS))


def curriculum(path: Path, num_samples: int) -> Any:
    with path.open("x+b") as file:
        write_sorted_rows(file, random_numbers(num_samples), num_samples=num_samples, facts={})
    table = MappedTable(path=path, num_samples=num_samples, digest=facts_of(path)["digest"])
    return CurriculumChoice(spec="", shown="", table=table, window_samples=100_000, descending=False)


def pk(path: Path, num_samples: int) -> Any:
    starts = np.arange(NUM_CLASSES + 1) * (num_samples // NUM_CLASSES)
    with path.open("xb") as file:
        write_head(file, {"num_entries": len(starts) + num_samples, "digest": ""})
        file.seek(HEAD_BYTES)
        file.write(starts.tobytes())
        for start in range(0, num_samples, BLOCK_ROWS):
            file.write(np.arange(start, min(start + BLOCK_ROWS, num_samples)).tobytes())
    return ClassBatchChoice(
        spec="",
        shown="",
        table=ClassTable(path=path, num_samples=num_samples, digest="", num_classes=NUM_CLASSES),
        num_classes=NUM_CLASSES,
        classes_per_batch=64,
        samples_per_class=4,
        epoch_samples=num_samples // BATCH_SIZE * BATCH_SIZE,
    )


def measure(kind: str, num_samples: int, folder: str, repetitions: int) -> dict[str, float]:
    before, started = private_bytes(), time.perf_counter()
    with Peak() as peak:
        choice = {"curriculum": curriculum, "pk": pk}[kind](Path(folder, "table"), num_samples)
    figures: dict[str, float] = {"repetitions": repetitions}
    if kind == "curriculum":
        seconds = time.perf_counter() - started
        figures["make_ns_per_sample"] = round(seconds / num_samples * 1e9, 1)
        figures["make_peak_mb"] = round((peak.num_bytes - before) / 1e6, 1)
    num_positions = num_samples // BATCH_SIZE * BATCH_SIZE if kind == "pk" else num_samples
    order = choice.order(num_samples=num_positions, seed=0, epoch=0)
    measured = []
    for batch in np.random.default_rng(0).integers(0, num_samples // BATCH_SIZE, repetitions + 10).tolist():
        positions = np.arange(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
        start = time.perf_counter_ns()
        order.sample_ids(positions)
        measured.append((time.perf_counter_ns() - start) / BATCH_SIZE)
    figures["ns_per_id"] = round(statistics.median(measured[10:]), 1)  # the first ones warm the caches
    return figures | {"private_mb": round(private_bytes() / 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nums-samples", default="1000000,100000000", help="separated by commas")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--quick", action="store_true", help="a small table; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(**json.loads(arguments.case))))
        return
    nums_samples = [100_000] if arguments.quick else map(int, arguments.nums_samples.split(","))
    for kind, num_samples in [(kind, number) for number in nums_samples for kind in ("curriculum", "pk")]:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            case = {"kind": kind, "num_samples": num_samples}
            options = {"folder": folder, "repetitions": 30 if arguments.quick else 500}
            command = [sys.executable, __file__, "--case", json.dumps(case | options)]
            figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{kind:>10} of {num_samples:,} samples:", figures)
        if not arguments.quick:
            write_record("table_orders", case, figures)


if __name__ == "__main__":
    main()
