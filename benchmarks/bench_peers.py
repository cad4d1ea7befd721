"""Which loader is fastest: the same photographs, the same transform, the same machine, the same run?

    python benchmarks/bench_peers.py --environments DIR [--outputs uint8 float32 bytes] [--num-images 2000] [--rounds 5]
    python benchmarks/bench_peers.py --quick

Contestants take turns, epoch by epoch, each in a process of its own that waits while others run, so that what slows
the machine down for a while slows all of them; what counts are ratios within a round. Each runs with the number of
workers or threads (1 to 3, for bytes 0 to 2) that served it best in a trial of two epochs, float32 with that of uint8.
Everything is read from warm page cache. Bytes are tensors of its slots with mpload, bytes objects elsewhere. Peers live
in virtual environments of their own under `--environments`, made from `benchmarks/peers/requirements-*.txt` where they
are not there; one that cannot be installed or fails is listed with the reason. `--quick` runs those that mpload's own
tests need. Records: benchmarks/records/peers.jsonl, of the fastest alone over more images leaders.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from records import write_record

from mpload.monitor import MemoryMonitor

HERE = Path(__file__).parent
BATCH_SIZE = 64
OUTPUTS = ("uint8", "float32", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contestant."""

    name: str
    module: str
    distribution: str
    environment: str
    note: str = ""
    """What a reader of the table has to know."""


OWN = "own"
"""The environment that this benchmark runs in."""
ENTRIES = (
    Entry(name="mpload", module="ours", distribution="mpload", environment=OWN),
    Entry(name="mpload, without its native decoder", module="ours", distribution="mpload", environment=OWN),
    Entry(
        name="bare loop", module="bare", distribution="mpload", environment=OWN, note="one process, no batches to make"
    ),
    Entry(
        name="loop in C",
        module="climit",
        distribution="mpload",
        environment=OWN,
        note="no loader: mpload's codec alone",
    ),
    Entry(name="DataLoader, PIL", module="stock", distribution="torch", environment=OWN, note="antialiases"),
    Entry(name="DataLoader, OpenCV + albumentations", module="stock", distribution="torch", environment=OWN),
    Entry(name="DataLoader, simplejpeg", module="stock", distribution="torch", environment=OWN),
    Entry(
        name="WebDataset, PIL",
        module="wds",
        distribution="webdataset",
        environment="wds",
        note="antialiases; tar shards",
    ),
    Entry(name="WebDataset, OpenCV", module="wds", distribution="webdataset", environment="wds", note="tar shards"),
    Entry(
        name="mosaicml-streaming, PIL",
        module="mosaic",
        distribution="mosaicml-streaming",
        environment="mosaic",
        note="antialiases; its own shards",
    ),
    Entry(
        name="litData, PIL", module="lit", distribution="litdata", environment="lit", note="antialiases; its own chunks"
    ),
    Entry(name="Grain, OpenCV", module="grains", distribution="grain", environment="grain"),
    Entry(name="SPDL, simplejpeg", module="spdls", distribution="spdl", environment="spdl", note="threads"),
    Entry(name="SPDL, simplejpeg, processes", module="spdls", distribution="spdl", environment="spdl"),
    Entry(
        name="DALI on the CPU",
        module="dali",
        distribution="nvidia-dali-cuda120",
        environment="dali",
        note="threads; antialiases",
    ),
    Entry(name="tf.data", module="tfdata", distribution="tensorflow-cpu", environment="tf", note="threads; unsteady"),
    Entry(
        name="FFCV",
        module="ffcvs",
        distribution="ffcv",
        environment="ffcv",
        note="photos encoded anew, in its own file",
    ),
)
QUICK_MODULES = {"ours", "bare", "stock"}
REST_SECONDS = 1.0
"""Between two turns: some loaders go on reading ahead after an epoch, and would slow down whoever comes next."""
NUM_PROCESSES = {"bare": (0,), "climit": (2,)}
"""Of contestants that are no loaders; others try several numbers of workers."""


class CannotRunError(Exception):
    """A contestant cannot run; says why."""


@dataclass(slots=True)
class Running:
    """A contestant's process."""

    entry: Entry
    num_workers: int
    process: subprocess.Popen[str]
    log: Path
    seconds: list[float] = field(default_factory=list)
    peak: dict[str, int] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)

    def run(self, epoch: int) -> dict[str, Any]:
        """Let it run an epoch."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{epoch}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        for line in self.process.stdout:
            if line.startswith('{"num_samples"'):
                found: dict[str, Any] = json.loads(line)
                if not found["num_samples"]:
                    raise CannotRunError("an epoch without a sample")
                return found
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        raise CannotRunError(lines[-1][:300] if lines else f"exit code {self.process.wait()}")


@contextmanager
def running(entry: Entry, python: Path, data: Path, output: str, num_workers: int, **more: object) -> Iterator[Running]:
    """Start a contestant, and end it and its workers; `more` are options of `peers.run`."""
    log = data / f"{entry.module}.log"
    options = {
        "name": entry.name,
        "data": data,
        "output": output,
        "batch-size": BATCH_SIZE,
        "num-workers": num_workers,
        "distribution": entry.distribution,
        "started": time.time(),
        **more,
    }
    command = [str(python), "-W", "ignore", "-m", "peers.run", entry.module]
    for option, value in options.items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
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
    """Return the interpreter of an environment, which is made where it is not there."""
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
    """Make the photographs and what contestants want instead; return who can run, and who cannot and why."""
    sys.path.insert(0, str(HERE.parent))
    from tests.photos import make_photo_tree

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


def trial(entry: Entry, python: Path, data: Path, output: str, worker_counts: tuple[int, ...]) -> int:
    """Return the number of workers that serves a contestant best; what was found is kept in `data`."""
    if len(worker_counts) == 1:
        return worker_counts[0]
    kept = data / f"{'bytes' if output == 'bytes' else 'pixels'}-{entry.name.replace(' ', '_')}.trial"
    if kept.exists():
        return int(kept.read_text())
    seconds = {}
    for num_workers in worker_counts:
        with running(entry, python, data, output, num_workers) as contestant:
            contestant.run(0)
            seconds[num_workers] = min(contestant.run(number)["seconds"] for number in (1, 2))
    print(f"  {entry.name}: {', '.join(f'{n} workers {taken:.2f} s' for n, taken in seconds.items())}", flush=True)
    best = min(seconds, key=lambda num_workers: seconds[num_workers])
    kept.write_text(str(best))
    return best


def race(
    able: dict[Entry, Path], data: Path, output: str, *, rounds: int, is_quick: bool
) -> tuple[list[Running], dict[Entry, str]]:
    """Let the contestants take turns; return them with their times, and those that failed with the reason."""
    worker_counts = (2,) if is_quick else (1, 2, 3) if output != "bytes" else (0, 1, 2)
    unable: dict[Entry, str] = {}
    with ExitStack() as stack:
        field_of = []
        for entry, python in able.items():
            try:
                best = trial(entry, python, data, output, NUM_PROCESSES.get(entry.module, worker_counts))
                contestant = stack.enter_context(running(entry, python, data, output, best))
                with MemoryMonitor(contestant.process.pid, interval_seconds=0.1) as monitor:
                    contestant.first = contestant.run(0)
                contestant.peak = {"pss": monitor.peak.pss_bytes, "uss": monitor.peak.uss_bytes}
                field_of.append(contestant)
            except CannotRunError as error:
                unable[entry] = str(error)
        for number in range(rounds):
            for contestant in list(field_of):
                time.sleep(REST_SECONDS)
                try:
                    found = contestant.run(number + 1)
                except CannotRunError as error:
                    unable[contestant.entry] = str(error)
                    field_of.remove(contestant)
                else:
                    contestant.seconds.append(found["seconds"] / found["num_samples"])
    return field_of, unable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images, no record, only what is installed here")
    parser.add_argument("--environments", type=Path, help="folder of the virtual environments")
    parser.add_argument("--data", type=Path, help="folder to keep the photographs in; none: a temporary one")
    parser.add_argument("--outputs", nargs="+", choices=OUTPUTS, default=OUTPUTS)
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="only the contestants of these modules")
    parser.add_argument("--num-images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", default="peers", help="file below benchmarks/records that records go to")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_images, arguments.rounds, arguments.only = 128, 1, sorted(QUICK_MODULES)
        arguments.outputs = ("uint8",)
    elif arguments.environments is None:
        parser.error("--environments is needed, or --quick")
    entries = [entry for entry in ENTRIES if not arguments.only or entry.module in arguments.only]
    folder = None if arguments.quick else arguments.environments.absolute()
    with ExitStack() as stack:
        data = (arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        data.mkdir(parents=True, exist_ok=True)
        able, unable = prepare(entries, folder, data, arguments.num_images)
        for output in arguments.outputs:
            print(output, flush=True)
            found, failed = race(able, data, output, rounds=arguments.rounds, is_quick=arguments.quick)
            for case, figures in rows(found, {**unable, **failed}, output, arguments.num_images):
                print(json.dumps({**case, **figures}), flush=True)
                if not arguments.quick:
                    write_record(arguments.records, case, figures)


def rows(
    found: list[Running], unable: dict[Entry, str], output: str, num_images: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield a record's case and figures for each contestant, the fastest first."""
    ours = next((each.seconds for each in found if each.entry.name == "mpload"), None)
    for each in sorted(found, key=lambda each: statistics.median(each.seconds)):
        rates = [1 / seconds for seconds in each.seconds]
        yield (
            {
                "output": output,
                "contestant": each.entry.name,
                "version": each.first["version"],
                "note": each.entry.note,
                "batch_size": BATCH_SIZE,
                "num_images": num_images,
                "num_workers": each.num_workers,
            },
            {
                "images_per_second": round(statistics.median(rates), 1),
                "images_per_second_min": round(min(rates), 1),
                "images_per_second_max": round(max(rates), 1),
                "ratio_to_mpload": ours
                and round(statistics.median(mine / its for mine, its in zip(ours, each.seconds, strict=True)), 3),
                "peak_pss_bytes": each.peak["pss"],
                "peak_uss_bytes": each.peak["uss"],
                "first_batch_seconds": round(each.first["first_batch_seconds"], 3),
            },
        )
    for entry, reason in unable.items():
        yield {"output": output, "contestant": entry.name, "num_images": num_images}, {"failed": reason}


if __name__ == "__main__":
    main()
