"""How fast do loaders bring photographs onto the GPU, alone and beside a training step, and at what CPU cost?

    python benchmarks/bench_device_peers.py --data DIR [--only NAME ...] [--measure alone train] [--records]
    python benchmarks/bench_device_peers.py --quick

Needs a GPU. Each contestant (device_feeds.py) runs in its own process. It yields batches of random crops, normalised
and in 16 bits, on the device. The list of photographs is so long that no epoch ends while the clock runs.

"alone" requests batches and does nothing with them. "train" makes a training step of ResNet-50 (bfloat16) with each
batch; "idle" is the fraction of the time in which the device had no step to run, and "no loader" always trains on the
same batch. Both report the CPU time of all processes. The device memory is what the driver counts, without the CUDA
context: that of the loader for "alone", and of everything for "train".

The first batch of each contestant is checked: shape, type, mean, spread and labels. Batches of mpload must be those of
the same `MPDataset` on the CPU. Records: benchmarks/records/device_peers.jsonl.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
from device_feeds import Batches, Feed, Setting, contestants, dataset
from feeds import MEAN, SIZE, STD, TrainingStep
from photographs import NUM_CLASSES, photographs, write_listing
from records import write_record

ROOT = Path(__file__).parents[1]
LARGEST_SIDE = 1500
"""Of the photographs that `make_photo_tree` makes, in pixels."""
WARM_SECONDS, WARM_BATCHES = 1.5, 10
FILL_SECONDS = 2.5
"""Time in which a loader that is faster than the training step gets as far ahead as it ever does."""
LIMIT_SECONDS = 60.0
"""Time limit for a contestant; with the default options it takes about 25 seconds."""

CLOSE_SECONDS = 4.0
"""Time that a loader has to stop its threads and processes."""


# In the process of a contestant.


def run(name: str, setting: Setting, measures: list[str], seconds: float, shares: list[float]) -> None:
    """Print a JSON line for each measure."""
    feed = contestants(shares)[name]
    on_gpu = setting.device == "cuda"
    free_at_first = free_bytes(setting.device)  # from here on, the CUDA context exists
    step = TrainingStep() if on_gpu and "train" in measures else None
    step_rate = 0.0 if step is None else warmed_up(step, setting.batch_samples)
    release_unused(setting.device)
    free_without_loader = free_bytes(setting.device)
    with ExitStack() as stack:
        start = time.perf_counter()
        batches = feed.start(setting, stack)
        first = next(batches)
        synchronize(setting.device)
        first_batch_seconds = round(time.perf_counter() - start, 2)
        facts = {"first_batch_seconds": first_batch_seconds, **check(first, feed, setting)}
        del first
        facts["version"] = found_version(feed.library)
        release_unused(setting.device)
        rate = float("inf")
        for measure in measures:
            if measure == "alone" and feed.is_loader:
                figures = timed(batches, lambda *_: None, setting.device, seconds)
                rate = figures["images_per_second"]
                figures["loader_device_bytes"] = free_without_loader - free_bytes(setting.device)
            elif measure == "train" and step is not None:
                if rate > step_rate:
                    time.sleep(FILL_SECONDS)
                figures = timed(batches, step, setting.device, seconds, on_start=step.events.clear)
                figures["all_device_bytes"] = free_at_first - free_bytes(setting.device)
                figures |= step.figures()
            else:
                continue
            print(json.dumps({"measure": measure, **figures, **facts}), flush=True)
        end = threading.Timer(CLOSE_SECONDS, os._exit, [0])  # a loader that hangs when it is closed has been measured
        end.daemon = True
        end.start()


def warmed_up(step: TrainingStep, batch_samples: int) -> float:
    """Let cuDNN choose its algorithms; return the number of images per second that the step can take."""
    images = torch.randn(batch_samples, 3, SIZE, SIZE, device="cuda").bfloat16()
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (batch_samples,), device="cuda")
    for number in range(8):
        if number == 4:
            torch.cuda.synchronize()
            start = time.perf_counter()
        step(images, labels)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / 4
    return batch_samples / seconds


def timed(
    batches: Batches,
    consume: Callable[[torch.Tensor, torch.Tensor], object],
    device: str,
    seconds: float,
    on_start: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Consume batches for `seconds`, after some to warm up."""
    start, num_warm = time.perf_counter(), 0
    while num_warm < WARM_BATCHES or time.perf_counter() - start < WARM_SECONDS:
        consume(*next(batches))
        num_warm += 1
    synchronize(device)
    on_start()
    num_images, start_cpu, start = 0, cpu_seconds(), time.perf_counter()
    for images, labels in batches:
        consume(images, labels)
        num_images += len(images)
        if time.perf_counter() - start >= seconds:
            break
    synchronize(device)
    took = time.perf_counter() - start
    cpu = cpu_seconds() - start_cpu
    return {
        "images_per_second": round(num_images / took, 1),
        "cpu_us_per_image": round(1e6 * cpu / num_images, 1),
        "cores": round(cpu / took, 2),
        "num_images": num_images,
    }


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def free_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0


def release_unused(device: str) -> None:
    """Return unused blocks of torch's allocator to the driver."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those it started."""
    this, total = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def check(batch: tuple[torch.Tensor, torch.Tensor], feed: Feed, setting: Setting) -> dict[str, Any]:
    """Raise ValueError unless a batch is as it should be; return facts about it."""
    images, labels = batch
    values = images.float()
    mean, spread = round(values.mean().item(), 3), round(values.std().item(), 3)
    facts: dict[str, Any] = {"dtype": str(images.dtype).removeprefix("torch."), "mean": mean, "std": spread}
    facts["is_channels_last"] = images.is_contiguous(memory_format=torch.channels_last)
    faults = []
    if images.shape != (setting.batch_samples, 3, SIZE, SIZE) or labels.shape != (setting.batch_samples,):
        faults.append(f"images {tuple(images.shape)} and labels {tuple(labels.shape)}")
    if images.dtype not in {torch.bfloat16, torch.float16} or labels.dtype != torch.int64:
        faults.append(f"images {images.dtype} and labels {labels.dtype}")
    if images.device.type != setting.device or labels.device.type != setting.device:
        faults.append(f"images on {images.device} and labels on {labels.device}")
    if abs(mean) > 0.7 or not 0.5 < spread < 1.6:
        faults.append(f"a mean of {mean} and a spread of {spread}")
    if not 0 <= int(labels.min()) <= int(labels.max()) < NUM_CLASSES:
        faults.append(f"labels from {int(labels.min())} to {int(labels.max())}")
    if feed.largest_difference is not None and not faults:
        wanted, wanted_labels = next(iter(dataset(setting)))
        scale, offset = (torch.tensor(numbers).view(1, 3, 1, 1) for numbers in (STD, MEAN))
        pixels = (values.cpu() * scale + offset) * 255
        difference = (pixels - wanted.float()).abs().mean().item()
        facts["difference"] = round(difference, 2)
        if difference > feed.largest_difference or not torch.equal(labels.cpu(), wanted_labels):
            faults.append(f"pixels that differ by {difference:.1f} from those of an MPDataset, or other labels")
    if faults:
        raise ValueError(f"the first batch has {'; '.join(faults)}")
    return facts


def found_version(library: str | None) -> str | None:
    if library is None:
        return None
    try:
        return str(importlib.import_module(library).__version__)
    except (ImportError, AttributeError):
        with suppress(PackageNotFoundError):
            return version(library)
    return None


# In the first process.


def results(name: str, arguments: argparse.Namespace, options: list[str]) -> Iterator[dict[str, Any]]:
    """Run a contestant; yield what it printed, and print why it failed if it did."""
    command = [sys.executable, "-W", "ignore", __file__, "--contestant", name, *options]
    limit = LIMIT_SECONDS if arguments.limit is None else arguments.limit
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {limit:g} s", flush=True)
        with suppress(ProcessLookupError):  # also what the contestant has started and left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        took = time.perf_counter() - start
        errors.seek(0)
        output.seek(0)
        if process.returncode != 0:
            last = "".join(errors.readlines()[-15:])
            print(f"{name}: failed with {process.returncode} after {took:.0f} s\n{last}", flush=True)
        for line in output:
            if line.startswith("{"):
                yield json.loads(line)
        print(f"{name}: {took:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder for the photographs, which are reused if they exist")
    parser.add_argument("--photos", type=int, default=8192, help="number of photographs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these contestants")
    parser.add_argument("--measure", nargs="+", choices=["alone", "train"], default=["alone", "train"])
    parser.add_argument("--batch-samples", type=int, default=256)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="worker processes or threads")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.2, 0.4], help="parts that mpload leaves to the GPU"
    )
    parser.add_argument("--hw-decoder-load", type=float, default=0.65, help="the option of DALI")
    parser.add_argument("--limit", type=float, help="time limit for a contestant, in seconds")
    parser.add_argument("--records", action="store_true", help="write records")
    parser.add_argument("--quick", action="store_true", help="few photographs, short; write no record")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help=argparse.SUPPRESS)  # cpu: for tests
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--listing", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        setting = Setting(
            listing=arguments.listing,
            batch_samples=arguments.batch_samples,
            num_workers=arguments.workers,
            device=arguments.device,
            hw_decoder_load=arguments.hw_decoder_load,
            largest_side=LARGEST_SIDE,
        )
        run(arguments.contestant, setting, arguments.measure, arguments.seconds, arguments.shares)
        return
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped, because it needs a GPU: loaders that bring photographs onto the device")
        return
    if arguments.quick:
        arguments.photos, arguments.seconds = 512, 1.0
    with ExitStack() as stack:
        data = arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        race(data, arguments)


def race(data: Path, arguments: argparse.Namespace) -> None:
    """Run the contestants one after another, and print a table of their results at the end."""
    listing = write_listing(photographs(data, arguments.photos), 1 << (14 if arguments.quick else 18))
    known = contestants(arguments.shares)
    names = arguments.only or [name for name in known if arguments.device == "cuda" or name != "no loader"]
    unknown = set(names) - known.keys()
    if unknown:
        raise SystemExit(f"no contestant is called {sorted(unknown)}. These are: {list(known)}")
    options = ["--listing", str(listing), "--batch-samples", str(arguments.batch_samples)]
    options += ["--workers", str(arguments.workers), "--device", arguments.device]
    options += ["--seconds", str(arguments.seconds), "--hw-decoder-load", str(arguments.hw_decoder_load)]
    options += ["--shares", *map(str, arguments.shares), "--measure", *arguments.measure]
    print(f"/dev/shm, which a DataLoader needs, has {shutil.disk_usage('/dev/shm').total / 1e9:.1f} GB", flush=True)
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    rows = []
    for name in names:
        for figures in results(name, arguments, options):
            case = {
                "device": device,
                "contestant": name,
                "measure": figures.pop("measure"),
                "batch_samples": arguments.batch_samples,
                "num_workers": arguments.workers,
                "num_photos": arguments.photos,
            }
            if name == "DALI, mixed":
                case["hw_decoder_load"] = arguments.hw_decoder_load
            print(json.dumps({**case, **figures}), flush=True)
            rows.append((case, figures))
            if arguments.records and not arguments.quick:
                write_record("device_peers", case, figures)
    for case, figures in rows:
        idle = f" idle {figures['idle_fraction']:6.1%}" if "idle_fraction" in figures else ""
        print(
            f"{case['measure']:5} {case['contestant']:34} {figures['images_per_second']:9.0f} images/s"
            f" {figures['cpu_us_per_image']:7.0f} us of CPU an image"
            f" {figures.get('loader_device_bytes', figures.get('all_device_bytes', 0)) / 1e9:6.2f} GB{idle}"
        )


if __name__ == "__main__":
    main()
