"""Jobs that are slow for one known reason, which the doctor has to find."""

import json
import os
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

from mpload import ErrorPolicy, Index, MPDataset, MPLoader, RandomResizedCrop, Topology
from mpload.judgement.facts import Job
from mpload.tools.trials import run_trial
from tests.support.containers import cpu_container, memory_container
from tests.support.photos import encode, photo
from tests.support.slow_disk import SlowDisk, mounted

__all__ = ["STAGED", "Staged", "Waiting", "diagnose", "plain_crop", "rate", "slow_transform", "waiting_decode"]


class Waiting:
    """A decoder that waits but hardly computes, like a service on another machine or a disk."""

    def __init__(self, *, seconds: float, side: int = 64) -> None:
        self.seconds = seconds
        self.output_shape = (side, side, 3)

    def __call__(self, data: bytes, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        time.sleep(self.seconds)
        result = np.empty(self.output_shape, np.uint8) if out is None else out
        result[:] = len(data) % 256
        return result


class TinyDecode:
    """Takes almost no time."""

    output_shape = (8, 8, 3)

    def __call__(self, data: bytes, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        result = np.empty(self.output_shape, np.uint8) if out is None else out
        result[:] = len(data) % 256
        return result


def slow_transform(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Take several times as much CPU time as the decoder, but hardly any memory bandwidth."""
    zlib.compress(image.tobytes(), 6)
    return image


waiting_decode = Waiting(seconds=0.01)
tiny_decode = TinyDecode()
plain_crop = RandomResizedCrop(224)
small_crop = RandomResizedCrop(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged job: its setup, the doctor's options, and the bottleneck to find."""

    options: tuple[str, ...]
    bottleneck: str
    prepare: Callable[[Path, ExitStack], Path]
    """Makes the index in a folder; resources are registered with the stack, which closes them after the job."""
    seconds: float = 2.5
    limit_bytes: int | None = None
    """The memory limit of the container that the doctor runs in; None: no container."""
    max_descriptors: int | None = None
    needs_mount: bool = False
    first: str = ""
    """Words of the right first remedy. Empty if there is none."""
    quota_cores: float | None = None
    """The CPU quota of the container that the doctor runs in; None: no container."""
    num_neighbours: int = 0
    """Processes outside the job that compute all the time."""
    dataset: str = ""
    """The dataset that is examined instead of the index, as `module:object`; MPLOAD_TEST_INDEX names the index."""


def write_photos(folder: Path, *, num: int, height: int = 375, width: int = 500) -> None:
    """Write JPEGs `0000`, `0001`, ..."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(num):
        jpeg = simplejpeg.encode_jpeg(photo(height, width, rng), quality=90, colorspace="RGB")
        (folder / f"{number:04d}").write_bytes(jpeg)


def write_index(path: Path, *, root: Path, names: list[str], repeats: int = 1) -> Path:
    """Write an index of files, each with a label."""
    lines = [f"{name}\t{number % 10}\n" for number, name in enumerate(names * repeats)]
    path.write_text(f"#mpload 1\n#root {root}\n#columns image:path label:int\n{''.join(lines)}", encoding="ascii")
    return path


def _photos(folder: Path, _: ExitStack) -> Path:
    """Index two dozen photos many times each: the epoch is long, but all its files are in the page cache."""
    write_photos(folder / "photos", num=24)
    names = sorted(path.name for path in (folder / "photos").iterdir())
    return write_index(folder / "train.txt", root=folder / "photos", names=names, repeats=400)


def _half_progressive(folder: Path, stack: ExitStack) -> Path:
    index = _photos(folder, stack)
    for path in sorted((folder / "photos").iterdir())[::2]:
        with Image.open(path) as image:
            path.write_bytes(encode(image, "JPEG", quality="keep", progressive=True))
    return index


def _huge(folder: Path, _: ExitStack) -> Path:
    write_photos(folder / "photos", num=8, height=2400, width=3200)
    names = sorted(path.name for path in (folder / "photos").iterdir())
    return write_index(folder / "train.txt", root=folder / "photos", names=names, repeats=40)


def _tiny(folder: Path, _: ExitStack) -> Path:
    (folder / "files").mkdir()
    names = [f"{number}.bin" for number in range(50)]
    for name in names:
        (folder / "files" / name).write_bytes(bytes(200))
    return write_index(folder / "train.txt", root=folder / "files", names=names, repeats=2000)


def _on_slow_disk(*, num_files: int, read_seconds: float, is_cached: bool, padding: int = 0) -> Any:
    def prepare(folder: Path, stack: ExitStack) -> Path:
        contents = folder / "contents"
        write_photos(contents, num=16, height=120, width=160)
        for path in contents.iterdir():  # decoders ignore bytes after a JPEG's end
            path.write_bytes(path.read_bytes() + bytes(padding))
        disk = SlowDisk(contents=contents, num_files=num_files, read_seconds=read_seconds, is_cached=is_cached)
        point = stack.enter_context(mounted(disk, folder / "disk"))
        names = [str(number) for number in range(num_files)]
        return write_index(folder / "train.txt", root=point, names=names)

    return prepare


_SMALL = ("--decode", "tests.support.staged:small_crop")
_HUNGRY = ("--batch-size", "8", "--step-time", "0.001")

STAGED: dict[str, Staged] = {
    "slow consumer": Staged(
        bottleneck="consumer", prepare=_photos, options=("--batch-size", "8", "--step-time", "1.0", "--workers", "2")
    ),
    "too few workers": Staged(
        first="num_workers=",
        bottleneck="too few workers",
        prepare=_photos,
        options=(
            *("--decode", "tests.support.staged:waiting_decode"),
            *("--batch-size", "8", "--step-time", "0.01", "--workers", "1"),
        ),
    ),
    "slow transform": Staged(
        first="Make the transform cheaper",
        bottleneck="transform",
        prepare=_photos,
        options=(
            *("--decode", "tests.support.staged:plain_crop", "--transform", "tests.support.staged:slow_transform"),
            *("--batch-size", "8", "--step-time", "0.001"),
        ),
    ),
    "progressive photos": Staged(
        first="mpload pack",
        bottleneck="progressive JPEGs",
        prepare=_half_progressive,
        options=("--decode", "tests.support.staged:plain_crop", "--batch-size", "8", "--step-time", "0.001"),
    ),
    "huge images": Staged(
        first="--resize-short",
        bottleneck="images larger than the crop needs",
        prepare=_huge,
        options=("--decode", "tests.support.staged:plain_crop", "--batch-size", "8", "--step-time", "0.001"),
    ),
    "tiny batches": Staged(
        first="batch_size=",
        bottleneck="small batches",
        prepare=_tiny,
        options=("--decode", "tests.support.staged:tiny_decode", "--batch-size", "1", "--step-time", "0.00002"),
    ),
    "slow disk": Staged(
        first="Cache",
        bottleneck="storage",
        prepare=_on_slow_disk(num_files=3000, read_seconds=0.01, is_cached=False),
        options=(*_SMALL, "--batch-size", "8", "--step-time", "0.008"),
        needs_mount=True,
    ),
    "cold cache": Staged(
        first="Read all files once",
        bottleneck="cold page cache",
        prepare=_on_slow_disk(num_files=3000, read_seconds=0.01, is_cached=True),
        options=(*_SMALL, "--batch-size", "8", "--step-time", "0.008"),
        needs_mount=True,
    ),
    "thrashing page cache": Staged(
        first="Cache",
        bottleneck="page cache too small",
        prepare=_on_slow_disk(num_files=40_000, read_seconds=0.01, is_cached=True, padding=40_000),
        options=(*_SMALL, "--batch-size", "8", "--step-time", "0.008"),
        limit_bytes=900 << 20,
        needs_mount=True,
    ),
    "container limit": Staged(
        first="Use smaller batches",
        bottleneck="memory limit",
        prepare=_photos,
        options=("--batch-size", "512", "--step-time", "0.5", "--workers", "4"),
        limit_bytes=600 << 20,
    ),
    "descriptor limit": Staged(
        first="ulimit",
        bottleneck="descriptor limit",
        prepare=_photos,
        options=("--batch-size", "8", "--step-time", "0.01", "--workers", "12"),
        max_descriptors=20,
    ),
}


@contextmanager
def prepared(staged: Staged, folder: Path) -> Iterator[Path]:
    """Set up a staged job and yield its index."""
    with ExitStack() as stack:
        yield staged.prepare(folder, stack)


def diagnose(staged: Staged, index: Path, *more: str) -> dict[str, Any]:
    """Run the doctor on a staged job, in a separate process and container; return its JSON report."""
    subject = staged.dataset or str(index)
    command = [sys.executable, "-m", "mpload", "doctor", subject, "--json", "--seconds", str(staged.seconds)]
    with ExitStack() as stack:
        containers = []
        if staged.limit_bytes:
            containers.append(stack.enter_context(memory_container(staged.limit_bytes)))
        if staged.quota_cores:
            containers.append(stack.enter_context(cpu_container(staged.quota_cores)))
        if None in containers:
            pytest.skip("no containers here")
        for _ in range(staged.num_neighbours):
            stack.enter_context(_neighbour())

        def enter() -> None:
            for container in containers:
                assert container is not None
                container.procs.write_text("0")
            if staged.max_descriptors is not None:
                hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                resource.setrlimit(resource.RLIMIT_NOFILE, (staged.max_descriptors, hard))

        ran = subprocess.run(
            [*command, *staged.options, *more],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            preexec_fn=enter,
            env={**os.environ, "MPLOAD_TEST_INDEX": str(index)},
        )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@contextmanager
def _neighbour() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def rate(index: Index, folder: Path, *, seconds: float = 1.5, **job: Any) -> float:
    """Return the samples per second of a loader, with bad samples substituted.

    Args:
        index: The samples.
        folder: For a report of bad samples.
        seconds: The duration of the trial.
        job: Other arguments of `MPDataset`, and `num_workers` and `memory_budget` of `MPLoader`.
    """
    options: dict[str, Any] = {"decode": plain_crop, "batch_size": 8, "shuffle": True, **job}
    of_loader = {"num_workers": options.pop("num_workers", 2), "memory_budget": options.pop("memory_budget", "auto")}
    policy = ErrorPolicy(action="substitute", report=folder / "errors.jsonl", max_error_fraction=1.0)
    dataset: MPDataset[Any] = MPDataset(index, topology=Topology(), on_error=policy, **options)
    tried = Job(batch_size=options["batch_size"], num_workers=of_loader["num_workers"])
    return run_trial(lambda: MPLoader(dataset, **of_loader), job=tried, seconds=seconds).samples_per_second


def main() -> None:
    """Print the doctor's findings for the staged jobs named on the command line, or for all."""
    import tempfile

    for name in sys.argv[1:] or STAGED:
        with tempfile.TemporaryDirectory() as folder, prepared(STAGED[name], Path(folder)) as index:
            started = time.monotonic()
            found = diagnose(STAGED[name], index)
        verdict = found["verdict"]
        print(f"\n{name}: {verdict['bottleneck']} ({time.monotonic() - started:.1f} s)\n  {verdict['reason']}")
        for remedy in found["remedies"]:
            print(f"  - {remedy['text']}: {remedy['gain']} (predicted: {remedy['predicted_gain']})")
        for trial in found["findings"]["trials"]:
            print("   ", {key: value for key, value in trial.items() if value})


if __name__ == "__main__":
    main()
