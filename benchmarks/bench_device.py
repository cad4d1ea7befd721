"""What does it cost to have normalised batches ready on the device when the training loop asks for them?

    python benchmarks/bench_device.py [--quick] [--cpu] [--batch-samples 8 16 ...]

Each case runs in a fresh process; images are uint8 [224, 224, 3]. On any machine it measures the conversion to a
normalised dtype on the CPU, fused and as the usual chain of torch operations, alone and after a loader of real JPEGs.
With a GPU it also measures copies from pinned and pageable memory; a ResNet-50 training step (bfloat16) that is fed
from the host in several ways, compared with a step whose batch is already on the device; training from a loader of real
JPEGs; and JPEGs decoded by workers or by the GPU. Without a GPU it lists what it skips. Records:
benchmarks/records/device.jsonl.

"hidden" is the fraction of the time for copy and conversion, measured alone, that does not make the step longer. "idle"
is the fraction of the time in which the device had no step to run, measured by events around each step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import torch
from feeds import FEEDS, MEAN, SIZE, STD, HostBatches, TrainingStep, chain, pixels
from records import write_record

from mpload import DevicePrefetcher, GpuDecode, MPDataset, MPLoader, RandomResizedCrop, Topology, build_index
from mpload.device.normalise import Normaliser
from mpload.device.unpacking import device_decoder

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


def photo_dataset(
    folder: Path, batch_samples: int, num_images: int, decode: Callable[..., Any] | None = None
) -> MPDataset:
    sys.path.insert(0, str(ROOT))
    from tests.support.photos import make_photo_tree

    make_photo_tree(folder / "train", num_images=num_images, num_classes=8, seed=0)
    return MPDataset(
        build_index(folder / "train", folder / "train.txt"),
        decode=decode or RandomResizedCrop(SIZE),
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


def measure_copy(memory: str, dtype: str, batch_samples: int, num: int) -> dict[str, float]:
    """Return the rate of copies to the device, by a plain `copy_` or by the prefetcher, and nothing else."""
    batches = HostBatches(batch_samples, num, pinned=memory != "pageable", dtype=dtype)
    num_bytes = batches.pairs[0][0].nbytes
    if memory == "prefetcher":
        loader = DevicePrefetcher(batches, device="cuda", dtype=None)
        for _ in loader:
            pass
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in loader:
            pass
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / num
    else:
        source = batches.pairs[0][0]
        target = torch.empty_like(source, device="cuda")
        seconds = median_seconds(lambda: target.copy_(source, non_blocking=True), num, torch.cuda.synchronize)
    return {
        "gb_per_second": round(num_bytes / seconds / 1e9, 2),
        "us_per_batch": round(seconds * 1e6, 1),
        "images_per_second": round(batch_samples / seconds),
    }


def measure_convert_gpu(how: str, dtype: str, batch_samples: int, num: int) -> dict[str, float]:
    images, target = pixels(batch_samples).cuda(), DTYPES[dtype] or torch.uint8
    out = torch.empty(images.shape, dtype=target, memory_format=torch.channels_last, device="cuda")
    normaliser = Normaliser(dtype=target, mean=MEAN, std=STD)
    work: Callable[[], object] = lambda: chain(images).to(target)  # noqa: E731
    if how == "fused":
        work = lambda: normaliser.write(images, out)  # noqa: E731
    seconds = median_seconds(work, num, torch.cuda.synchronize)
    return {"us_per_batch": round(seconds * 1e6, 1)}


def measure_step(feed: str, batch_samples: int, num: int, dtype: str = "uint8") -> dict[str, float]:
    """Return the time of a training step whose batches come from pinned host memory."""
    step = TrainingStep()
    torch.cuda.reset_peak_memory_stats()
    for images, labels in FEEDS[feed](HostBatches(batch_samples, num, dtype=dtype)):
        step(images, labels)
    return {**step.figures(), "peak_device_bytes": torch.cuda.max_memory_allocated()}


def measure_train_photos(feed: str, batch_samples: int, num: int) -> dict[str, float]:
    """Return images/s of training on real JPEGs, with an MPLoader or with a stock DataLoader and `pin_memory`."""
    from torch.utils.data import DataLoader

    step = TrainingStep()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        dataset = photo_dataset(Path(name), batch_samples, num)
        num_workers = len(os.sched_getaffinity(0))
        source: Iterable[Any] = (
            stack.enter_context(MPLoader(dataset, num_workers=num_workers))
            if feed == "prefetcher"
            else DataLoader(dataset, batch_size=None, num_workers=num_workers, pin_memory=True, persistent_workers=True)
        )
        num_images, start = 0, 0.0
        for epoch in range(4):
            if epoch == 1:  # epoch 0 warms the caches, and cuDNN chooses its algorithms
                torch.cuda.synchronize()
                start = time.perf_counter()
            for images, labels in FEEDS[feed](source):
                step(images, labels)
                num_images += len(images) if epoch else 0
        torch.cuda.synchronize()
        rate = num_images / (time.perf_counter() - start)
    return {"images_per_second": round(rate, 1), **step.figures()}


def measure_decode(where: str, batch_samples: int, num: int) -> dict[str, float]:
    """Return images/s for real JPEGs that become bfloat16 on the device, decoded by workers or by the device."""
    crop = RandomResizedCrop(SIZE)
    decode = GpuDecode(crop) if where == "device" else crop
    with (
        tempfile.TemporaryDirectory() as name,
        MPLoader(photo_dataset(Path(name), batch_samples, num, decode)) as loader,
    ):
        batches = DevicePrefetcher(loader, device="cuda", dtype=torch.bfloat16, mean=MEAN, std=STD)
        num_images, start = 0, 0.0
        for epoch in range(4):
            if epoch == 1:
                torch.cuda.synchronize()
                start = time.perf_counter()
            for images, _ in batches:
                num_images += len(images) if epoch else 0
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return {"images_per_second": round(num_images / seconds, 1)}


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "convert": measure_convert,
    "photos": measure_photos,
    "copy": measure_copy,
    "convert on the device": measure_convert_gpu,
    "step": measure_step,
    "train from photos": measure_train_photos,
    "decode": measure_decode,
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


def gpu_cases(batch_sizes: Sequence[int], *, is_quick: bool) -> Iterator[dict[str, Any]]:
    can_decode = device_decoder(torch.device("cuda")) is not None
    if not can_decode:
        print("skipped, because it needs torchvision with nvJPEG: decoding on the device")
    for batch_samples in batch_sizes:
        sizes = {"batch_samples": batch_samples, "num": 20 if is_quick else 100}
        for memory in ("pinned", "pageable", "prefetcher"):
            for dtype in ("uint8", "float32"):
                yield {"measure": "copy", "memory": memory, "dtype": dtype, **sizes}
        for how in ("fused", "chain"):
            yield {"measure": "convert on the device", "how": how, "dtype": "bfloat16", **sizes}
        for feed in FEEDS:
            yield {"measure": "step", "feed": feed, **sizes}
        yield {"measure": "step", "feed": "plain", "dtype": "float32", **sizes}
        photos = {"batch_samples": batch_samples, "num": 512 if is_quick else 4096}
        for where in ("cpu", "device") if can_decode else ("cpu",):
            yield {"measure": "decode", "where": where, **photos}
        for feed in ("prefetcher", "data_prefetcher", "plain"):
            yield {"measure": "train from photos", "feed": feed, **photos}


def hidden_fractions(results: list[tuple[dict[str, Any], dict[str, float]]]) -> Iterator[dict[str, Any]]:
    """Yield, for each feed, the fraction of copy and conversion that is hidden behind the step."""

    def found(figure: str, **case: Any) -> float:
        return next(figures[figure] for each, figures in results if case.items() <= each.items())

    for case, figures in results:
        if case["measure"] != "step" or case["feed"] == "resident" or "dtype" in case:
            continue
        size = {"batch_samples": case["batch_samples"]}
        work_ms = 1e-3 * (
            found("us_per_batch", measure="copy", memory="pinned", dtype="uint8", **size)
            + found("us_per_batch", measure="convert on the device", how="fused", **size)
        )
        longer_ms = figures["step_ms"] - found("step_ms", measure="step", feed="resident", **size)
        hidden = round(1 - max(0.0, longer_ms) / work_ms, 3)
        yield {"measure": "hidden", "feed": case["feed"], **size, "hidden_fraction": hidden}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images; write no record")
    parser.add_argument("--cpu", action="store_true", help="run only the cases that need no GPU")
    parser.add_argument(
        "--batch-samples", type=int, nargs="+", metavar="N", help="run only the GPU cases, with these batch sizes"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case = json.loads(arguments.case)
        print(json.dumps(MEASURES[case.pop("measure")](**case)))
        return
    cases = [] if arguments.batch_samples else [("cpu", case) for case in cpu_cases(is_quick=arguments.quick)]
    if torch.cuda.is_available() and not arguments.cpu:
        name = torch.cuda.get_device_name()
        sizes = arguments.batch_samples or ([64] if arguments.quick else [8, 16, 32, 64, 128, 256])
        cases += [(name, case) for case in gpu_cases(sizes, is_quick=arguments.quick)]
    else:
        print("skipped, because they need a GPU: copies, overlap with a training step, training, decoding on the GPU")
    results = []
    for device, case in cases:
        command = [sys.executable, "-W", "ignore", __file__, "--case", json.dumps(case)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        figures = json.loads(done.stdout)
        results.append((case, figures))
        print(json.dumps({**case, **figures}), flush=True)
        if not arguments.quick:
            write_record("device", {"device": device, **case}, figures)
    for found in hidden_fractions(results):
        print(json.dumps(found))
        if not arguments.quick:
            fraction = found.pop("hidden_fraction")
            write_record("device", {"device": cases[-1][0], **found}, {"hidden_fraction": fraction})


if __name__ == "__main__":
    main()
