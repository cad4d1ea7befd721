"""What does it cost to carry an image from a worker to the training process, compared with a stock DataLoader?

    python benchmarks/bench_transport.py [--quick]

Each case runs in a fresh process. An "image" is uint8 [224, 224, 3]. Workers copy its pixels from a constant image
instead of decoding it, so that only the cost of transport remains. "alone" does the same work in the training process
itself. "decoding" is "pool" with workers that are busy for 500 microseconds per image. The benchmark also measures how
long workers take to start, how much memory each takes, and how long it takes until the work of a killed worker
continues. Records: benchmarks/records/transport.jsonl.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from records import write_record

from mpload.transport.batches import BatchTask
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, SlotLayout

SHAPE = (224, 224, 3)
NUM_SLOTS = 6
NUM_WORKERS = 2


class Constant:
    """Writes a constant image; imports `modules`, such as those that a worker needs for decoding."""

    def __init__(self, *modules: str, busy_us: float = 0.0) -> None:
        self.modules = modules
        self.busy_seconds = busy_us * 1e-6
        self.image = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in self.modules:  # in the zygote, like the imports of a transform's module
            __import__(name)

    def open(self, worker: int) -> None:
        pass

    def fill(self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: Any) -> None:
        images = arrays["image"]
        for sample in range(first, last):
            report.at(sample)
            np.copyto(images[sample], self.image)
            end = time.perf_counter() + self.busy_seconds
            while time.perf_counter() < end:
                pass
        arrays["label"][first:last] = task[0]


def make_pool(
    batch_samples: int, num_workers: int, *modules: str, num_slots: int = NUM_SLOTS, busy_us: float = 0.0
) -> WorkerPool:
    fields = (Field(name="image", shape=SHAPE, dtype="uint8"), Field(name="label", dtype="int64"))
    layout = SlotLayout(num_samples=batch_samples, fields=fields)
    return WorkerPool(Constant(*modules, busy_us=busy_us), layout, num_slots=num_slots, num_workers=num_workers)


def pool_batches(batch_samples: int, num_batches: int, busy_us: float = 0.0) -> Iterator[Any]:
    with make_pool(batch_samples, NUM_WORKERS, busy_us=busy_us) as pool:
        for batch in pool.stream(BatchTask(numbers=(n,), num_samples=batch_samples) for n in range(num_batches)):
            yield batch.arrays["image"]


def stock_batches(batch_samples: int, num_batches: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset[Any]):
        def __init__(self) -> None:
            self.image = torch.from_numpy(Constant().image).permute(2, 0, 1)

        def __len__(self) -> int:
            return batch_samples * num_batches

        def __getitem__(self, index: int) -> Any:
            return self.image.clone(), index

    loader = DataLoader(Images(), batch_size=batch_samples, num_workers=NUM_WORKERS, prefetch_factor=NUM_SLOTS // 2)
    for images, _ in loader:
        yield images


def alone_batches(batch_samples: int, num_batches: int) -> Iterator[Any]:
    work, image = Constant(), np.empty((batch_samples, *SHAPE), np.uint8)
    for _ in range(num_batches):
        for sample in range(batch_samples):
            np.copyto(image[sample], work.image)
        yield image


def decoding_batches(batch_samples: int, num_batches: int) -> Iterator[Any]:
    """Yield images that keep a worker busy for as long as a fast JPEG decoder would."""
    yield from pool_batches(batch_samples, num_batches, busy_us=500.0)


LOADERS: dict[str, Callable[[int, int], Iterator[Any]]] = {
    "pool": pool_batches,
    "stock": stock_batches,
    "alone": alone_batches,
    "decoding": decoding_batches,
}


def measure_transport(loader: str, batch_samples: int, num_images: int) -> dict[str, float]:
    """Return the wall-clock time and the CPU time (of all processes) per image, in microseconds."""
    num_warm = max(10, 2 * NUM_SLOTS)
    num_batches = num_images // batch_samples + num_warm
    start = end = start_cpu = end_cpu = 0.0
    touched = 0
    for number, batch in enumerate(LOADERS[loader](batch_samples, num_batches)):
        touched += int(batch[-1, -1, -1, -1])
        if number == num_warm:
            start, start_cpu = time.perf_counter(), cpu_seconds()
        if number == num_batches - 1:
            end, end_cpu = time.perf_counter(), cpu_seconds()
    assert touched
    num_timed = (num_batches - num_warm - 1) * batch_samples
    return {
        "us_per_image": round((end - start) / num_timed * 1e6, 2),
        "cpu_us_per_image": round((end_cpu - start_cpu) / num_timed * 1e6, 2),
        "images_per_second": round(num_timed / (end - start)),
    }


def cpu_seconds() -> float:
    """Return the CPU time that this process and its living descendants have used."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def measure_start(num_workers: int, modules: list[str]) -> dict[str, float]:
    """Return the seconds from construction to the first batch, and the private memory of workers and zygote."""
    start = time.perf_counter()
    with make_pool(64, num_workers, *modules) as pool:
        stream = pool.stream(BatchTask(numbers=(n,), num_samples=64) for n in range(200))
        next(stream)
        first_seconds = time.perf_counter() - start
        for _ in stream:
            pass
        private = [private_bytes(pid) for name, pid in pool.pids.items() if name != "mpload-zygote"]
        zygote_bytes = private_bytes(pool.pids["mpload-zygote"])
    return {
        "first_batch_seconds": round(first_seconds, 3),
        "worker_private_bytes": round(statistics.median(private)),
        "worker_private_max_bytes": max(private),
        "zygote_private_bytes": zygote_bytes,
    }


def private_bytes(pid: int) -> int:
    """Return the private memory (USS) of a process, without slots."""
    total, is_slot = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            is_slot = "memfd:mpload" in rest
        elif name in {"Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"} and not is_slot:
            total += int(rest.split()[0]) * 1024
    return total


def measure_replacement(modules: list[str], repetitions: int) -> dict[str, float]:
    """Return the seconds from killing the only worker until its batch has arrived."""
    seconds = []
    with make_pool(8, 1, *modules, num_slots=1) as pool:
        for number in range(repetitions):
            while "mpload-worker-0" not in pool.pids:  # until the pool has read that the worker was replaced
                pool.submit(BatchTask(numbers=(number,), num_samples=8))
                pool.next()
            killed = pool.pids["mpload-worker-0"]
            start = time.perf_counter()
            os.kill(killed, signal.SIGKILL)
            pool.submit(BatchTask(numbers=(number,), num_samples=8))
            pool.next()
            seconds.append(time.perf_counter() - start)
    return {
        "median_seconds": round(statistics.median(seconds), 4),
        "max_seconds": round(max(seconds), 4),
        "repetitions": repetitions,
    }


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "transport": measure_transport,
    "start": measure_start,
    "replacement": measure_replacement,
}


def cases(*, is_quick: bool) -> Iterator[dict[str, Any]]:
    num_images = 10_000 if is_quick else 60_000
    for batch_samples in (8, 128) if is_quick else (8, 32, 128, 256):
        for loader in LOADERS:
            num = num_images // 5 if loader == "decoding" else num_images
            yield {"measure": "transport", "loader": loader, "batch_samples": batch_samples, "num_images": num}
    for modules in [], ["simplejpeg", "cv2"], ["torch", "albumentations"]:
        for num_workers in (2, 8):
            yield {"measure": "start", "num_workers": num_workers, "modules": modules}
        yield {"measure": "replacement", "modules": modules, "repetitions": 5 if is_quick else 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case = json.loads(arguments.case)
        print(json.dumps(MEASURES[case.pop("measure")](**case)))
        return
    for case in cases(is_quick=arguments.quick):
        command = [sys.executable, "-W", "ignore", __file__, "--case", json.dumps(case)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        figures = json.loads(done.stdout.splitlines()[-1])  # modules may print when they are imported
        print(json.dumps({**case, **figures}), flush=True)
        if not arguments.quick:
            write_record("transport", case, figures)


if __name__ == "__main__":
    main()
