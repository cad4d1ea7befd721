"""Jobs that lack memory: few slots, swapping, a transform that leaks; and one whose shards are tiny."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpload import open_index
from tests.support.containers import memory_container
from tests.support.slow_disk import SlowDisk, mounted
from tests.support.staged import Staged, Waiting, rate, write_photos
from tests.support.staged_more import photos

__all__ = ["MEMORY", "SWAPPING_BYTES", "big_waiting", "large_shards", "print_rate", "rate_with_table", "swap_file"]

_MIB = 1 << 20
_HUNGRY = ("--batch-size", "8", "--step-time", "0.001")
_PER_SMALL_SHARD, _SMALL_SHARDS = 4, 1000
_PER_LARGE_SHARD, _LARGE_SHARDS = 512, 8
_TABLE_BYTES = 320 * _MIB
_SWAP_BYTES = 1 << 30
SWAPPING_BYTES = 560 * _MIB
"""The memory of the container in which the job swaps."""
_kept: list[NDArray[np.uint8]] = []
_table: list[NDArray[np.uint8]] = []


big_waiting = Waiting(seconds=0.02, side=1024)


def leaking(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Keep a copy of every sample."""
    _kept.append(image.copy())
    return image


def random_reads(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Look numbers up in a table of 320 MiB of this process, all over it."""
    if not _table:
        _table.append(np.ones(_TABLE_BYTES, np.uint8))
    places = np.random.default_rng().integers(_TABLE_BYTES, size=64)
    np.add(image, _table[0][places].sum() % 2, out=image)
    return image


@contextmanager
def swap_file(path: Path) -> Iterator[bool]:
    """Give the machine a swap file; yield False if it cannot be. A process swaps only if its container has a limit."""
    made = [["fallocate", "-l", str(_SWAP_BYTES)], ["chmod", "600"], ["mkswap"], ["swapon"]]
    is_on = all(subprocess.run([*command, path], capture_output=True, check=False).returncode == 0 for command in made)
    try:
        yield is_on
    finally:
        if is_on:
            subprocess.run(["swapoff", path], check=True)


def with_swap(folder: Path, stack: ExitStack) -> Path:
    """Index photos, on a machine with a swap file."""
    import pytest

    if not stack.enter_context(swap_file(folder / "swap")):
        pytest.skip("no swap file can be added to this machine")
    return photos()(folder, stack)


def index_shards(path: Path, contents: Path, *, root: Path, num_shards: int) -> Path:
    """Write an index of the shards `0`, `1`, ... of a disk, whose contents are tar files."""
    lines = []
    spans = []
    for shard in sorted(contents.iterdir()):
        with tarfile.open(shard) as opened:
            spans.append([(member.offset_data, member.size) for member in opened])
    for number in range(num_shards):
        lines += [f"{offset}+{size}@{number}\t{number % 10}\n" for offset, size in spans[number % len(spans)]]
    path.write_text(f"#mpload 1\n#root {root}\n#columns image:span label:int\n{''.join(lines)}", encoding="ascii")
    return path


def sharded_disk(folder: Path, stack: ExitStack, *, num_shards: int, samples_per_shard: int) -> Path:
    """Mount a disk of tar shards on which opening a file takes 15 ms and reading it 1 ms. Return its index."""
    folder.mkdir(exist_ok=True)
    write_photos(folder / "photos", num=16, height=120, width=160)
    images = [path.read_bytes() for path in sorted((folder / "photos").iterdir())]
    contents = folder / "contents"
    contents.mkdir()
    with tarfile.open(contents / "0", "w") as shard:
        for number in range(samples_per_shard):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(images[number % len(images)])
            shard.addfile(member, io.BytesIO(images[number % len(images)]))
    disk = SlowDisk(
        contents=contents,
        num_files=num_shards,
        read_seconds=0.001,
        open_seconds=0.015,
        reads_at_once=2,
        is_cached=False,
    )
    point = stack.enter_context(mounted(disk, folder / "disk"))
    return index_shards(folder / "train.txt", contents, root=point, num_shards=num_shards)


def _small_shards(folder: Path, stack: ExitStack) -> Path:
    return sharded_disk(folder, stack, num_shards=_SMALL_SHARDS, samples_per_shard=_PER_SMALL_SHARD)


def large_shards(folder: Path, stack: ExitStack) -> Path:
    """Return the index of as many samples in large shards, on as slow a disk."""
    return sharded_disk(folder, stack, num_shards=_LARGE_SHARDS, samples_per_shard=_PER_LARGE_SHARD)


MEMORY: dict[str, Staged] = {
    "small shards": Staged(
        bottleneck="small shards",
        first="Write larger shards",
        prepare=_small_shards,
        needs_mount=True,
        options=("--decode", "tests.support.staged:small_crop", "--batch-size", "8", "--step-time", "0.004"),
    ),
    "few slots by budget": Staged(
        bottleneck="too few batches in flight",
        first="Raise memory_budget",
        prepare=photos(),
        seconds=15.0,
        options=(
            *("--decode", "tests.support.staged_memory:big_waiting", "--memory-budget", "139MiB"),
            *("--batch-size", "1", "--workers", "8", "--step-time", "0.0001"),
        ),
    ),
    "a swapping machine": Staged(
        bottleneck="swapping",
        first="Make everything fit into memory",
        prepare=with_swap,
        seconds=20.0,
        limit_bytes=SWAPPING_BYTES,
        options=(
            *("--decode", "tests.support.staged:plain_crop", "--transform", "tests.support.staged_memory:random_reads"),
            *("--memory-budget", "64MiB"),
            *_HUNGRY,
        ),
    ),
    "a transform that leaks": Staged(
        bottleneck="memory that grows",
        first="Let the transform keep nothing",
        prepare=photos(),
        seconds=20.0,
        limit_bytes=1200 * _MIB,
        options=(
            *("--decode", "tests.support.staged:plain_crop", "--transform", "tests.support.staged_memory:leaking"),
            *_HUNGRY,
        ),
    ),
}


def rate_with_table(path: Path, folder: Path, *, limit_bytes: int | None) -> float:
    """Return the samples per second of the swapping job, in a container or without one."""
    with ExitStack() as stack:
        container = None if limit_bytes is None else stack.enter_context(memory_container(limit_bytes))

        def enter() -> None:
            if container is not None:
                container.procs.write_text("0")

        # Workers must find the transform in a module of this name.
        code = "import sys; from tests.support import staged_memory; staged_memory.print_rate(*sys.argv[1:])"
        command = [sys.executable, "-c", code, str(path), str(folder)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, preexec_fn=enter)
    return float(ran.stdout)


def print_rate(path: str, folder: str) -> None:
    """Print the samples per second of the job with a large table."""
    print(rate(open_index(path), Path(folder), transform=random_reads))
