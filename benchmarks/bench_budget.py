"""Does a loader stay within its memory budget in a small container, with an index of ten million samples?

    python benchmarks/bench_budget.py [--quick] [--num-samples 10000000] [--num-batches 2000]

Eight workers make the first batches of an epoch, each of 256 images of 224x224x3, from small photographs. Everything
runs in a control group with a limit of 1 GB: the training process with torch, building and opening the index, zygote,
workers, slots and page cache. The memory of the loader is the memory of the container that the kernel cannot reclaim
(anonymous and shared), minus that of the training process itself, sampled five times a second. A control group needs
Linux, and root or a delegated group. Without one, the benchmark says so and runs without the limit. Records:
benchmarks/records/budget.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from records import write_record

from mpload.cli.photos import SCENES, photo
from mpload.memory.usage import anonymous_bytes, sum_memory, tree_memory
from mpload.units import parse_bytes

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.containers import Container, memory_container

NUM_PHOTOS = 200
PHOTO_SIDE = 96
LIMIT_BYTES = 10**9

PROGRAM = """
import json, sys, time, warnings
path, num_batches, num_workers, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
import mpload
warnings.simplefilter("always", mpload.MploadWarning)
start = time.perf_counter()
dataset = mpload.MPDataset(
    path, decode=mpload.RandomResizedCrop(224), batch_size=256, shuffle=True, topology=mpload.Topology()
)
opened = time.perf_counter()
with mpload.MPLoader(dataset, num_workers=num_workers, memory_budget=budget) as loader:
    batches = iter(loader)
    for number in range(num_batches):
        images, labels = next(batches)
        if number == 0:
            first = time.perf_counter()
    assert images.shape == (256, 3, 224, 224)
    seconds = time.perf_counter() - first
    engine, stats = loader._engine, loader.stats()
    figures = {
        "num_samples_in_index": len(dataset.index),
        "num_batches": stats.num_batches,
        "images_per_second": round((num_batches - 1) * 256 / seconds),
        "index_seconds": round(opened - start, 2),
        "num_slots": engine.pool.ring.num_slots,
        "num_shrinks": engine.governor.num_shrinks,
        "num_deaths": stats.num_deaths,
    }
print(json.dumps(figures))
"""


def make_index(folder: Path, num_samples: int) -> Path:
    """Write some small photographs, and an index that lists them over and over."""
    names = list(SCENES)
    for number in range(NUM_PHOTOS):
        pixels = photo(names[number % len(names)], np.random.default_rng(number))
        small = cv2.resize(pixels, (PHOTO_SIDE, PHOTO_SIDE), interpolation=cv2.INTER_AREA)
        (folder / f"{number:04d}.jpg").write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(small), quality=90))
    block = "".join(f"{number:04d}.jpg\t{number % len(names)}\n" for number in range(NUM_PHOTOS))
    path = folder / "train.txt"
    with path.open("w", encoding="ascii") as file:
        file.write("#mpload 1\n#columns image:path label:int\n")
        for _ in range(num_samples // NUM_PHOTOS):
            file.write(block)
    return path


def measure(case: dict[str, Any], path: Path, container: Container | None) -> dict[str, Any]:
    """Run the loader in its own process, inside the container, and sample the memory of both."""
    join = [] if container is None else ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(container.procs)]
    words = [str(path), str(case["num_batches"]), str(case["num_workers"]), case["memory_budget"]]
    process = subprocess.Popen(
        [*join, sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(path.parent / "cache")},
    )
    peaks = {"peak_loader_bytes": 0, "peak_anonymous_bytes": 0, "peak_tree_pss_bytes": 0}

    def update_peak(name: str, num_bytes: int) -> None:
        peaks[name] = max(peaks[name], num_bytes)

    num_polls = 0
    while process.poll() is None:
        if container is not None:
            taken_bytes = container.anonymous_bytes
            update_peak("peak_anonymous_bytes", taken_bytes)
            own_bytes = anonymous_bytes(process.pid)
            if own_bytes:
                update_peak("peak_loader_bytes", taken_bytes - own_bytes)
        if num_polls % 10 == 0:  # seldom, because PSS walks all pages of all processes
            update_peak("peak_tree_pss_bytes", sum_memory(tree_memory(process.pid)).pss_bytes)
        num_polls += 1
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"the loader ended with exit code {process.returncode}")
    assert process.stdout is not None
    figures = {**json.loads(process.stdout.read()), "budget_bytes": parse_bytes(case["memory_budget"])}
    if container is None:
        return {**figures, "peak_tree_pss_bytes": peaks["peak_tree_pss_bytes"]}
    counts = {"peak_usage_with_page_cache_bytes": container.peak_bytes, "num_oom_kills": container.num_oom_kills}
    return {**figures, **peaks, **counts, "is_within_budget": peaks["peak_loader_bytes"] <= figures["budget_bytes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 batches over 200,000 samples; write no record")
    parser.add_argument("--num-samples", type=int, default=10_000_000)
    parser.add_argument("--num-batches", type=int, default=2000)
    parser.add_argument("--num-workers", type=int, default=8)
    parser.add_argument("--memory-budget", default="400MiB")
    arguments = parser.parse_args()
    case = {
        "num_batches": 20 if arguments.quick else arguments.num_batches,
        "num_workers": arguments.num_workers,
        "memory_budget": arguments.memory_budget,
    }
    with ExitStack() as stack:
        path = make_index(
            Path(stack.enter_context(tempfile.TemporaryDirectory())),
            200_000 if arguments.quick else arguments.num_samples,
        )
        container = stack.enter_context(memory_container(LIMIT_BYTES))
        if container is None:
            print("cannot create a control group with a memory limit here: running without one", file=sys.stderr)
        case["container_bytes"] = None if container is None else LIMIT_BYTES
        figures = measure(case, path, container)
    print(json.dumps({**case, **figures}, indent=1))
    if not arguments.quick:
        write_record("budget", case, figures)
    if not figures.get("is_within_budget", True):
        raise SystemExit("the loader exceeded its memory budget")


if __name__ == "__main__":
    main()
