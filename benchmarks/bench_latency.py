"""How much speed remains when every read is slow, and how much do block reads of shards gain when reads are limited?

    python benchmarks/bench_latency.py [--quick]

Two questions:

- "latency": 5 ms are added to every read, by a storage that sleeps (not every kernel has the device mapper's delay
  target). The dataset of the stock loader sleeps as long before it opens a file. The result is the rate of two workers
  as a fraction of their rate without the delay, compared with a stock DataLoader that has the same decoder. The epochs
  of all four loaders take turns.
- "limited": ext4 on a loop device with a limit on reads and bytes per second (the block layer's throttle, in a control
  group that the benchmark makes; needs root). The result is the rate of two workers in one epoch that starts with an
  empty page cache: for small files in a global shuffle (also with a stock loader), for tar shards in a global shuffle,
  and in a block shuffle. The limits predict these rates. A small file, or a single sample of a shard, costs one read,
  so the limit on reads applies. Blocks are read one megabyte at a time, so the limit on bytes applies.

Records: benchmarks/records/latency.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from records import write_record

import mpload
from mpload.storage.local import LocalStorage
from mpload.storage.ranges import ByteRange
from mpload.telemetry.stats import Stage
from mpload.units import KIB, MIB

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.limited_disk import CannotLimitError, DiskLimits, limited_disk
from tests.support.photos import make_photo_tree

NUM_WORKERS = 2
BATCH_SAMPLES = 64
SAMPLE_BYTES = 24 * KIB
NUM_SHARDS = 4
READS_PER_SECOND = 300
BYTES_PER_SECOND = 32 * MIB
LARGE_READ_BYTES = MIB
BLOCK_SAMPLES = 256
LAYOUTS = (
    ("files", "global", "stock"),
    ("files", "global", "mpload"),
    ("shards", "global", "mpload"),
    ("shards", "block", "mpload"),
)


class DelayedFiles:
    """Local files; each read takes `seconds` longer."""

    max_parallel_reads = LocalStorage.max_parallel_reads

    def __init__(self, folder: Path, seconds: float) -> None:
        self.files = LocalStorage(folder)
        self.seconds = seconds

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        if self.seconds:
            time.sleep(self.seconds * len(ranges))
        return self.files.read(ranges)


def mpload_loader(folder: Path, latency_ms: float) -> mpload.MPLoader:
    dataset = mpload.MPDataset(
        folder / "train.txt",
        decode=mpload.RandomResizedCrop(224),
        batch_size=BATCH_SAMPLES,
        tail="drop",
        shuffle=True,
        topology=mpload.Topology(),
        storage=DelayedFiles(folder, latency_ms / 1000),
    )
    return mpload.MPLoader(dataset, num_workers=NUM_WORKERS, memory_budget="1GiB")


def stock_loader(folder: Path, latency_ms: float) -> Any:
    from torch.utils.data import DataLoader, Dataset

    index = mpload.open_index(folder / "train.txt")

    class Photos(Dataset[Any]):
        def __init__(self) -> None:
            self.samples = [(str(folder / str(record.cells[0])), record.cells[1]) for record in index]
            self.decode = mpload.RandomResizedCrop(224)

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            import torch

            path, label = self.samples[index]
            time.sleep(latency_ms / 1000)
            data = Path(path).read_bytes()
            return torch.from_numpy(self.decode(data, np.random.default_rng(index))).permute(2, 0, 1), label

    return DataLoader(
        Photos(),
        batch_size=BATCH_SAMPLES,
        shuffle=True,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        drop_last=True,
    )


def measure_latency(folder: Path, latency_ms: float, num_turns: int) -> dict[str, Any]:
    """Return the rate of each loader with and without the delay; their epochs take turns."""
    makers: dict[str, Callable[[Path, float], Any]] = {"mpload": mpload_loader, "stock": stock_loader}
    loaders = {(name, ms): make(folder, ms) for name, make in makers.items() for ms in (0.0, latency_ms)}
    speeds: dict[tuple[str, float], list[float]] = {case: [] for case in loaders}
    cpu_seconds = {}
    for turn in range(num_turns + 1):
        if turn == 1:
            cpu_seconds = {ms: workers_cpu_seconds(loaders["mpload", ms]) for ms in (0.0, latency_ms)}
        cases = list(loaders)
        for case in cases if turn % 2 else cases[::-1]:
            start = time.perf_counter()
            num_images = sum(len(images) for images, _ in loaders[case])
            if turn:  # turn 0 starts the workers, which then notice that reads are slow
                speeds[case].append(num_images / (time.perf_counter() - start))
    figures: dict[str, Any] = {}
    for (name, ms), found in speeds.items():
        figures[f"{name}_{ms:g}ms_images_per_second"] = round(statistics.median(found), 1)
    for name in makers:
        ratios = [slow / fast for fast, slow in zip(speeds[name, 0.0], speeds[name, latency_ms], strict=True)]
        figures[f"{name}_fraction_left"] = round(statistics.median(ratios), 3)
        figures[f"{name}_fractions"] = [round(ratio, 3) for ratio in ratios]
    for ms in (0.0, latency_ms):
        stats = loaders["mpload", ms].stats()
        spent = workers_cpu_seconds(loaders["mpload", ms]) - cpu_seconds[ms]
        num_timed = stats.num_samples * num_turns / (num_turns + 1)
        figures[f"mpload_{ms:g}ms_cpu_us_per_image"] = round(spent / num_timed * 1e6)
        for stage in (Stage.READ, Stage.DECODE):
            figures[f"mpload_{ms:g}ms_{stage}_us_per_image"] = round(stats.seconds_per_sample[stage] * 1e6)
        loaders["mpload", ms].close()
    return figures


def workers_cpu_seconds(loader: mpload.MPLoader) -> float:
    workers = [psutil.Process(pid).cpu_times() for name, pid in loader.pids.items() if "worker" in name]
    return float(sum(times.user + times.system for times in workers))


def latency_record(folder: Path, *, num_images: int, num_turns: int) -> tuple[dict[str, Any], dict[str, Any]]:
    make_photo_tree(folder / "train", num_images=num_images, num_classes=4, seed=0)
    mpload.build_index(folder / "train", folder / "train.txt", root=folder)
    latency_ms = 5.0
    case = {
        "measure": "latency",
        "latency_ms": latency_ms,
        "how": "a storage that sleeps before each read",
        "num_images": num_images,
        "num_workers": NUM_WORKERS,
        "batch_samples": BATCH_SAMPLES,
    }
    return case, in_fresh_process("latency", [str(folder), str(latency_ms), str(num_turns)])


def measure_limited(folder: Path, layout: str, order: str, loader: str) -> dict[str, float]:
    """Return the samples per second of one epoch over files or shards."""
    start = time.perf_counter()
    if loader == "stock":
        num_samples = sum(len(batch) for batch in stock_files(folder))
    else:
        shuffle = mpload.BlockShuffle(block_samples=BLOCK_SAMPLES, window_blocks=4) if order == "block" else True
        dataset = mpload.MPDataset(
            folder / f"{layout}.txt",
            decode=mpload.RawBytes(),
            batch_size=BATCH_SAMPLES,
            tail="ragged",
            shuffle=shuffle,
            topology=mpload.Topology(),
        )
        with mpload.MPLoader(dataset, num_workers=NUM_WORKERS, memory_budget="1GiB") as batches:
            start = time.perf_counter()
            num_samples = sum(len(labels) for _, labels in batches)
    return {"samples_per_second": round(num_samples / (time.perf_counter() - start), 1)}


def stock_files(folder: Path) -> Any:
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset[Any]):
        def __init__(self) -> None:
            self.paths = sorted((folder / "files").iterdir())

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> bytes:
            return self.paths[index].read_bytes()

    return DataLoader(Files(), batch_size=BATCH_SAMPLES, shuffle=True, num_workers=NUM_WORKERS, collate_fn=list)


def write_samples(folder: Path, num_samples: int) -> None:
    """Write the same samples as small files and as four tar shards, and an index for each form."""
    rng = np.random.default_rng(0)
    (folder / "files").mkdir()
    files, spans = [], []
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard * num_samples // NUM_SHARDS, (shard + 1) * num_samples // NUM_SHARDS):
                path = folder / "files" / f"{number:06d}.bin"
                path.write_bytes(rng.bytes(SAMPLE_BYTES))
                tar.add(path, path.name)
                files.append(f"files/{path.name}\t0\n")
        with tarfile.open(folder / f"{shard}.tar") as tar:
            spans += [f"{member.offset_data}+{member.size}@{shard}.tar\t0\n" for member in tar]
    (folder / "files.txt").write_text("#mpload 1\n#columns data:path label:int\n" + "".join(files))
    (folder / "shards.txt").write_text("#mpload 1\n#columns data:span label:int\n" + "".join(spans))


def limited_record(folder: Path, *, num_samples: int) -> tuple[dict[str, Any], dict[str, Any]]:
    figures: dict[str, Any] = {}
    limits = DiskLimits(reads_per_second=READS_PER_SECOND, bytes_per_second=BYTES_PER_SECOND)
    with limited_disk(folder, 3 * num_samples * SAMPLE_BYTES + (64 << 20), limits) as disk:
        write_samples(disk.folder, num_samples)
        for index in ("files", "shards"):
            mpload.open_index(disk.folder / f"{index}.txt")  # builds the sidecar
        for layout, order, loader in LAYOUTS:
            disk.empty_page_cache()
            for path in disk.folder.glob("*.txt*"):
                path.read_bytes()
            found = in_fresh_process("limited", [str(disk.folder), layout, order, loader], disk.prefix)
            figures[f"{loader}_{layout}_{order}_samples_per_second"] = found["samples_per_second"]
    lone = min(READS_PER_SECOND, BYTES_PER_SECOND / SAMPLE_BYTES)
    whole = min(READS_PER_SECOND * LARGE_READ_BYTES, BYTES_PER_SECOND) / (SAMPLE_BYTES + tarfile.BLOCKSIZE)
    figures["predicted_lone_samples_per_second"] = round(lone, 1)
    figures["predicted_block_samples_per_second"] = round(whole, 1)
    figures["predicted_factor"] = round(whole / lone, 2)
    measured = figures["mpload_shards_block_samples_per_second"] / figures["mpload_files_global_samples_per_second"]
    figures["measured_factor"] = round(measured, 2)
    case = {
        "measure": "limited",
        "how": "ext4 on a loop device, block layer throttle",
        "num_samples": num_samples,
        "sample_bytes": SAMPLE_BYTES,
        "reads_per_second": READS_PER_SECOND,
        "bytes_per_second": BYTES_PER_SECOND,
        "block_samples": BLOCK_SAMPLES,
        "num_workers": NUM_WORKERS,
    }
    return case, figures


def in_fresh_process(measure: str, words: list[str], prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run a measurement in a fresh process, whose command is preceded by `prefix`."""
    command = [*prefix, sys.executable, "-W", "ignore", __file__, "--measure", measure, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images; write no record")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure, *words = arguments.measure
        if measure == "limited":
            print(json.dumps(measure_limited(Path(words[0]), *words[1:])))
        else:
            print(json.dumps(measure_latency(Path(words[0]), float(words[1]), int(words[2]))))
        return
    is_quick = arguments.quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = [latency_record(folder, num_images=256 if is_quick else 1024, num_turns=1 if is_quick else 5)]
        try:
            records.append(limited_record(folder, num_samples=300 if is_quick else 6000))
        except CannotLimitError as error:
            print(f'skipped "limited": {error}')
    for case, figures in records:
        print(json.dumps({**case, **figures}))
        if not is_quick:
            write_record("latency", case, figures)


if __name__ == "__main__":
    main()
