"""How many images and batches per second can one training process deliver, however fast its workers are?

    python benchmarks/bench_ceiling.py [--quick]

Two workers make batches of 1 to 512 images (uint8 [224, 224, 3] and a label). "nothing": the workers write no pixels,
so only the work of the training process and the workers' own loop remain. "pixels": they copy every pixel from a
constant image. "loader": like "nothing", but through an MPLoader, with its tensors, state and statistics.
"share_of_128" is the rate relative to that of batches of 128. The batch sizes take turns, each in a fresh process, and
the figures are medians over the rounds. On a shared machine, compare only ratios within one run. Records:
benchmarks/records/ceiling.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from records import write_record

from mpload.transport.batches import BatchTask
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, SlotLayout

SIDE = 224
NUM_WORKERS = 2
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
KINDS = ("nothing", "pixels", "loader")


class Writes:
    """Copies a constant image into every sample of a chunk, or writes nothing."""

    def __init__(self, *, pixels: bool) -> None:
        self.image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8) if pixels else None

    def open(self, worker: int) -> None:
        pass

    def fill(self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: Any) -> None:
        del task
        if self.image is not None:
            images = arrays["image"]
            for sample in range(first, last):
                report.at(sample)
                images[sample] = self.image


def pool_batches(kind: str, batch_samples: int, num_batches: int) -> Iterator[Any]:
    fields = (Field(name="image", shape=(SIDE, SIDE, 3), dtype="uint8"), Field(name="label", dtype="int64"))
    layout = SlotLayout(num_samples=batch_samples, fields=fields)
    num_slots = 4 + 64 * NUM_WORKERS // batch_samples  # as many as an MPLoader has
    work = Writes(pixels=kind == "pixels")
    with WorkerPool(work, layout, num_slots=num_slots, num_workers=NUM_WORKERS) as pool:
        yield from pool.stream(BatchTask(numbers=(n,) * 5, num_samples=batch_samples) for n in range(num_batches))


def loader_batches(batch_samples: int, num_batches: int) -> Iterator[Any]:
    from unittest.mock import patch

    import mpload
    from mpload.loader.index_source import IndexSource

    def idle(_: IndexSource, **_bounds: int) -> Writes:
        return Writes(pixels=False)

    with tempfile.TemporaryDirectory() as folder, patch.object(IndexSource, "work", idle):
        path = Path(folder) / "train.txt"
        path.write_text("#mpload 1\n#columns image:path label:int\n" + "a.jpg\t0\n" * 512)
        decode = mpload.RandomResizedCrop(SIDE)
        dataset = mpload.MPDataset(path, decode=decode, batch_size=batch_samples, topology=mpload.Topology())
        with mpload.MPLoader(dataset, num_workers=NUM_WORKERS, memory_budget="2GiB") as loader:
            yield from islice(chain.from_iterable(iter(lambda: loader, None)), num_batches)


def measure(kind: str, batch_samples: int, seconds: float) -> dict[str, float]:
    """Return the rates after a warm-up of a tenth of `seconds`, and the CPU time of this process per batch."""
    batches = loader_batches(batch_samples, 1 << 40) if kind == "loader" else pool_batches(kind, batch_samples, 1 << 40)
    start = start_cpu = now = 0.0
    num_timed = 0
    begin = time.perf_counter()
    for _ in batches:
        now = time.perf_counter()
        if start:
            num_timed += 1
            if now - start > seconds:
                break
        elif now - begin > 0.1 * seconds:
            start, start_cpu = now, time.process_time()
    cpu_seconds = time.process_time() - start_cpu
    return {
        "batches_per_second": round(num_timed / (now - start), 1),
        "images_per_second": round(num_timed * batch_samples / (now - start)),
        "parent_cpu_us_per_batch": round(cpu_seconds / num_timed * 1e6, 2),
    }


def run(kind: str, batch_samples: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", __file__, "--case", json.dumps([kind, batch_samples, seconds])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two batch sizes, one round; write no record")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*json.loads(arguments.case))))
        return
    sizes = (8, 128) if arguments.quick else SIZES
    rounds, seconds = (1, 0.3) if arguments.quick else (arguments.rounds, 1.0)
    for kind in KINDS:
        found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for _ in range(rounds):
            for size in sizes:
                found[size].append(run(kind, size, seconds))
        rates = {size: statistics.median(each["images_per_second"] for each in found[size]) for size in sizes}
        for size in sizes:
            figures = {name: statistics.median(each[name] for each in found[size]) for name in found[size][0]}
            figures["share_of_128"] = round(rates[size] / rates[128], 3)
            case = {"workers": kind, "batch_samples": size, "num_workers": NUM_WORKERS, "rounds": rounds}
            print(json.dumps({**case, **figures}), flush=True)
            if not arguments.quick:
                write_record("ceiling", case, figures)


if __name__ == "__main__":
    main()
