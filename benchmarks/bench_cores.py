"""How does a loader's rate grow with its workers, on a machine that has the cores?

    python benchmarks/bench_cores.py --data DIR [--workers 1 2 4 8 16] [--only NAME ...] [--rounds 3] [--seconds 2.5]
    python benchmarks/bench_cores.py --quick

Contestants make random crops of 224 x 224 from photographs of ImageNet's sizes, in one long epoch. "loops" is no
loader: as many processes as there are workers decode with mpload's codec, one photograph after the other, into memory
of their own, so that nothing but the machine's cores, caches and memory limits them. "copies" is the machine's memory
bandwidth: as many processes copy arrays that are larger than the caches. The contestants take turns. Each turn starts a
process, which runs one second unmeasured, and then `--seconds`. The machine needs a core for the training process
beside those of the workers; where there are as many workers as cores, they share them. Records:
benchmarks/records/cores.jsonl.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from photographs import photographs, write_listing
from records import write_record

BATCH_SIZE = 256
COPY_BYTES = 256 << 20
WARM_SECONDS = 1.0
LOADERS = {
    "mpload": ("ours", "mpload"),
    "DataLoader, simplejpeg": ("stock", "DataLoader, simplejpeg"),
    "SPDL, simplejpeg": ("spdls", "SPDL, simplejpeg"),
}
"""Name -> module of benchmarks/peers and name of the contestant there."""


# The process of a contestant.


def run_loader(name: str, listing: Path, num_workers: int, seconds: float) -> dict[str, float]:
    """Return the images/s of a loader, and the CPU time it takes."""
    from peers.race import Output, Race

    module, contestant = LOADERS[name]
    race = Race(
        data=listing.parent, output=Output.UINT8, batch_size=BATCH_SIZE, num_workers=num_workers, listing=listing
    )
    epoch = importlib.import_module(f"peers.{module}").CONTESTANTS[contestant].start(race)
    begun, num_images, cpu, own_cpu = 0.0, 0, 0.0, 0.0
    warm = time.perf_counter() + WARM_SECONDS
    for images, _ in endless(epoch):
        now = time.perf_counter()
        if begun:
            num_images += len(images)
            if now - begun >= seconds:
                break
        elif now >= warm:
            begun, cpu, own_cpu = now, tree_cpu_seconds(), time.process_time()
    taken = time.perf_counter() - begun
    return {
        "images_per_second": round(num_images / taken, 1),
        "cpu_us_per_image": round(1e6 * (tree_cpu_seconds() - cpu) / num_images, 1),
        "own_cpu_us_per_image": round(1e6 * (time.process_time() - own_cpu) / num_images, 2),
    }


def endless(epoch: Callable[[int], Iterator[Any]]) -> Iterator[Any]:
    number = 0
    while True:
        yield from epoch(number)
        number += 1


def run_many(work: Callable[[float], int], num_workers: int, seconds: float) -> tuple[float, float]:
    """Run `work(seconds)` in as many processes at once; return how often it did its work per second, and for how much
    CPU time each, in microseconds."""
    fork = multiprocessing.get_context("fork")
    barrier, queue = fork.Barrier(num_workers), fork.Queue()

    def process() -> None:
        work(WARM_SECONDS)
        barrier.wait(60)
        start, cpu = time.perf_counter(), time.process_time()
        num = work(seconds)
        queue.put((num / (time.perf_counter() - start), 1e6 * (time.process_time() - cpu) / num))

    started = [fork.Process(target=process) for _ in range(num_workers)]
    for each in started:
        each.start()
    rates, cpu_us = zip(*(queue.get(timeout=120) for _ in started), strict=True)
    for each in started:
        each.join(60)
    return sum(rates), statistics.fmean(cpu_us)


def loop(paths: list[Path], seconds: float) -> int:
    """Read and decode photographs in a random order; return how many."""
    import mpload

    crop, rng = mpload.RandomResizedCrop(224), np.random.default_rng(os.getpid())
    out = np.empty((BATCH_SIZE, 224, 224, 3), np.uint8)
    start, num_images = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        data = paths[rng.integers(len(paths))].read_bytes()
        crop(data, rng, out=out[num_images % BATCH_SIZE])
        num_images += 1
    return num_images


def copy(num_bytes: int, seconds: float) -> int:
    """Copy an array again and again; return how often."""
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    start, num_copies = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        np.copyto(target, source)
        num_copies += 1
    return num_copies


def tree_cpu_seconds() -> float:
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def contestant(name: str, listing: Path, num_workers: int, seconds: float) -> dict[str, float]:
    if name == "copies":
        copies, _ = run_many(partial(copy, COPY_BYTES), num_workers, seconds)
        return {"gb_per_second": round(2e-9 * COPY_BYTES * copies, 2)}  # bytes read and bytes written
    if name == "loops":
        paths = sorted(listing.parent.rglob("*.JPEG"))
        images, cpu_us = run_many(partial(loop, paths), num_workers, seconds)
        return {"images_per_second": round(images, 1), "cpu_us_per_image": round(cpu_us, 1)}
    return run_loader(name, listing, num_workers, seconds)


# The benchmark.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images, short turns; write no record")
    parser.add_argument("--data", type=Path, help="folder that keeps the photographs; default: a temporary one")
    parser.add_argument("--num-images", type=int, default=8192)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["mpload", "loops", "copies", *LOADERS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a turn")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--listing", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        name, num_workers = json.loads(arguments.case)
        print(json.dumps(contestant(name, arguments.listing, num_workers, arguments.seconds)))
        return
    if arguments.quick:
        arguments.num_images, arguments.workers, arguments.rounds, arguments.seconds = 64, [1, 2], 1, 0.2
        arguments.only = ["mpload", "loops", "copies"]
    with tempfile.TemporaryDirectory() as temporary:
        photos = photographs((arguments.data or Path(temporary)).absolute(), arguments.num_images)
        epoch_samples = 1 << (12 if arguments.quick else 18)
        listing = write_listing(photos, epoch_samples)
        names = list(dict.fromkeys(arguments.only))
        cases = [(name, num_workers) for num_workers in arguments.workers for name in names]
        results: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
        for number in range(arguments.rounds):
            for case in random.Random(number).sample(cases, len(cases)):
                found = turn(case, listing, arguments.seconds)
                print(json.dumps([*case, found]), flush=True)
                results[case] += [found] if found else []
    for (name, num_workers), turns in results.items():
        if not turns:
            continue
        figures: dict[str, Any] = {key: statistics.median(each[key] for each in turns) for key in turns[0]}
        rate = "gb_per_second" if name == "copies" else "images_per_second"
        figures["turns"] = [each[rate] for each in turns]
        described = {
            "contestant": name,
            "num_workers": num_workers,
            "batch_size": BATCH_SIZE,
            "num_images": arguments.num_images,
            "epoch_samples": epoch_samples,
        }
        print(json.dumps({**described, **figures}))
        if not arguments.quick:
            write_record("cores", described, figures)


def turn(case: tuple[str, int], listing: Path, seconds: float) -> dict[str, float]:
    """Return the figures of a contestant, or nothing if it fails: its packages may not be installed."""
    command = [sys.executable, "-W", "ignore", __file__, "--case", json.dumps(case)]
    options = ["--listing", str(listing), "--seconds", str(seconds)]
    try:
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{case} failed: {str(error.stderr)[-300:]}")
        return {}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
