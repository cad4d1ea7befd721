"""How much memory does a list of samples take in a training job, depending on how it is stored and loaded?

    python benchmarks/bench_memory.py [--samples 1e4,1e5,1e6,1e7] [--workers 0,4,8] [--epochs 2] [--max-seconds 900]

This measures the same as `mpload bench memory`, and writes a record of each case to benchmarks/records/memory.jsonl.
Run `python benchmarks/report.py` afterwards: it updates the tables of the documentation and
benchmarks/records/memory.png.
"""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

from records import write_record

from mpload.tools.bench.memory import LOADER_NAMES, MemoryResult, all_cases, measure_memory
from mpload.tools.bench.memory_report import memory_tables
from mpload.units import parse_bytes


def numbers(text: str) -> list[int]:
    return [int(float(number)) for number in text.split(",")]


def record(result: MemoryResult) -> None:
    figures = {name: value for name, value in asdict(result).items() if name not in {"case", "curve"}}
    write_record("memory", asdict(result.case), figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=numbers, default=numbers("1e4,1e5,1e6,1e7"))
    parser.add_argument("--workers", type=numbers, default=numbers("0,4,8"))
    parser.add_argument("--loaders", type=lambda text: text.split(","), default=list(LOADER_NAMES))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-seconds", type=float, default=900.0)
    parser.add_argument("--reserve", type=parse_bytes, default=None, help="memory to leave free for other processes")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument(
        "--quick", action="store_true", help="1,000 samples and one worker, to check that it runs; write no record"
    )
    arguments = parser.parse_args()
    samples, workers = ([1000], [1]) if arguments.quick else (arguments.samples, arguments.workers)
    results = []
    cases = all_cases(arguments.loaders, samples, workers)
    for result in measure_memory(
        cases,
        num_epochs=arguments.epochs,
        max_seconds=arguments.max_seconds,
        folder=arguments.folder,
        reserve_bytes=arguments.reserve,
    ):
        results.append(result)
        if not arguments.quick:
            record(result)
    for table in memory_tables(results):
        print("\n".join("\t".join(row) for row in [[table.title], table.header, *table.rows]))


if __name__ == "__main__":
    main()
