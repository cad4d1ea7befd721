"""How often does PartialCache hit, compared with an LRU cache? What does a hit cost? How much faster is an epoch?

    python benchmarks/bench_cache.py [--quick]

- "hits": the hit rate from the second epoch on, with a cache for 0.1 to 1.0 of a dataset that is reshuffled every
  epoch. The cache counts its own hits. For comparison, an LRU cache for as many samples is simulated over the same
  orders.
- "cost": the microseconds that a hit, a sample outside of the subset, and reading ahead add to reading a file from the
  page cache, which is the fastest way to read a sample. Medians over rounds that take turns.
- "worker": the processor time of a worker for each crop, without a cache, and from full caches in the same folder.
  Loaders with one worker take turns, epoch by epoch; medians.
- "epochs": the images per second of an MPLoader with two workers: without a cache, in the epoch that fills a cache of
  resized images, and in the epochs after it.

Each measurement runs in a fresh process. Records: benchmarks/records/cache.jsonl. `python benchmarks/report.py` draws
cache.png from them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from records import write_record

import mpload
from mpload.samples.cache.choice import open_cache
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.storage.ranges import ByteRange

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.photos import make_photo_tree

FRACTIONS = tuple(round(0.1 * step, 1) for step in range(1, 11))
SAMPLE_BYTES = (4_000, 110_000)
NUM_FILES = 200


def measure_hits(folder: Path, num_samples: int, num_epochs: int) -> dict[str, Any]:
    """Return the hit rates from the second epoch on, for each cached fraction."""
    (folder / "shard").write_bytes(np.arange(num_samples, dtype=np.int64).tobytes())
    lines = "".join(f"{8 * number}+8@shard\n" for number in range(num_samples))
    (folder / "train.txt").write_text("#mpload 1\n#columns data:span\n" + lines)
    figures: dict[str, Any] = {"fractions": FRACTIONS, "partial": [], "subset": [], "lru": []}
    for fraction in FRACTIONS:
        dataset = mpload.MPDataset(
            folder / "train.txt",
            decode=mpload.RawBytes(),
            batch_size=500,
            tail="ragged",
            shuffle=True,
            topology=mpload.Topology(),
            cache=mpload.PartialCache(folder / f"cache-{fraction}", fraction=fraction),
        )
        cache = dataset._run.cache  # noqa: SLF001  counts its hits
        assert cache is not None
        for epoch in range(num_epochs):
            if epoch == 1:
                assert cache.counts.hits == 0
            for _ in dataset:
                pass
        num_later = (num_epochs - 1) * num_samples
        figures["partial"].append(round(cache.counts.hits / num_later, 4))
        figures["subset"].append(round(sum(map(cache.holds, range(num_samples))) / num_samples, 4))
        figures["lru"].append(round(lru_hits(num_samples, round(fraction * num_samples), num_epochs) / num_later, 4))
        cache.close()
    misses = [abs(found - fraction) for found, fraction in zip(figures["partial"], FRACTIONS, strict=True)]
    figures["largest_difference"] = round(max(misses), 4)
    return figures


def lru_hits(num_samples: int, capacity: int, num_epochs: int) -> int:
    """Return the number of hits of an LRU cache in all epochs except the first."""
    held: OrderedDict[int, None] = OrderedDict()
    num_hits = 0
    for epoch in range(num_epochs):
        order = mpload.Shuffle().order(num_samples=num_samples, seed=0, epoch=epoch)
        for sample_id in order.sample_ids(np.arange(num_samples)).tolist():
            if sample_id in held:
                held.move_to_end(sample_id)
                num_hits += epoch > 0
            else:
                held[sample_id] = None
                if len(held) > capacity:
                    held.popitem(last=False)
    return num_hits


def measure_cost(folder: Path, num_rounds: int) -> dict[str, Any]:
    """Return microseconds per sample, by the size of the samples."""
    figures: dict[str, Any] = {}
    for num_bytes in SAMPLE_BYTES:
        found = cost_of(folder / str(num_bytes), num_bytes, num_rounds)
        figures |= {f"{name}_of_{num_bytes}_bytes": figure for name, figure in found.items()}
    return figures


def cost_of(folder: Path, num_bytes: int, num_rounds: int) -> dict[str, float]:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(NUM_FILES):
        (folder / f"{number}.bin").write_bytes(rng.bytes(num_bytes))
    (folder / "all.txt").write_text("".join(f"{number}.bin\n" for number in range(NUM_FILES)))
    index = mpload.open_index(folder / "all.txt")
    pipeline = Pipeline(index=index, decode=mpload.RawBytes(), policy=ErrorPolicy())
    whole, none = (
        open_cache(mpload.PartialCache(folder / f"cache-{fraction}", fraction=fraction), index, read=pipeline.read)
        for fraction in (1.0, 1e-9)
    )
    paths = [[f"{number}.bin"] for number in range(NUM_FILES)]
    ranges = [[ByteRange(path[0])] for path in paths]
    storage, ahead = pipeline.opened_storage, pipeline.ahead

    def hit(number: int) -> object:
        return whole.read(number, paths[number], lambda: storage.read(ranges[number]))

    def outside(number: int) -> object:
        return none.read(number, paths[number], lambda: storage.read(ranges[number]))

    def file(number: int) -> object:
        return storage.read(ranges[number])

    def read_ahead(number: int) -> object:
        return ahead.read(number, ranges[number])

    found = medians([hit, outside, file, read_ahead], num_rounds)
    assert whole.counts.misses == NUM_FILES
    assert not ahead.was_active
    return {
        "file_read_us": found["file"],
        "hit_us": found["hit"],
        "hit_adds_us": round(found["hit"] - found["file"], 2),
        "outside_adds_us": round(found["outside"] - found["file"], 2),
        "read_ahead_adds_us": round(found["read_ahead"] - found["file"], 2),
    }


def medians(functions: list[Callable[[int], object]], num_rounds: int) -> dict[str, float]:
    """Return the median time of each function in microseconds; the functions take turns."""
    seconds: dict[str, list[float]] = {function.__name__: [] for function in functions}
    for turn in range(num_rounds + 1):
        for function in functions:
            for number in range(NUM_FILES):
                start = time.perf_counter()
                function(number)
                if turn:  # the first turn warms up
                    seconds[function.__name__].append(time.perf_counter() - start)
    return {name: round(statistics.median(all_) * 1e6, 2) for name, all_ in seconds.items()}


def crops(index: Path, cache: mpload.PartialCache | None) -> mpload.MPDataset:
    return mpload.MPDataset(
        index,
        decode=mpload.RandomResizedCrop(224),
        batch_size=64,
        tail="ragged",
        shuffle=True,
        topology=mpload.Topology(),
        cache=cache,
    )


def measure_epochs(folder: Path, num_images: int, num_epochs: int) -> dict[str, Any]:
    """Return images per second without a cache, while a cache is filled, and from the full cache."""
    make_photo_tree(folder / "train", num_images=num_images, num_classes=4, seed=0)
    index = mpload.build_index(folder / "train", folder / "train.txt")

    def speeds(cache: mpload.PartialCache | None) -> list[float]:
        found = []
        with mpload.MPLoader(crops(index, cache), num_workers=2, memory_budget="1GiB") as loader:
            for _ in range(num_epochs):
                start = time.perf_counter()
                num = sum(len(labels) for _, labels in loader)
                found.append(round(num / (time.perf_counter() - start), 1))
        return found

    raw = speeds(None)
    filling, *cached = speeds(mpload.PartialCache(folder / "cache", fraction=1.0, what="resized"))
    return {
        "raw_images_per_second": raw,
        "filling_images_per_second": filling,
        "cached_images_per_second": cached,
        "cached_over_first": round(statistics.median(cached) / filling, 2),
        "cached_over_raw": round(statistics.median(cached) / statistics.median(raw), 2),
    }


def measure_worker(folder: Path, num_images: int, num_epochs: int) -> dict[str, Any]:
    """Return the processor time of a worker in microseconds for each image, without a cache and from full ones."""
    make_photo_tree(folder / "train", num_images=num_images, num_classes=4, seed=0)
    index = mpload.build_index(folder / "train", folder / "train.txt")
    caches = {
        "no_cache": None,
        "bytes": mpload.PartialCache(folder / "whole", fraction=1.0),
        "half_of_bytes": mpload.PartialCache(folder / "half", fraction=0.5),
        "resized": mpload.PartialCache(folder / "resized", fraction=1.0, what="resized"),
    }
    found: dict[str, list[float]] = {name: [] for name in caches}
    with ExitStack() as opened:
        loaders = {}
        for name, cache in caches.items():
            loaders[name] = opened.enter_context(mpload.MPLoader(crops(index, cache), num_workers=1))
        for loader in loaders.values():
            assert sum(len(labels) for _, labels in loader) == num_images  # which fills its cache
        for _ in range(num_epochs):
            for name, loader in loaders.items():
                worker = next(psutil.Process(pid) for each, pid in loader.pids.items() if "worker" in each)
                before = sum(worker.cpu_times()[:2])
                num = sum(len(labels) for _, labels in loader)
                found[name].append((sum(worker.cpu_times()[:2]) - before) / num * 1e6)
    return {f"{name}_cpu_us": round(statistics.median(times)) for name, times in found.items()}


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "hits": measure_hits,
    "cost": measure_cost,
    "worker": measure_worker,
    "epochs": measure_epochs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller measurements; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case = json.loads(arguments.case)
        print(json.dumps(MEASURES[case.pop("measure")](Path(arguments.folder), **case)))
        return
    is_quick = arguments.quick
    for case in (
        {"measure": "hits", "num_samples": 1_000 if is_quick else 20_000, "num_epochs": 3},
        {"measure": "cost", "num_rounds": 5 if is_quick else 60},
        {"measure": "worker", "num_images": 100 if is_quick else 1_000, "num_epochs": 1 if is_quick else 7},
        {"measure": "epochs", "num_images": 100 if is_quick else 1_000, "num_epochs": 3 if is_quick else 4},
    ):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-W", "ignore", __file__, "--case", json.dumps(case), "--folder", folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        figures = json.loads(done.stdout)
        print(json.dumps({**case, **figures}), flush=True)
        if not is_quick:
            write_record("cache", case, figures)


if __name__ == "__main__":
    main()
