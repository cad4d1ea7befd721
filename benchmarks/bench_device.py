"""What does it cost to have normalised batches ready on the device when the training loop asks for them?

    python benchmarks/bench_device.py [--quick] [--cpu] [--gpu] [--together] [--batch-samples N ...] [--networks ...]

Each case runs in a fresh process; images are uint8 [224, 224, 3]. On any machine it measures the conversion to a
normalised dtype on the CPU, fused and as the usual chain of torch operations, alone and after a loader of real JPEGs.
With a GPU it also measures copies from pinned and pageable memory, the conversion there, and training steps of a
ResNet-50 and a ViT-B (bfloat16, channels_last) that are fed from the host in several ways, compared with steps whose
batch is already on the device. Without a GPU it lists what it skips. bench_device_peers.py trains from JPEGs.
Records: benchmarks/records/device.jsonl.

"hidden" is the fraction of the time for copy and conversion, measured alone, that does not make the step longer. "idle"
is the fraction of the time in which the device had no step to run, measured by events around each step. Ways to feed a
step take turns in one process, and figures are medians.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from feeds import (
    FEEDS,
    MEAN,
    NETWORKS,
    SIZE,
    STD,
    HostBatches,
    TrainingStep,
    chain,
    pixels,
    plain_batches,
    resident_batches,
)
from records import write_record

from mpload import DevicePrefetcher, MPDataset, MPLoader, RandomResizedCrop, Topology, build_index
from mpload.device.normalise import Normaliser

ROOT = Path(__file__).parents[1]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "uint8": None}


def median_seconds(work: Callable[[], object], num: int, wait: Callable[[], object] = lambda: None) -> float:
    seconds = []
    for number in range(num + 3):
        start = time.perf_counter()
        work()
        wait()
        if number >= 3:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


# On the CPU.


def measure_convert(how: str, dtype: str, batch_samples: int, num: int) -> dict[str, float]:
    """Return the wall-clock time and the CPU time of all threads for a conversion, in microseconds per image.

    "fused" writes into existing memory; the chain of torch operations allocates new memory each time.
    """
    images = pixels(batch_samples)
    target = DTYPES[dtype] or torch.uint8
    out = torch.empty(images.shape, dtype=target, memory_format=torch.channels_last)
    normaliser = Normaliser(dtype=target, mean=MEAN, std=STD)

    def convert() -> object:
        return normaliser.write(images, out) if how == "fused" else chain(images).to(target)

    convert()
    start = time.process_time()
    seconds = median_seconds(convert, num)
    cpu_seconds_each = (time.process_time() - start) / (num + 3)
    return {
        "us_per_image": round(seconds / batch_samples * 1e6, 1),
        "cpu_us_per_image": round(cpu_seconds_each / batch_samples * 1e6, 1),
    }


def measure_photos(how: str, batch_samples: int, num: int) -> dict[str, float]:
    """Return the rate and the CPU time of all processes for real JPEGs that are converted to float32 on the CPU."""
    with tempfile.TemporaryDirectory() as name, photo_loader(Path(name), batch_samples, num) as loader:
        batches: Iterable[Any] = loader
        if how == "prefetcher":
            batches = DevicePrefetcher(loader, device="cpu", mean=MEAN, std=STD)
        for images, _ in batches:  # the first epoch warms the caches
            _ = chain(images) if how == "chain" else images
        start, start_cpu, num_images = time.perf_counter(), cpu_seconds(), 0
        for _ in range(3):
            for images, _ in batches:
                _ = chain(images) if how == "chain" else images
                num_images += len(images)
        seconds = time.perf_counter() - start
        taken = cpu_seconds() - start_cpu
    return {
        "images_per_second": round(num_images / seconds, 1),
        "cpu_us_per_image": round(taken / num_images * 1e6, 1),
    }


def photo_loader(folder: Path, batch_samples: int, num_images: int) -> MPLoader:
    return MPLoader(photo_dataset(folder, batch_samples, num_images))


def photo_dataset(folder: Path, batch_samples: int, num_images: int) -> MPDataset:
    sys.path.insert(0, str(ROOT))
    from tests.support.photos import make_photo_tree

    make_photo_tree(folder / "train", num_images=num_images, num_classes=8, seed=0)
    return MPDataset(
        build_index(folder / "train", folder / "train.txt"),
        decode=RandomResizedCrop(SIZE),
        batch_size=batch_samples,
        shuffle=True,
        tail="drop",
        topology=Topology(),
    )


def cpu_seconds() -> float:
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


# On a GPU.


def bandwidth(work: Callable[[], object], num_bytes: int) -> float:
    """Return the GB/s of work that is queued without waiting for it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return num_bytes / (time.perf_counter() - start) / 1e9


def measure_copy(batch_samples: int, num: int, *, rounds: int = 5) -> dict[str, float]:
    """Return the rates of copies to the device: by a plain `copy_`, and by the prefetcher. They take turns."""
    pinned = HostBatches(batch_samples, num)
    pageable = HostBatches(batch_samples, num, pinned=False)
    target = torch.empty_like(pinned.pairs[0][0], device="cuda")
    prefetcher = DevicePrefetcher(pinned, device="cuda", dtype=None)
    for images, _ in prefetcher:  # right pixels?
        if not torch.equal(images.cpu(), pinned.pairs[0][0]) and not torch.equal(images.cpu(), pinned.pairs[1][0]):
            raise SystemExit("the prefetcher delivers wrong pixels")

    def copies(batches: HostBatches) -> None:
        for images, _ in batches:
            target.copy_(images, non_blocking=True)

    ways: dict[str, Callable[[], object]] = {
        "pinned": lambda: copies(pinned),
        "pageable": lambda: copies(pageable),
        "prefetcher": lambda: [None for _ in prefetcher],
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, work in ways.items():
            found[way].append(bandwidth(work, num * target.nbytes))
    ratios = [ours / bare for ours, bare in zip(found["prefetcher"], found["pinned"], strict=True)]
    return {
        **{f"{way}_gb_per_second": round(statistics.median(rates), 2) for way, rates in found.items()},
        "prefetcher_to_pinned": round(statistics.median(ratios), 3),
    }


def measure_convert_gpu(batch_samples: int, num: int) -> dict[str, float]:
    """Return the time of a conversion to bfloat16, in one kernel and as the usual chain, beside that of a copy."""
    images = pixels(batch_samples).cuda()
    out = torch.empty(images.shape, dtype=torch.bfloat16, memory_format=torch.channels_last, device="cuda")
    normaliser = Normaliser(dtype=torch.bfloat16, mean=MEAN, std=STD)
    twin = out.clone()
    ways: dict[str, Callable[[], object]] = {
        "fused": lambda: normaliser.write(images, out),
        "chain": lambda: chain(images).to(torch.bfloat16),
        "copy": lambda: twin.copy_(out),
    }
    figures = {}
    for way, work in ways.items():
        before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        for _ in range(3):
            work()
        before.record()
        for _ in range(num):
            work()
        behind.record()
        torch.cuda.synchronize()
        figures[f"{way}_us_per_batch"] = round(1e3 * before.elapsed_time(behind) / num, 1)
    largest = (out.float() - chain(images)).abs().max().item()
    if largest > 0.02:
        raise SystemExit(f"the conversion is wrong by up to {largest}")
    return figures


def measure_steps(network: str, batch_samples: int, num: int, *, rounds: int = 3) -> dict[str, float]:
    """Return the times of training steps that are fed from pinned host memory in several ways, which take turns."""
    step = TrainingStep(network)
    for images, labels in FEEDS["resident"](HostBatches(batch_samples, 8)):  # cuDNN chooses its algorithms
        step(images, labels)
    step.times(skip=0)
    totals: dict[str, list[float]] = {feed: [] for feed in FEEDS}
    idle: dict[str, list[float]] = {feed: [] for feed in FEEDS}
    host = HostBatches(batch_samples, num)
    made = {feed: make(host) for feed, make in FEEDS.items() if make not in {resident_batches, plain_batches}}
    for _ in range(rounds):
        for feed, make in FEEDS.items():
            for images, labels in made.get(feed) or make(host):
                step(images, labels)
            each, busy = step.times(skip=num // 4)
            totals[feed] += each
            idle[feed].append(1 - sum(busy) / sum(each))
    figures = {}
    for feed in FEEDS:
        name = feed.replace(" ", "_")
        figures[f"{name}_step_ms"] = round(statistics.median(totals[feed]), 3)
        figures[f"{name}_idle_fraction"] = round(max(0.0, statistics.median(idle[feed])), 4)
    return figures


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "convert": measure_convert,
    "photos": measure_photos,
    "copy": measure_copy,
    "convert on the device": measure_convert_gpu,
    "steps": measure_steps,
}


def cpu_cases(*, is_quick: bool) -> Iterator[dict[str, Any]]:
    num = 5 if is_quick else 30
    for batch_samples in (32,) if is_quick else (8, 32, 128):
        for dtype in ("float32",) if is_quick else ("float32", "bfloat16"):
            for how in ("fused", "chain"):
                case = {"measure": "convert", "how": how, "dtype": dtype, "batch_samples": batch_samples, "num": num}
                yield case
    for how in ("uint8", "prefetcher", "chain"):
        yield {"measure": "photos", "how": how, "batch_samples": 32, "num": 64 if is_quick else 512}


def gpu_cases(batch_sizes: Sequence[int], networks: Sequence[str], *, is_quick: bool) -> Iterator[dict[str, Any]]:
    for batch_samples in batch_sizes:
        num = 20 if is_quick else max(20, min(100, 6400 // batch_samples))
        yield {"measure": "copy", "batch_samples": batch_samples, "num": num}
        yield {"measure": "convert on the device", "batch_samples": batch_samples, "num": num}
        for network in networks:
            yield {
                "measure": "steps",
                "network": network,
                "batch_samples": batch_samples,
                "num": 16 if batch_samples > 64 else 40,
            }


def hidden_fractions(results: list[tuple[dict[str, Any], dict[str, float]]]) -> Iterator[dict[str, Any]]:
    """Yield, for each network and batch size, the fraction of copy and conversion that each feed hides."""
    alone: dict[int, float] = defaultdict(float)
    for case, figures in results:
        size = case["batch_samples"]
        if case["measure"] == "copy":
            alone[size] += size * 3 * SIZE**2 / figures["pinned_gb_per_second"] / 1e6
        elif case["measure"] == "convert on the device":
            alone[size] += figures["fused_us_per_batch"] / 1e3
    for case, figures in results:
        if case["measure"] == "steps":
            found = {"measure": "hidden", **{key: case[key] for key in ("network", "batch_samples")}}
            work_ms = alone[case["batch_samples"]]
            for feed in FEEDS:
                longer_ms = figures[f"{feed.replace(' ', '_')}_step_ms"] - figures["resident_step_ms"]
                if feed != "resident":
                    yield {
                        **found,
                        "feed": feed,
                        "work_ms": work_ms,
                        "hidden_fraction": 1 - max(0.0, longer_ms) / work_ms,
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images; write no record")
    parser.add_argument("--cpu", action="store_true", help="run only the cases that need no GPU")
    parser.add_argument("--gpu", action="store_true", help="run only the cases that need a GPU")
    parser.add_argument("--batch-samples", type=int, nargs="+", metavar="N", help="batch sizes of the GPU cases")
    parser.add_argument(
        "--together", action="store_true", help="short cases share a process: for a machine that is lent by the minute"
    )
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        for case in json.loads(arguments.case):
            print(json.dumps(MEASURES[case.pop("measure")](**case)), flush=True)
        return
    cases = [] if arguments.gpu else [("cpu", case) for case in cpu_cases(is_quick=arguments.quick)]
    if torch.cuda.is_available() and not arguments.cpu:
        name = torch.cuda.get_device_name()
        sizes = arguments.batch_samples or ([64] if arguments.quick else [8, 16, 32, 64, 128, 256])
        cases += [(name, case) for case in gpu_cases(sizes, arguments.networks, is_quick=arguments.quick)]
    else:
        print("skipped, because they need a GPU: copies, conversion on the device, overlap with a training step")
    results = []
    groups = [[each] for each in cases]
    if arguments.together:
        short = [each for each in cases if each[1]["measure"] != "steps"]
        groups = [short, *([each] for each in cases if each not in short)]
    for group in groups:
        command = [sys.executable, "-W", "ignore", __file__, "--case", json.dumps([case for _, case in group])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        for (device, case), line in zip(group, done.stdout.splitlines(), strict=True):
            figures = json.loads(line)
            results.append((case, figures))
            print(json.dumps({**case, **figures}), flush=True)
            if not arguments.quick:
                write_record("device", {"device": device, **case}, figures)
    for found in hidden_fractions(results):
        print(json.dumps(found))
        if not arguments.quick:
            figures = {name: round(found.pop(name), 3) for name in ("work_ms", "hidden_fraction")}
            write_record("device", {"device": cases[-1][0], **found}, figures)


if __name__ == "__main__":
    main()
