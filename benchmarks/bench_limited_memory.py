"""How fast does a job read data that do not fit into its memory, from a disk with limits?

    python benchmarks/bench_limited_memory.py [--quick]

Samples lie in tar shards, and as single files, on ext4 on a loop device with a limit on reads and bytes per second. A
control group limits the memory of the job, including the page cache. (Both need root.) One epoch of encoded samples
starts with an empty page cache, in a fresh process with two workers:

- mpload, tar shards in a block shuffle, with default settings, and with a page cache that is left to the kernel;
- mpload, single files in a global shuffle;
- WebDataset with the same shards, shuffled as its documentation recommends: all shards, and 1,000 samples in a buffer;
- a stock DataLoader, single files in a global shuffle.

The results are the bytes that were read from the device, as a multiple of the data; the bytes of samples per second, as
a fraction of the device's limit; and the samples per second: from the first megabyte that is read until the last batch.
They are medians of several epochs, for which the contestants take turns.

Records: benchmarks/records/limited_memory.jsonl.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from records import write_record

import mpload
from mpload.units import KIB, MIB

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.limited_disk import CannotLimitError, DiskLimits, LimitedDisk, limited_disk

NUM_WORKERS = 2
BATCH_SAMPLES = 64
MEAN_SAMPLE_BYTES = 24 * KIB
NUM_SHARDS = 12
BLOCK_SAMPLES = 256
READS_PER_SECOND = 3000
BYTES_PER_SECOND = 60 * MIB
FIRST_BYTES = MIB


Timed = tuple[int, float]
"""The number of samples, and the time at which the last of them came."""


def timed(sizes: Iterable[int]) -> Timed:
    num_samples, end = 0, 0.0
    for size in sizes:
        num_samples, end = num_samples + size, time.perf_counter()
    return num_samples, end


def mpload_epoch(folder: Path, layout: str, window_blocks: int, page_cache: Literal["auto", "keep"] = "auto") -> Timed:
    blocks = mpload.BlockShuffle(block_samples=BLOCK_SAMPLES, window_blocks=window_blocks)
    dataset = mpload.MPDataset(
        folder / f"{layout}.txt",
        decode=mpload.RawBytes(),
        batch_size=BATCH_SAMPLES,
        tail="ragged",
        shuffle=blocks if layout == "shards" else True,
        topology=mpload.Topology(),
        page_cache=page_cache,
    )
    with mpload.MPLoader(dataset, num_workers=NUM_WORKERS) as loader:
        return timed(len(labels) for _, labels in loader)


def webdataset_epoch(folder: Path, window_blocks: int) -> Timed:
    import webdataset

    del window_blocks
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None, empty_check=False)
        .shuffle(1000)
        .to_tuple("bin")
        .batched(BATCH_SAMPLES, collation_fn=list)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=NUM_WORKERS)
    return timed(len(batch) for batch in loader)


def stock_epoch(folder: Path, window_blocks: int) -> Timed:
    from torch.utils.data import DataLoader, Dataset

    del window_blocks

    class Files(Dataset[Any]):
        def __init__(self) -> None:
            self.paths = sorted((folder / "files").iterdir())

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> bytes:
            return self.paths[index].read_bytes()

    loader = DataLoader(Files(), batch_size=BATCH_SAMPLES, shuffle=True, num_workers=NUM_WORKERS, collate_fn=list)
    return timed(len(batch) for batch in loader)


EPOCHS: dict[str, Callable[[Path, int], Timed]] = {
    "mpload, shards in blocks": lambda folder, window: mpload_epoch(folder, "shards", window),
    'mpload, shards in blocks, page_cache="keep"': lambda folder, window: mpload_epoch(
        folder, "shards", window, "keep"
    ),
    "mpload, files": lambda folder, window: mpload_epoch(folder, "files", window),
    "WebDataset, shards": webdataset_epoch,
    "DataLoader, files": stock_epoch,
}


def write_samples(folder: Path, num_samples: int) -> int:
    """Write the same samples as files and as shards, and an index for each; return the bytes of all samples."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(MEAN_SAMPLE_BYTES // 2, MEAN_SAMPLE_BYTES * 3 // 2, num_samples)
    noise = rng.bytes(int(sizes.max()) + num_samples)
    (folder / "files").mkdir()
    files: list[str] = []
    spans: list[str] = []
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard:02d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * num_samples // NUM_SHARDS, (shard + 1) * num_samples // NUM_SHARDS):
                path = folder / "files" / f"{number:06d}.bin"
                path.write_bytes(noise[number : number + sizes[number]])
                tar.add(path, path.name)
                files.append(f"files/{path.name}\t{number}\n")
        with tarfile.open(folder / f"{shard:02d}.tar") as tar:
            start = len(spans)
            members = enumerate(tar, start)
            spans += [f"{each.offset_data}+{each.size}@{shard:02d}.tar\t{number}\n" for number, each in members]
    (folder / "files.txt").write_text("#mpload 1\n#columns data:path label:int\n" + "".join(files))
    (folder / "shards.txt").write_text("#mpload 1\n#columns data:span label:int\n" + "".join(spans))
    for layout in ("files", "shards"):
        mpload.open_index(folder / f"{layout}.txt")  # builds the sidecar
    return int(sizes.sum())


def measure(disk: LimitedDisk, contestant: str, window_blocks: int | None, data_bytes: int) -> dict[str, float]:
    """Run an epoch in a fresh process within the limits."""
    disk.empty_page_cache()
    for path in disk.folder.glob("*.txt*"):
        path.read_bytes()
    words = [sys.executable, "-W", "ignore", __file__, "--epoch", str(disk.folder), contestant, str(window_blocks or 1)]
    before = disk.read_bytes
    with subprocess.Popen([*disk.prefix, *words], stdout=subprocess.PIPE, text=True) as process:
        while disk.read_bytes - before < FIRST_BYTES and process.poll() is None:
            time.sleep(0.005)
        start = time.perf_counter()
        output = process.communicate(timeout=600)[0]
    num_samples, end = json.loads(output.splitlines()[-1])
    seconds = end - start
    return {
        "read_factor": round((disk.read_bytes - before) / data_bytes, 3),
        "bandwidth_fraction": round((data_bytes - FIRST_BYTES) / seconds / BYTES_PER_SECOND, 3),
        "samples_per_second": round(num_samples / seconds, 1),
    }


def cases(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the cases to measure: each contestant, with each size of window if it has one."""
    found = []
    for contestant in arguments.contestants:
        if contestant.startswith("WebDataset") and not find_spec("webdataset"):
            print(f"skipped {contestant!r}: pip install webdataset")
            continue
        found += [
            {
                "contestant": contestant,
                "window_blocks": window_blocks,
                "reads_per_second": READS_PER_SECOND,
                "bytes_per_second": BYTES_PER_SECOND,
                "num_workers": NUM_WORKERS,
            }
            for window_blocks in (arguments.windows if "blocks" in contestant else [None])
        ]
    return found


def medians(
    disk: LimitedDisk, cases: list[dict[str, Any]], num_rounds: int, data_bytes: int
) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Measure the cases in turns, and return each with the median of each figure."""
    found: list[list[dict[str, float]]] = [[] for _ in cases]
    for number in range(num_rounds):
        for case, figures in zip(cases, found, strict=True):
            figures.append(measure(disk, case["contestant"], case["window_blocks"], data_bytes))
            print(f"round {number + 1}: {case['contestant']}, {case['window_blocks']}: {figures[-1]}", file=sys.stderr)
    return [
        (case, {name: median(each[name] for each in figures) for name in figures[0]})
        for case, figures in zip(cases, found, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples; write no record")
    parser.add_argument("--num-samples", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each contestant, in turns; medians are taken")
    parser.add_argument("--memory", default="512MiB", help="limit on the memory of the job")
    parser.add_argument("--windows", type=int, nargs="+", default=[4, 16, 64], help="blocks in a window")
    parser.add_argument("--contestants", nargs="+", choices=list(EPOCHS), default=list(EPOCHS))
    parser.add_argument("--epoch", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.epoch:
        folder, contestant, window_blocks = arguments.epoch
        import torch  # noqa: F401  its import is not to be timed

        print(json.dumps(EPOCHS[contestant](Path(folder), int(window_blocks))))
        return
    num_samples = 600 if arguments.quick else arguments.num_samples
    arguments.rounds = 1 if arguments.quick else arguments.rounds
    memory_bytes = mpload.units.parse_bytes(arguments.memory)
    limits = DiskLimits(reads_per_second=READS_PER_SECOND, bytes_per_second=BYTES_PER_SECOND, memory_bytes=memory_bytes)
    with tempfile.TemporaryDirectory() as name:
        try:
            with limited_disk(Path(name), 3 * num_samples * MEAN_SAMPLE_BYTES + 64 * MIB, limits) as disk:
                data_bytes = write_samples(disk.folder, num_samples)
                for case, figures in medians(disk, cases(arguments), arguments.rounds, data_bytes):
                    case |= {"data_bytes": data_bytes, "memory_bytes": memory_bytes}
                    figures["rounds"] = arguments.rounds
                    print(json.dumps({**case, **figures}), flush=True)
                    if not arguments.quick:
                        write_record("limited_memory", case, figures)
        except CannotLimitError as error:
            print(f"skipped: {error}")


if __name__ == "__main__":
    main()
