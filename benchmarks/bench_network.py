"""Which loader is fastest if the data are on a server whose answers take time, and what does waiting cost it?

    python benchmarks/bench_network.py --environments DIR --data DIR [--columns NAME ...] [--only NAME ...]
    python benchmarks/bench_network.py --quick

About 4,000 photographs of 24 to 110 kB are objects of a server on the loopback interface (object_server.c), which
answers each request after a constant time. In the column with stragglers, 1 % of the requests take 200 ms longer. All
contestants deliver batches of the same crops, RandomResizedCrop(224) and a flip as uint8. mpload decodes with its own
decoder, and the others with simplejpeg at a reduced size, and OpenCV. Some read an object for each photograph, and
others shards of 8 MB that hold photographs; see the notes in ENTRIES. Nothing is read twice from a local copy.

The contestants of a column take turns in random order, each in a process of its own, which waits while the others run.
A turn starts with batches that are not timed, as many as a loader may have made ahead; then batches are counted for
`--seconds`. Before the first turn, shapes, dtypes, labels and means are checked. The server's requests and bytes and
the CPU time are those of all turns. Memory is the peak PSS of the process tree in one more turn, in which the
contestant is alone: PSS counts only a part of each page that others use too, and some contestants use the same
libraries. Each peer has a virtual environment under `--environments`, as in bench_peers.py. A peer that fails is listed
with the reason. `--quick` runs only contestants whose packages mpload itself needs.
Records: benchmarks/records/network.jsonl.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contestants import BATCH_SIZE, CannotRunError, Entry, Running, prepare, running
from object_server import Counts, Delays, ObjectServer, compile_server, serving
from records import code_digest, write_record
from turns import cpu_seconds

from mpload.memory.process_tree import ProcessTree
from mpload.memory.usage import sum_memory

OBJECT_BYTES = range(24_000, 110_001)
NUM_CLASSES = 10
CHECKED_BATCHES = 32
NEAR_MEAN, NEAR_LABEL = 5.0, 0.4
"""Largest allowed difference between the means of pixels and labels of a contestant and those of mpload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What the server does, and the number of workers of each contestant."""

    delays: Delays
    num_workers: int

    @property
    def num_discarded(self) -> int:
        """The number of batches that a loader may have made before its turn."""
        return 4 + 4 * self.num_workers


STRAGGLERS = Delays(slow_fraction=0.01, slow_ms=200)
COLUMNS = {
    "0 ms": Column(delays=Delays(), num_workers=2),
    "50 ms, 2 workers": Column(delays=Delays(delay_ms=50), num_workers=2),
    "50 ms, 8 workers": Column(delays=Delays(delay_ms=50), num_workers=8),
    "stragglers, 2 workers": Column(delays=STRAGGLERS, num_workers=2),
    "stragglers, 8 workers": Column(delays=STRAGGLERS, num_workers=8),
}
QUICK_COLUMNS = ("0 ms", "50 ms, 2 workers")

ENTRIES = (
    Entry(name="mpload", module="net_ours", distribution="mpload", note="objects"),
    Entry(name="DataLoader, obstore, 32 reads at once", module="net_torch", distribution="torch", note="objects"),
    Entry(name="DataLoader, obstore, 64 reads at once", module="net_torch", distribution="torch", note="objects"),
    Entry(name="DataLoader, fsspec", module="net_torch", distribution="torch", note="objects, a batch at once"),
    Entry(name="litData, raw objects", module="net_lit", distribution="litdata", environment="lit", note="objects"),
    Entry(
        name="WebDataset",
        module="net_wds",
        distribution="webdataset",
        environment="wds",
        note="tar shards through curl",
    ),
    Entry(
        name="mosaicml-streaming",
        module="net_mosaic",
        distribution="mosaicml-streaming",
        environment="mosaic",
        note="its own shards, copied to disk",
    ),
    Entry(name="mpload, tar shards", module="net_ours", distribution="mpload", note="spans of tar shards, in blocks"),
)
QUICK_NAMES = ("mpload", "DataLoader, obstore, 32 reads at once")


@dataclass(slots=True, kw_only=True)
class Racer:
    """A contestant that runs, and what its turns led to."""

    running: Running
    first: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    """Images per second in each turn."""
    cpu_us: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    """Requests per image in each turn."""
    bytes: list[float] = field(default_factory=list)
    most_waiting: int = 0
    """The largest number of requests that waited for their answers at the same time."""

    def turn(self, server: ObjectServer, column: Column, seconds: float) -> None:
        before, cpu_before = server.counts(), cpu_seconds(self.running.process.pid)
        found = self.running.ask(f"{column.num_discarded} {seconds}")
        counts: Counts = server.counts().since(before)
        num_images = column.num_discarded * BATCH_SIZE + found["num_samples"]
        self.rates.append(found["num_samples"] / found["seconds"])
        self.cpu_us.append((cpu_seconds(self.running.process.pid) - cpu_before) / num_images * 1e6)
        self.requests.append(counts.requests / num_images)
        self.bytes.append(counts.bytes / num_images)
        self.most_waiting = max(self.most_waiting, counts.most_waiting)


def check(looked: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise `CannotRunError` unless a contestant does the same work as the first one."""
    faults = []
    if looked["shapes"] != [[224, 224, 3]] or looked["dtypes"] != ["uint8"]:
        faults.append(f"{looked['dtypes']} of {looked['shapes']}")
    if abs(looked["mean"] - ours["mean"]) > NEAR_MEAN:
        faults.append(f"a mean of {looked['mean']}, not {ours['mean']}")
    if abs(looked["mean_label"] - ours["mean_label"]) > NEAR_LABEL:
        faults.append(f"a mean label of {looked['mean_label']}, not {ours['mean_label']}")
    if looked["num_distinct"] < 0.98 * CHECKED_BATCHES * BATCH_SIZE:
        faults.append(f"only {looked['num_distinct']} distinct crops")
    if faults:
        raise CannotRunError(f"not the same work as the others: {'; '.join(faults)}")


def start(stack: ExitStack, entry: Entry, python: Path, data: Path, server: ObjectServer, column: Column) -> Running:
    """Start a contestant, which ends with `stack`."""
    variables = server.s3_environment() | {"OBJECTS_URL": server.url, "S3_ENDPOINT_URL": server.url}
    return stack.enter_context(
        running(entry, python, data, "uint8", column.num_workers, program="peers.windows", variables=variables)
    )


def race(
    able: dict[Entry, Path], data: Path, server: ObjectServer, column: Column, *, rounds: int, seconds: float
) -> tuple[list[Racer], dict[Entry, str]]:
    """Let the contestants take turns; return them with their results, and the reason for each that failed."""
    unable: dict[Entry, str] = {}
    racers: list[Racer] = []
    with ExitStack() as stack:
        for entry, python in able.items():
            with ExitStack() as attempt:  # ends the process if the contestant fails
                racer = Racer(running=start(attempt, entry, python, data, server, column))
                try:
                    racer.first = racer.running.ask(f"{CHECKED_BATCHES} 0.1")
                    check(racer.first["looked"], (racers or [racer])[0].first["looked"])
                except CannotRunError as error:
                    unable[entry] = str(error)
                    continue
                stack.enter_context(attempt.pop_all())
            racers.append(racer)
        for number in range(rounds):
            for racer in random.Random(number).sample(racers, len(racers)):
                try:
                    racer.turn(server, column, seconds)
                except CannotRunError as error:
                    unable[racer.running.entry] = str(error)
                    racers.remove(racer)
    return racers, unable


def peak_memory(entry: Entry, python: Path, data: Path, server: ObjectServer, column: Column, *, seconds: float) -> int:
    """Return the peak PSS of a contestant's processes while no other contestant runs."""
    peak_bytes = 0
    with ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        alone = start(stack, entry, python, data, server, column)
        tree = ProcessTree(alone.process.pid)
        window = threads.submit(alone.ask, f"{CHECKED_BATCHES} {seconds}")
        while not window.done():
            wait([window], timeout=0.25)
            peak_bytes = max(peak_bytes, sum_memory(tree.read(max_seconds=math.inf)).pss_bytes)
        window.result()
    return peak_bytes


def rows(
    racers: list[Racer],
    memory: dict[Entry, int],
    unable: dict[Entry, str],
    data: Path,
    name: str,
    num_images: int,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the case and the figures of a record for each contestant."""
    column, code = COLUMNS[name], code_digest()
    case: dict[str, Any] = {
        "column": name,
        "delay_ms": column.delays.delay_ms,
        "slow_fraction": column.delays.slow_fraction,
        "slow_ms": column.delays.slow_ms,
        "num_workers": column.num_workers,
        "batch_size": BATCH_SIZE,
        "num_images": num_images,
        "code": code,
    }
    for racer in racers:
        entry = racer.running.entry
        codecs = json.loads((data / f"{entry.module}.codecs").read_text(encoding="utf-8"))
        yield (
            {"contestant": entry.name, "note": entry.note, "decodes_with": codecs[entry.name], **case},
            {
                "version": racer.first["version"],
                "images_per_second": [round(rate, 1) for rate in racer.rates],
                "cpu_us_per_image": [round(cpu_us) for cpu_us in racer.cpu_us],
                "requests_per_image": round(statistics.median(racer.requests), 4),
                "bytes_per_image": round(statistics.median(racer.bytes)),
                "most_requests_waiting": racer.most_waiting,
                "peak_pss_bytes": memory[entry],
            },
        )
    for entry, reason in unable.items():
        yield {"contestant": entry.name, "note": entry.note, **case}, {"failed": reason}


def make_photos(data: Path, num_images: int) -> None:
    """Write photographs, and keep those that have the right size."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.photos import make_photo_tree

    make_photo_tree(data / "photos", num_images=2 * num_images, num_classes=NUM_CLASSES, seed=0)
    for folder in (data / "photos").iterdir():
        fit = [path for path in sorted(folder.iterdir()) if path.stat().st_size in OBJECT_BYTES]
        for path in {*folder.iterdir()} - {*fit[: num_images // NUM_CLASSES]}:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images, only installed contestants; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps the photographs; default: a temporary one")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these contestants or modules")
    parser.add_argument("--num-images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of the timed part of a turn")
    parser.add_argument("--no-record", action="store_true", help="only print the results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_images, arguments.rounds, arguments.seconds = 300, 1, 0.2
        arguments.columns, arguments.only, arguments.no_record = QUICK_COLUMNS, QUICK_NAMES, True
    elif arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    wanted = arguments.only and set(arguments.only)
    entries = [entry for entry in ENTRIES if not wanted or wanted & {entry.name, entry.module}]
    folder = None if arguments.quick else arguments.environments.absolute()
    with ExitStack() as stack:
        data = (arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        if not (data / "photos").exists():
            make_photos(data, arguments.num_images)
        num_images = sum(path.is_file() for path in (data / "photos").rglob("*"))
        able, unable = prepare(entries, folder, data, num_images)
        program = compile_server(data)
        for name in arguments.columns:
            print(name, flush=True)
            with serving(data, COLUMNS[name].delays, program=program) as server:
                column, seconds = COLUMNS[name], arguments.seconds
                racers, failed = race(able, data, server, column, rounds=arguments.rounds, seconds=seconds)
                raced = [racer.running.entry for racer in racers]
                memory = {
                    entry: peak_memory(entry, able[entry], data, server, column, seconds=seconds) for entry in raced
                }
            for case, figures in rows(racers, memory, unable | failed, data, name, num_images):
                rate = statistics.median(figures.get("images_per_second", [0]))
                print(f"  {case['contestant']:40} {rate:8,.0f} images/s  {json.dumps(figures)}", flush=True)
                if not arguments.no_record:
                    write_record("network", case, figures)


if __name__ == "__main__":
    main()
