"""How much memory does each loader of plain files take, depending on the length of the list and the number of workers?

    python benchmarks/bench_peer_memory.py --environments DIR [--samples 1e4,1e5,1e6,1e7] [--workers 0,2,8]
    python benchmarks/bench_peer_memory.py --quick

The contestants are those of bench_peers.py that read plain files, set up in the same way. Each case runs in a fresh
process: a shuffled epoch over distinct paths, which lead to a few small JPEGs. Their bytes are read but not decoded.
The result is the peak PSS of all processes together until 500 batches of 64 have been read; if an epoch is shorter,
more epochs are read. Workers copy a list page by page as they read it, so by then they have not copied all of it:
`--batches 5000` shows more. All contestants read their list from the same text. mpload's sidecar of the text already
exists, as in every run except the first. A loader that uses threads has as many threads as the others have workers, and
at least one. Memory is sampled twice per second. Other processes on the machine that have loaded torch would share its
pages and reduce the PSS measured here, so let none run. A case that needs more memory than the machine has to spare is
not run, or is stopped. Records: benchmarks/records/peer_memory.jsonl.
"""

import argparse
import contextlib
import json
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
from contestants import BATCH_SIZE, ENTRIES, LISTS, CannotRunError, Entry, environment, running
from records import RECORDS, latest, write_record

from mpload.index.opening import open_index
from mpload.memory.machine import available_bytes
from mpload.memory.process_tree import ProcessTree
from mpload.memory.usage import sum_memory
from mpload.tools.bench.memory import Outcome
from mpload.units import GIB, format_bytes

NUM_BATCHES = 500
NUM_CLASSES = 1000
NUM_PHOTOS = 16
INTERVAL_SECONDS = 0.5
CORE_SHARE = 0.2  # the largest fraction of one core that sampling may take
FREE_WAIT_SECONDS = 30.0


@dataclass(slots=True)
class Watch:
    """Samples the memory of a process and its descendants, and kills them if they take too much memory or time."""

    tree: ProcessTree
    reserve_bytes: int
    max_seconds: float
    started: float = field(default_factory=time.monotonic)
    peak_pss_bytes: int = 0
    peak_uss_bytes: int = 0
    outcome: Outcome = Outcome.DONE
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sample(self) -> float:
        """Read the memory of all processes, and return the seconds that this took.

        All are read at the same time, because the share of a common page in the PSS of each depends on the others.
        """
        started = time.monotonic()
        with self.lock:
            total = sum_memory(self.tree.read(max_seconds=math.inf))
            self.peak_pss_bytes = max(self.peak_pss_bytes, total.pss_bytes)
            self.peak_uss_bytes = max(self.peak_uss_bytes, total.uss_bytes)
        return time.monotonic() - started

    def run(self, is_over: threading.Event) -> None:
        taken = 0.0
        while not is_over.wait(max(INTERVAL_SECONDS, taken / CORE_SHARE)):
            taken = self.sample()
            if available_bytes() < self.reserve_bytes:
                self.outcome = Outcome.OUT_OF_MEMORY
            elif time.monotonic() - self.started > self.max_seconds:
                self.outcome = Outcome.OUT_OF_TIME
            else:
                continue
            for process in family(self.tree.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return


@contextlib.contextmanager
def watching(pid: int, reserve_bytes: int, max_seconds: float) -> Iterator[Watch]:
    """Sample the memory of a process until the end of the block."""
    watch = Watch(ProcessTree(pid), reserve_bytes, max_seconds)
    is_over = threading.Event()
    thread = threading.Thread(target=watch.run, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants that are alive."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def make_photos(folder: Path, num_names: int) -> None:
    """Make a few small JPEGs with 1000 * `num_names` paths: hard links in one folder, and 1000 links to that folder."""
    photos = folder / "small-photos"
    photos.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    small = [cv2.resize(rng.integers(0, 256, (6, 8, 3), np.uint8), (64, 48)) for _ in range(NUM_PHOTOS)]
    for number, pixels in enumerate(small):
        (photos / f"{number:08}.JPEG").write_bytes(cv2.imencode(".jpg", pixels)[1].tobytes())
    for number in range(max(NUM_PHOTOS, sum(1 for _ in photos.iterdir())), num_names):
        (photos / f"{number:08}.JPEG").hardlink_to(photos / f"{number % NUM_PHOTOS:08}.JPEG")
    for number in range(NUM_CLASSES):
        link = folder / f"n{number:08}"
        if not link.is_symlink():
            link.symlink_to("small-photos")


def make_list(folder: Path, num_samples: int) -> Path:
    """Write a plain list of the paths below `folder`, class by class, and mpload's sidecar for it."""
    path = folder / f"{num_samples}.txt"
    if not path.exists():
        of_class = math.ceil(num_samples / NUM_CLASSES)
        with path.open("w") as file:
            file.writelines(
                f"n{number // of_class:08}/{number % of_class:08}.JPEG {number // of_class}\n"
                for number in range(num_samples)
            )
        open_index(path)
    return path


def measure(
    entry: Entry, python: Path, listing: Path, num_workers: int, *, num_batches: int, reserve_bytes: int, limit: float
) -> dict[str, Any]:
    """Read batches in a fresh process; return the figures for the record."""
    found: list[dict[str, Any]] = []
    reason = None
    with running(entry, python, listing.parent, "bytes", num_workers, listing=listing, max_batches=num_batches) as run:
        with watching(run.process.pid, reserve_bytes, limit) as watch:
            try:
                while sum(each["num_batches"] for each in found) < num_batches:
                    found.append(run.run(len(found)))
                    watch.sample()
            except CannotRunError as error:
                if watch.outcome is Outcome.DONE:
                    reason = str(error)
        processes = family(run.process.pid)
    for process in psutil.wait_procs(processes, timeout=FREE_WAIT_SECONDS)[1]:
        process.kill()
    return {
        "outcome": watch.outcome,
        "failed": reason,
        "version": found[0]["version"] if found else None,
        "num_batches": sum(each["num_batches"] for each in found),
        "start_seconds": round(found[0]["start_seconds"], 3) if found else None,
        "read_seconds": round(sum(each["seconds"] for each in found), 3),
        "peak_pss_bytes": watch.peak_pss_bytes,
        "peak_uss_bytes": watch.peak_uss_bytes,
    }


def recorded_peaks() -> dict[tuple[str, int], dict[int, int]]:
    """Return the recorded peaks: contestant and number of workers -> length of the list -> bytes."""
    peaks: dict[tuple[str, int], dict[int, int]] = {}
    if (RECORDS / "peer_memory.jsonl").exists():
        for record in latest("peer_memory"):
            case, figures = record["case"], record["figures"]
            if "num_batches" not in case and figures["outcome"] == Outcome.DONE and not figures["failed"]:
                of_case = peaks.setdefault((case["contestant"], case["num_workers"]), {})
                of_case[case["num_samples"]] = figures["peak_pss_bytes"]
    return peaks


def predicted_bytes(peaks: dict[int, int], num_samples: int) -> int | None:
    """Return the peak predicted by a line through the two longest of the shorter lists; None if there are fewer."""
    shorter = sorted((length, peak) for length, peak in peaks.items() if length < num_samples)
    if len(shorter) < 2:
        return None
    (less, less_bytes), (more, more_bytes) = shorter[-2:]
    return round(more_bytes + max(0.0, (more_bytes - less_bytes) / (more - less)) * (num_samples - more))


def numbers(text: str) -> list[int]:
    return sorted({int(float(number)) for number in text.split(",")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, only installed contestants; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps photographs and lists; default: a temporary one")
    parser.add_argument("--samples", type=numbers, default=numbers("1e4,1e5,1e6,1e7"))
    parser.add_argument("--workers", type=numbers, default=numbers("0,2,8"))
    parser.add_argument("--batches", type=int, default=NUM_BATCHES)
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="run only the contestants of these modules")
    parser.add_argument("--reserve-gib", type=float, default=4.0, help="memory to leave free, in GiB")
    parser.add_argument("--max-seconds", type=float, default=600.0, help="time limit of a case")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.samples, arguments.workers, arguments.only, arguments.batches = [1000], [0, 1], ["ours", "stock"], 20
    elif arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    folder = None if arguments.quick else arguments.environments.absolute()
    entries = [entry for entry in ENTRIES if entry.name in LISTS]
    reserve_bytes = round(arguments.reserve_gib * GIB)
    peaks = recorded_peaks() if arguments.batches == NUM_BATCHES else {}
    with contextlib.ExitStack() as stack:
        data = (arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        make_photos(data, math.ceil(max(arguments.samples) / NUM_CLASSES))
        for num_samples in arguments.samples:
            listing = make_list(data, num_samples)
            for num_workers in arguments.workers:
                for entry in entries:
                    if arguments.only and entry.module not in arguments.only:
                        continue
                    title, note = LISTS[entry.name]
                    case = {"contestant": title, "num_samples": num_samples, "num_workers": num_workers}
                    if arguments.batches != NUM_BATCHES:
                        case["num_batches"] = arguments.batches
                    known = peaks.setdefault((title, num_workers), {})
                    needed_bytes = predicted_bytes(known, num_samples)
                    free_bytes = available_bytes() - reserve_bytes
                    figures: dict[str, Any]
                    if needed_bytes is not None and needed_bytes > free_bytes:
                        reason = f"predicted {format_bytes(needed_bytes)}, available {format_bytes(free_bytes)}"
                        figures = {"outcome": Outcome.NOT_RUN, "failed": reason}
                    else:
                        figures = measure(
                            entry,
                            environment(entry.environment, folder),
                            listing,
                            num_workers,
                            num_batches=arguments.batches,
                            reserve_bytes=reserve_bytes,
                            limit=arguments.max_seconds,
                        )
                        if figures["outcome"] is Outcome.DONE and not figures["failed"]:
                            known[num_samples] = figures["peak_pss_bytes"]
                    figures |= {"note": note, "needed_bytes": needed_bytes, "batch_size": BATCH_SIZE}
                    print(json.dumps({**case, **figures}), flush=True)
                    if not arguments.quick:
                        write_record("peer_memory", case, figures)


if __name__ == "__main__":
    main()
