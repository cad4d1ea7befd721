"""What does the order of a mixture cost per sample_id, and how long does it take to make a dataset of many sources?

    python benchmarks/bench_mixture.py [--quick]

Each case runs in a fresh process. `order` is the arithmetic alone, for sources of ten million samples each, asked for
consecutive blocks of positions: it includes all that is computed on the way. `dataset` is a dataset of as many opened
indexes of a thousand lines. Private memory (USS) is measured before and after the timed part. Records:
benchmarks/records/mixture.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from records import write_record

from mpload.memory.usage import process_memory
from mpload.plan.mixture import MixtureOrders
from mpload.plan.order import Shuffle
from mpload.plan.shares import Shares
from mpload.plan.turns import Phase

SOURCE_SAMPLES = 10**7
NUM_POSITIONS = 4096
BLOCKS_PER_ROUND = 64  # 2^18 positions: several blocks of shares


def weights_of(kind: str, num_sources: int) -> list[float]:
    """Return equal weights, or weights that are no short decimals and differ by a factor of up to 100."""
    if kind == "equal":
        return [1] * num_sources
    return [float(weight) for weight in 10 ** np.random.default_rng(0).uniform(0, 2, num_sources)]


def measure_order(weights: str, num_sources: int, rounds: int) -> dict[str, float]:
    """Return nanoseconds per sample_id, and the growth of private memory."""
    epoch_samples = num_sources * SOURCE_SAMPLES
    orders = MixtureOrders(
        lengths=(SOURCE_SAMPLES,) * num_sources,
        of_source=Shuffle(),
        epoch_samples=epoch_samples,
        planned=(Phase(start=0, shares=Shares.of(weights_of(weights, num_sources))),),
    )

    def ask(place: int) -> None:
        order = orders.order(num_samples=epoch_samples, seed=0, epoch=3)
        order.sample_ids(np.arange(place, place + NUM_POSITIONS))

    for block in range(4 * BLOCKS_PER_ROUND):
        ask(block * NUM_POSITIONS)
    before = process_memory().uss_bytes
    nanoseconds, cpu = [], []
    for start in np.random.default_rng(0).integers(0, epoch_samples // 2, rounds).tolist():
        began, began_cpu = time.perf_counter_ns(), time.process_time_ns()
        for block in range(BLOCKS_PER_ROUND):
            ask(start + block * NUM_POSITIONS)
        nanoseconds.append((time.perf_counter_ns() - began) / BLOCKS_PER_ROUND / NUM_POSITIONS)
        cpu.append((time.process_time_ns() - began_cpu) / BLOCKS_PER_ROUND / NUM_POSITIONS)
    return {
        "median_ns_per_id": round(statistics.median(nanoseconds), 1),
        "min_ns_per_id": round(min(nanoseconds), 1),
        "max_ns_per_id": round(max(nanoseconds), 1),
        "median_cpu_ns_per_id": round(statistics.median(cpu), 1),
        "uss_growth_bytes": process_memory().uss_bytes - before,
        "rounds": rounds,
    }


def measure_dataset(weights: str, num_sources: int, rounds: int) -> dict[str, float]:
    """Return the seconds in which a dataset of opened indexes is made, and those until its first batch."""
    import mpload

    with tempfile.TemporaryDirectory() as folder:
        indexes = []
        for number in range(num_sources):
            path = Path(folder, f"{number}.txt")
            path.write_text("#mpload 1\n#columns n:int\n" + "".join(f"{line}\n" for line in range(1000)))
            indexes.append(mpload.open_index(path))
        made, first = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            mixture = mpload.Mixture(dict(zip(indexes, weights_of(weights, num_sources), strict=True)))
            dataset: mpload.MPDataset = mpload.MPDataset(mixture, batch_size=256, shuffle=True)
            made.append(time.perf_counter() - began)
            next(iter(dataset))
            first.append(time.perf_counter() - began)
    return {
        "median_seconds_to_make": round(statistics.median(made), 4),
        "median_seconds_to_first_batch": round(statistics.median(first), 4),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sources and repetitions; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case: dict[str, Any] = json.loads(arguments.case)
        measure = {"order": measure_order, "dataset": measure_dataset}[case.pop("what")]
        print(json.dumps(measure(**case)))
        return
    rounds = 3 if arguments.quick else 21
    for what in ("order", "dataset"):
        for num_sources in (2,) if arguments.quick else (2, 100, 1000):
            for weights in ("equal", "uneven"):
                case = {"what": what, "weights": weights, "num_sources": num_sources}
                command = [sys.executable, __file__, "--case", json.dumps(case | {"rounds": rounds})]
                figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                print(f"{what:8} {weights:7} {num_sources:5}  " + "  ".join(f"{k} {v:,}" for k, v in figures.items()))
                if not arguments.quick:
                    write_record("mixture", case, figures)


if __name__ == "__main__":
    main()
