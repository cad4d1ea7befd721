"""How long does `num_workers="auto"` take to be nearly as fast as the best fixed number of workers?

    python benchmarks/bench_auto.py [--quick] [--only NAME ...]

Five situations: samples that sleep; photographs that are decoded; photographs on a server that answers each request
after 50 ms (object_server.c); samples that sleep, for a consumer that takes 0.2 s a batch; samples that wait and then
compute. Each runs with several fixed numbers of workers and with "auto", each in a process of its own, with batches of
32 samples.

The rate of a fixed number is that of the last two thirds of its run. "auto" has arrived as soon as it delivers 80% of
the best of these rates over the next three seconds. The time counts from before the loader is made. Its own rate is
that of the last third of its run. Records: benchmarks/records/auto.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from object_server import Delays, list_bucket, serving
from records import write_record

BATCH_SIZE = 32
NUM_SAMPLES = 10_000_000
NUM_PHOTOS, NUM_LINES = 400, 400_000
STEP_SECONDS = 0.2
FIXED = (2, 4, 8, 16, 32, 64)
QUICK_FIXED = (2,)
NEAR, NEAR_SECONDS = 0.8, 3.0

Progress = list[tuple[float, int, int]]
"""Seconds since the start, samples delivered, and the number of workers."""


class Samples:
    """Samples that wait and then compute."""

    def __init__(self, wait_seconds: float, compute_seconds: float) -> None:
        self.wait_seconds = wait_seconds
        self.compute_seconds = compute_seconds

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        if self.wait_seconds:
            time.sleep(self.wait_seconds)
        end = time.thread_time() + self.compute_seconds
        while self.compute_seconds and time.thread_time() < end:
            pass
        return np.zeros(16, np.float32), index


def sleeping(_: Path) -> Any:
    return Samples(0.1, 0.0)


def mixed(_: Path) -> Any:
    return Samples(0.01, 0.005)


def photos(root: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        import mpload

        keys = sorted(path.relative_to(folder / "photos").as_posix() for path in (folder / "photos").rglob("*.JPEG"))
        index = folder / f"{os.getpid()}.txt"
        lines = "".join(f"{key}\n" for key in keys) * (NUM_LINES // len(keys))
        index.write_text(
            f"#mpload 1\n#root {root or folder / 'photos'}\n#columns image:path\n{lines}", encoding="utf-8"
        )
        return mpload.MPDataset(
            index, decode=mpload.RandomResizedCrop(224), batch_size=BATCH_SIZE, shuffle=True, tail="drop"
        )  # fmt: skip

    return make


SITUATIONS: dict[str, Callable[[Path], Any]] = {
    "sleeps of 100 ms": sleeping,
    "decoding photographs": photos(""),
    "storage that takes 50 ms": photos("s3://photos"),
    "slow consumer": sleeping,
    "10 ms of waiting, 5 ms of computing": mixed,
}


def measure(situation: str, num_workers: Any, seconds: float, folder: Path) -> Progress:
    """Take batches for so long, and return how many had arrived at each time."""
    import mpload

    dataset = SITUATIONS[situation](folder)
    options: Any = {} if isinstance(dataset, mpload.MPDataset) else {"batch_size": BATCH_SIZE}
    progress: Progress = []
    start, num_samples = time.monotonic(), 0
    loader: Any
    with mpload.MPLoader(dataset, num_workers=num_workers, **options) as loader:
        while True:
            for batch in loader:
                num_samples += BATCH_SIZE
                del batch
                now = time.monotonic() - start
                progress.append((now, num_samples, loader.num_workers))
                if now > seconds:
                    return progress
                if situation == "slow consumer":
                    time.sleep(STEP_SECONDS)


def rate(progress: Progress, first: float, last: float) -> float:
    """Return the samples per second between two times. Samples arrive in batches, so the last one is interpolated."""
    return (num_at(progress, last) - num_at(progress, first)) / (last - first)


def num_at(progress: Progress, seconds: float) -> float:
    before_seconds, before = 0.0, 0
    for at, num_samples, _ in progress:
        if at > seconds:
            return before + (num_samples - before) * (seconds - before_seconds) / (at - before_seconds)
        before_seconds, before = at, num_samples
    return before


def arrival(progress: Progress, wanted: float) -> float | None:
    """Return when the rate of the following seconds was first high enough."""
    end = progress[-1][0] - NEAR_SECONDS
    times = (step / 10 for step in range(int(end * 10) + 1))
    return next((at for at in times if rate(progress, at, at + NEAR_SECONDS) >= wanted), None)


def run(situation: str, num_workers: int | str, seconds: float, folder: Path) -> Progress:
    case = json.dumps([situation, num_workers, seconds, str(folder)])
    command = [sys.executable, "-W", "ignore", __file__, "--case", case]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 100)
    found: Progress = json.loads(done.stdout)
    return found


@contextmanager
def photo_folder() -> Iterator[Path]:
    """Yield a folder of photographs, which a server of objects serves too."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.photos import make_photo_tree

    with tempfile.TemporaryDirectory() as name:
        make_photo_tree(Path(name) / "photos", num_images=NUM_PHOTOS, num_classes=4, seed=0)
        list_bucket(Path(name) / "photos")
        with serving(Path(name), Delays(delay_ms=50)) as server:
            os.environ.update(server.s3_environment())
            yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter runs, fewer fixed numbers; write no record")
    parser.add_argument("--only", nargs="+", choices=SITUATIONS, default=list(SITUATIONS))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        situation, num_workers, seconds, folder = json.loads(arguments.case)
        print(json.dumps(measure(situation, num_workers, seconds, Path(folder))))
        return
    fixed, fixed_seconds, auto_seconds = (QUICK_FIXED, 1.0, 3.0) if arguments.quick else (FIXED, 6.0, 21.0)
    with photo_folder() as folder:
        for situation in arguments.only:
            rates = {}
            for number in fixed:
                progress = run(situation, number, fixed_seconds, folder)
                rates[number] = round(rate(progress, fixed_seconds / 3, progress[-1][0]), 1)
            best = max(rates.values())
            progress = run(situation, "auto", auto_seconds, folder)
            at = arrival(progress, NEAR * best)
            figures = {
                "samples_per_second": rates,
                "best_samples_per_second": best,
                "auto_arrival_seconds": None if at is None else round(at, 1),
                "auto_samples_per_second": round(rate(progress, auto_seconds * 2 / 3, progress[-1][0]), 1),
                "auto_workers": progress[-1][2],
                "auto_most_workers": max(workers for _, _, workers in progress),
            }
            case = {"situation": situation, "batch_size": BATCH_SIZE, "near": NEAR}
            print(json.dumps({**case, **figures}), flush=True)
            if not arguments.quick:
                write_record("auto", case, figures)


if __name__ == "__main__":
    main()
