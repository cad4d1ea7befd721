"""How much padding do buckets save, what does decoding to the shape of a bucket cost, and what does a table of rows?

    python benchmarks/bench_buckets.py [--only padding] [--quick]

`padding` is the share of padded values in batches of 32 samples with log-normal lengths, each padded to its longest.
`aspect` decodes regions of the same area from photographs of different aspect ratios, to one square shape and to the
shapes of their buckets with about as many pixels, by turns, with two workers. `table` makes the table of rows of many
samples in a fresh process, then finds batches one after another and at random; private memory is measured without pages
that the kernel may drop.
Records: benchmarks/records/buckets.jsonl.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from records import write_record

import mpload
from mpload.index.bucket_table import BucketChoice, BucketTable, facts_of, write_table
from mpload.memory.usage import process_memory
from mpload.plan.bucket_plan import BucketPlan, BucketSizes

BATCH_SIZE = 32
SIDE = 224
NUM_BUCKETS = 32


def padding(folder: Path, *, sigma: float, num_buckets: int, num_samples: int) -> dict[str, float]:
    """Return the share of padded values in an epoch; `num_buckets` is 0 to shuffle without buckets."""
    lengths = np.random.default_rng(0).lognormal(np.log(500), sigma, num_samples).round().clip(1).astype(int)
    path = folder / f"{sigma}.txt"
    path.write_text("#mpload 1\n#columns length:int\n" + "\n".join(map(str, lengths.tolist())) + "\n")
    buckets = mpload.Buckets(by="length", num_buckets=num_buckets) if num_buckets else None
    dataset: Any = mpload.MPDataset(path, batch_size=BATCH_SIZE, shuffle=True, tail="ragged", buckets=buckets)
    sizes = [(len(batch), int(batch.max())) for batch in dataset]
    return {"padding": round(1 - float(lengths.sum()) / sum(size * longest for size, longest in sizes), 4)}


def make_photos(folder: Path, num_images: int) -> Path:
    """Write photographs whose aspect ratios are log-uniform from 1:2 to 2:1, and their index with sizes."""
    from skimage import data

    photo, rng = data.astronaut()[..., ::-1], np.random.default_rng(0)  # type: ignore[no-untyped-call]
    images = folder / "photos"
    images.mkdir()
    for number in range(num_images):
        ratio = 2 ** rng.uniform(-1, 1)
        size = round(430 * ratio**0.5), round(430 / ratio**0.5)
        cv2.imwrite(
            str(images / f"{number}.jpg"), cv2.resize(np.ascontiguousarray(photo), size), [cv2.IMWRITE_JPEG_QUALITY, 90]
        )
    return mpload.build_index(images, folder / "photos.txt", columns="image:path", with_image_sizes=True)


def images_per_second(loader: mpload.MPLoader[Any], *, num_epochs: int) -> tuple[float, float]:
    """Return the speed of some epochs, and the mean number of pixels of an image."""
    num_images = num_pixels = 0
    start = time.perf_counter()
    for _ in range(num_epochs):
        for images, *_ in loader:
            num_images += len(images)
            num_pixels += len(images) * images.shape[-1] * images.shape[-2]
    return num_images / (time.perf_counter() - start), num_pixels / num_images


def aspect(folder: Path, *, num_images: int, repetitions: int) -> dict[str, float]:
    """Return how fast images are decoded to the shapes of buckets, relative to one shape."""
    path = make_photos(folder, num_images)
    decode = mpload.RandomResizedCrop(SIDE, scale=(0.25, 0.25))  # regions of one area, however wide an image is
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "tail": "drop"}
    buckets = mpload.Buckets(by="aspect", area=SIDE * SIDE, step=32, max_ratio=2)
    fixed: Any = mpload.MPDataset(path, decode=decode, **options)  # type: ignore[arg-type]
    bucketed: Any = mpload.MPDataset(path, decode=decode, buckets=buckets, **options)  # type: ignore[arg-type]
    with mpload.MPLoader(fixed, num_workers=2) as first, mpload.MPLoader(bucketed, num_workers=2) as second:
        rounds = []
        for number in range(repetitions + 1):
            (fixed_speed, fixed_pixels), (speed, pixels) = (
                images_per_second(loader, num_epochs=1) for loader in (first, second)
            )
            if number:  # the first one warms up
                rounds.append((fixed_speed, speed, speed / fixed_speed, pixels / fixed_pixels))
    medians = [statistics.median(values) for values in zip(*rounds, strict=True)]
    names = ("fixed_images_per_second", "bucketed_images_per_second", "speed_ratio", "pixel_ratio")
    return {name: round(value, 3) for name, value in zip(names, medians, strict=True)} | {"repetitions": repetitions}


def table(folder: Path, *, num_samples: int, repetitions: int) -> dict[str, float]:
    """Return the time to make a table, and to find the sample_ids of a batch of one of eight ranks."""
    path, rng = folder / "table", np.random.default_rng(0)
    blocks = [rng.geometric(0.1, 1 << 16).clip(1, NUM_BUCKETS) - 1 for _ in range(8)]

    def buckets() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for number, first in enumerate(range(0, num_samples, 1 << 16)):
            found = blocks[number % 8][: num_samples - first]
            yield found, found

    start = time.perf_counter()
    with path.open("wb") as file:
        write_table(file, buckets, num_samples=num_samples, num_buckets=NUM_BUCKETS, facts={})
        file.flush()
        os.fsync(file.fileno())  # pages that are not on the disk yet cannot be dropped
    seconds = time.perf_counter() - start
    rows = BucketTable(path=path, num_samples=num_samples, facts=facts_of(path, num_samples=num_samples))
    order = BucketChoice(spec="", table=rows, is_shuffled=True, shown="").order(
        num_samples=num_samples, seed=0, epoch=0
    )
    sizes = BucketSizes(counts=rows.counts, batch_sizes=(BATCH_SIZE,) * NUM_BUCKETS)
    topology = mpload.Topology(rank=3, world_size=8)
    plan = BucketPlan(sizes=sizes, topology=topology, tail=mpload.Tail.PAD, seed=0, epoch=0)
    figures = {"make_ns_per_sample": round(seconds / num_samples * 1e9, 1)}
    first = plan.num_batches // 3
    for name, batches in (
        ("next_batch_us", range(first, first + repetitions)),
        ("any_batch_us", rng.integers(0, plan.num_batches, repetitions).tolist()),
    ):
        taken = []
        for batch in batches:
            start = time.perf_counter()
            order.sample_ids(plan.positions(batch))
            taken.append((time.perf_counter() - start) * 1e6)
        figures[name] = round(statistics.median(taken), 1)
    memory = process_memory()
    return figures | {"uss_mb": round((memory.uss_bytes - memory.clean_bytes) / 1e6, 1)}


MEASURES = {"padding": padding, "aspect": aspect, "table": table}


def cases(*, quick: bool) -> list[dict[str, Any]]:
    """Return what is measured, and how."""
    sigmas, nums_buckets = ([0.5], [0, 32]) if quick else ([0.5, 0.75, 1.0], [0, 16, 32, 64, 128])
    num_samples, sizes = (20_000, [10**5]) if quick else (200_000, [10**6, 10**8])
    paddings = [
        {"question": "padding", "sigma": sigma, "num_buckets": number, "num_samples": num_samples}
        for sigma in sigmas
        for number in nums_buckets
    ]
    tables = [{"question": "table", "num_samples": number, "repetitions": 50 if quick else 500} for number in sizes]
    return [
        *paddings,
        *tables,
        {"question": "aspect", "num_images": 512 if quick else 2048, "repetitions": 1 if quick else 7},
    ]


def measure(question: str, **case: Any) -> dict[str, float]:
    """Measure one case."""
    with tempfile.TemporaryDirectory() as folder:
        return MEASURES[question](Path(folder), **case)  # type: ignore[operator,no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASURES, help="one of the questions")
    parser.add_argument("--quick", action="store_true", help="few samples; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(**json.loads(arguments.case))))
        return
    for case in cases(quick=arguments.quick):
        if arguments.only not in {None, case["question"]}:
            continue
        command = [sys.executable, __file__, "--case", json.dumps(case)]
        figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(case, figures)
        if not arguments.quick:
            write_record("buckets", case, figures)


if __name__ == "__main__":
    main()
