"""The contestants of the races: their names, processes and environments, and the best number of workers for each."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = [
    "BATCH_SIZE",
    "ENTRIES",
    "HERE",
    "LISTS",
    "OUTPUTS",
    "OWN",
    "CannotRunError",
    "Entry",
    "Running",
    "Trial",
    "environment",
    "prepare",
    "running",
    "trial",
    "write_listing",
]

HERE = Path(__file__).parent
BATCH_SIZE = 64
OUTPUTS = ("uint8", "float32", "bytes")


PIXELS = ("uint8", "float32")
OWN = "own"
"""Name of the environment in which the benchmark itself runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contestant of the race."""

    name: str
    module: str
    distribution: str
    environment: str = OWN
    note: str = ""
    """A remark for the readers of the table."""
    outputs: tuple[str, ...] = OUTPUTS
    reads_list: bool = True
    """Whether it accepts a list of paths; if not, it reads the files that its `prepare` wrote."""
    is_loader: bool = True


ENTRIES = (
    Entry(name="mpload", module="ours", distribution="mpload"),
    Entry(
        name="mpload, without its native decoder",
        module="ours",
        distribution="mpload",
        outputs=PIXELS,
    ),
    Entry(
        name="bare loop",
        module="bare",
        distribution="mpload",
        note="not a loader: one process reads file after file",
        outputs=("bytes",),
        is_loader=False,
    ),
    Entry(
        name="loop in C",
        module="climit",
        distribution="mpload",
        note="not a loader: mpload's codec alone",
        outputs=("uint8",),
        is_loader=False,
    ),
    Entry(
        name="DataLoader, PIL",
        module="stock",
        distribution="torch",
        note="antialiases",
        outputs=("uint8",),
    ),
    Entry(
        name="DataLoader, OpenCV + albumentations",
        module="stock",
        distribution="torch",
        outputs=("uint8",),
    ),
    Entry(name="DataLoader, simplejpeg", module="stock", distribution="torch"),
    Entry(name="HF datasets, simplejpeg", module="hf", distribution="datasets", environment="hf", note="DataLoader"),
    Entry(
        name="WebDataset, simplejpeg",
        module="wds",
        distribution="webdataset",
        environment="wds",
        note="tar shards",
        reads_list=False,
    ),
    Entry(
        name="mosaicml-streaming, simplejpeg",
        module="mosaic",
        distribution="mosaicml-streaming",
        environment="mosaic",
        note="its own shards",
        reads_list=False,
    ),
    Entry(
        name="litData, simplejpeg",
        module="lit",
        distribution="litdata",
        environment="lit",
        note="its own chunks",
        reads_list=False,
    ),
    Entry(name="Grain, simplejpeg", module="grains", distribution="grain", environment="grain"),
    Entry(name="SPDL, simplejpeg", module="spdls", distribution="spdl", environment="spdl", note="threads"),
    Entry(
        name="SPDL, simplejpeg, a task a sample",
        module="spdls",
        distribution="spdl",
        environment="spdl",
        note="threads",
        outputs=("uint8",),
    ),
    Entry(
        name="DALI on the CPU", module="dali", distribution="nvidia-dali-cuda120", environment="dali", note="threads"
    ),
    Entry(name="tf.data", module="tfdata", distribution="tensorflow-cpu", environment="tf", note="threads"),
    Entry(name="mlx-data", module="mlxs", distribution="mlx-data", environment="mlx", note="threads"),
    Entry(
        name="datago, OpenCV",
        module="datagos",
        distribution="datago",
        environment="datago",
        note="threads; decodes whole images, which OpenCV crops",
        outputs=PIXELS,
        reads_list=False,
    ),
    Entry(
        name="FFCV",
        module="ffcvs",
        distribution="ffcv",
        environment="ffcv",
        note="threads; its own file, in which photos are encoded again; antialiases",
        outputs=PIXELS,
        reads_list=False,
    ),
)


LISTS = {
    "mpload": ("mpload", "no list: an index file that all processes share, 16 bytes per sample"),
    "DataLoader, simplejpeg": ("DataLoader, list", "a list that every process copies while reading it"),
    "HF datasets, simplejpeg": ("HF datasets", "a memory-mapped Arrow table, and a permutation of all its rows"),
    "Grain, simplejpeg": ("Grain", "a list in every process"),
    "SPDL, simplejpeg": ("SPDL", "one list, shared by threads"),
    "DALI on the CPU": ("DALI on the CPU", "one list in C++, shared by threads"),
    "mlx-data": ("mlx-data", "one list in C++, shared by threads"),
    "tf.data": ("tf.data", "one tensor, shared by threads, and a shuffle buffer for all paths"),
}
"""Entry name -> name in the memory benchmark, and how the contestant keeps its list of samples."""


class CannotRunError(Exception):
    """A contestant cannot run; the message says why."""


@dataclass(slots=True)
class Running:
    """A contestant's running process."""

    entry: Entry
    num_workers: int
    process: subprocess.Popen[str]
    log: Path
    num_epochs: int = 0
    seconds: list[float] = field(default_factory=list)
    """Seconds per sample, one entry for each turn."""
    peak: dict[str, int] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)

    def run(self, epoch: int) -> dict[str, Any]:
        """Have the process run one epoch, and return what it reports."""
        return self.ask(str(epoch))

    def ask(self, line: str) -> dict[str, Any]:
        """Write a line to the process, and return what it reports."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        for answer in self.process.stdout:
            if answer.startswith('{"num_samples"'):
                found: dict[str, Any] = json.loads(answer)
                if not found["num_samples"]:
                    raise CannotRunError("an epoch has no samples")
                return found
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        raise CannotRunError(lines[-1][:300] if lines else f"exit code {self.process.wait()}")


@contextmanager
def running(
    entry: Entry,
    python: Path,
    data: Path,
    output: str,
    num_workers: int,
    *,
    program: str = "peers.run",
    variables: Mapping[str, str] = MappingProxyType({}),
    **more: object,
) -> Iterator[Running]:
    """Start a contestant; on exit, end it and its workers.

    Args:
        entry: the contestant.
        python: the interpreter of its environment.
        data: folder of the photographs.
        output: what its batches contain.
        num_workers: number of workers.
        program: the module that runs the contestant.
        variables: more environment variables for the process.
        more: further options of `program`.
    """
    log = data / f"{entry.module}.log"
    options = {
        "name": entry.name,
        "data": data,
        "output": output,
        "batch-size": BATCH_SIZE,
        "num-workers": num_workers,
        "distribution": entry.distribution,
        "started": time.time(),
        **{option: value for option, value in more.items() if value is not None},
    }
    command = [str(python), "-W", "ignore", "-m", program, entry.module]
    for option, value in options.items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield Running(entry, num_workers, process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def environment(name: str, folder: Path | None) -> Path:
    """Return the Python interpreter of an environment, which is created if it does not exist."""
    if folder is None or name == OWN:
        return Path(sys.executable)
    python = folder / name / "bin" / "python"
    if not (folder / name / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
        requirements = HERE / "peers" / f"requirements-{name}.txt"
        command = [str(python), "-m", "pip", "install", "-q", "-r", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotRunError(f"cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}")
        (folder / name / "done").touch()
    return python


def prepare(
    entries: list[Entry], folder: Path | None, data: Path, num_images: int
) -> tuple[dict[Entry, Path], dict[Entry, str]]:
    """Make the photographs and the files that contestants read instead.

    Returns:
        The interpreter of each contestant that can run, and the reason for each that cannot.
    """
    sys.path.insert(0, str(HERE.parent))
    from tests.support.photos import make_photo_tree

    if not (data / "photos").exists():
        make_photo_tree(data / "photos", num_images=num_images, num_classes=10, seed=0, grain=10)
    able, unable, ready = {}, {}, set()
    for entry in entries:
        try:
            python = environment(entry.environment, folder)
            if entry.module not in ready:
                options = [entry.module, "--prepare", "--data", str(data)]
                command = [str(python), "-W", "ignore", "-m", "peers.run", *options]
                done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise CannotRunError((done.stderr.strip().splitlines() or ["?"])[-1][:300])
                ready.add(entry.module)
            able[entry] = python
        except CannotRunError as error:
            unable[entry] = str(error)
    return able, unable


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A contestant's best number of workers, and its rate with them."""

    num_workers: int
    images_per_second: float


def trial(entry: Entry, python: Path, data: Path, output: str, worker_counts: tuple[int, ...]) -> Trial:
    """Return the best of several numbers of workers; the result is kept in a file in `data`."""
    kept = data / f"{'bytes' if output == 'bytes' else 'pixels'}-{entry.name.replace(' ', '_')}.trial"
    if kept.exists():
        return Trial(**json.loads(kept.read_text()))
    rates = {}
    for num_workers in worker_counts:
        with running(entry, python, data, output, num_workers) as contestant:
            contestant.run(0)
            found = min((contestant.run(number) for number in (1, 2)), key=lambda found: float(found["seconds"]))
            rates[num_workers] = found["num_samples"] / found["seconds"]
    print(f"  {entry.name}: {', '.join(f'{n} workers {rate:,.0f}/s' for n, rate in rates.items())}", flush=True)
    best = max(rates, key=lambda num_workers: rates[num_workers])
    kept.write_text(json.dumps({"num_workers": best, "images_per_second": rates[best]}))
    return Trial(num_workers=best, images_per_second=rates[best])


def write_listing(data: Path, times: int) -> Path:
    """Write a list that names every photograph `times` times."""
    folders = sorted((data / "photos").iterdir())
    lines = [
        f"{path.relative_to(data)} {label}\n"
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
    ]
    listing = data / f"listing-{times}.txt"
    text = "".join(lines * times)
    if not listing.exists() or listing.read_text(encoding="utf-8") != text:  # a contestant may be reading a current one
        listing.write_text(text, encoding="utf-8")
    return listing
