"""How many lines a second does `Index.select` examine, and does its memory grow with the index?

    python benchmarks/bench_select.py [--num-samples 10000000] [--folder /tmp] [--quick]

Each case selects from an index of the given number of lines in a fresh process on one core. The text is in the page
cache. The time includes the sidecar of the new index. Records: benchmarks/records/select.jsonl.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from records import write_record

from mpload import Fold, Share, open_index
from mpload.memory.usage import process_memory
from mpload.tools.bench.sample_lists import write_list

CASES: dict[str, dict[str, Any]] = {
    "label == 103": {"where": "label == 103"},
    "label < 550": {"where": "label < 550"},
    "image.endswith('7.JPEG')": {"where": "image.endswith('7.JPEG')"},
    "a share of 10 %": {"part": Share(0.1)},
    "a share of 50 %": {"part": Share(0.5)},
    "a share of 10 % of each label": {"part": Share(0.1, stratify="label")},
    "all but one of 5 folds": {"part": Fold(0, of=5, rest=True)},
    "1,000 keys": {"keys": [f"n{number % 900:04}/{number:09}.JPEG" for number in range(0, 10_000, 10)]},
}


def measure(name: str, path: str, repetitions: int) -> dict[str, float]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    index = open_index(path)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        selected = index.select(f"{path}.selected.txt", **CASES[name])
        seconds.append(time.perf_counter() - start)
    memory = process_memory()
    return {
        "median_lines_per_second": round(len(index) / statistics.median(seconds)),
        "min_lines_per_second": round(len(index) / max(seconds)),
        "max_lines_per_second": round(len(index) / min(seconds)),
        "selected_samples": len(selected),
        "uss_mb": round((memory.uss_bytes - memory.clean_bytes) / 1e6, 1),
        "repetitions": repetitions,
    }


def run(name: str, path: Path, repetitions: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", json.dumps([name, str(path), repetitions])]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-samples", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--quick", action="store_true", help="100,000 lines, to check that it runs; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*json.loads(arguments.case))))
        return
    num_samples = 100_000 if arguments.quick else arguments.num_samples
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        small, large = Path(folder, "small.txt"), Path(folder, "large.txt")
        write_list(small, 100_000)
        write_list(large, num_samples)
        for path in (small, large):
            open_index(path)
        for name in CASES:
            figures = run(name, large, 1 if arguments.quick else 3)
            figures["uss_mb_for_100k_lines"] = run(name, small, 1)["uss_mb"]
            print(
                f"{name:32} {figures['median_lines_per_second'] / 1e6:6.2f} M lines/s, USS {figures['uss_mb']:.0f} MB, "
                f"{figures['uss_mb_for_100k_lines']:.0f} MB for 100,000 lines"
            )
            if not arguments.quick:
                write_record("select", {"selection": name, "num_samples": num_samples}, figures)


if __name__ == "__main__":
    main()
