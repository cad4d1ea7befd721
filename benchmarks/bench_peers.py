"""Which loader is fastest, with the same photographs and the same transform, on the same machine, in the same run?

    python benchmarks/bench_peers.py --environments DIR --data DIR [--outputs uint8 float32 bytes] [--only NAME ...]
    python benchmarks/bench_peers.py --quick

Each contestant is set up as its authors recommend, with the fastest decoder that works with it, and reports that
decoder. The contestants take turns, each in its own process, which waits while the others run. Every round draws a new
order, so that no contestant always follows the same one. A turn lasts at least `--seconds`. A contestant that reads a
plain list gets one that repeats the photographs until an epoch lasts that long. A contestant that reads its own files
runs several epochs. Each has the number of workers or threads (2 or 3; 0 to 2 for bytes) that was fastest in a trial
over fewer photographs; float32 uses the number found for uint8. All files are in the page cache.

Epoch 0 is checked and not timed: every sample must occur once, shapes, dtypes and means must agree, and no two crops
may be equal. A later epoch that repeats crops fails too. As bytes, mpload delivers tensors in its slots; others deliver
bytes objects, or their own equivalent. Each peer has a virtual environment under `--environments`, which is created
from `benchmarks/peers/requirements-*.txt` if it does not exist. A peer that cannot be installed, or fails, is listed
with the reason. `--quick` runs only contestants whose packages mpload itself needs. Records:
benchmarks/records/peers.jsonl, with the rate of every turn and a digest of the code that ran. A longer race among the
fastest contestants alone: leaders.jsonl.
"""

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from contestants import (
    BATCH_SIZE,
    ENTRIES,
    OUTPUTS,
    CannotRunError,
    Entry,
    Running,
    prepare,
    running,
    trial,
    write_listing,
)
from records import code_digest, write_record

from mpload.memory.monitor import MemoryMonitor

QUICK_MODULES = {"ours", "bare", "stock"}
REST_SECONDS = 1.0
"""Pause between two turns. Some loaders continue to read ahead after an epoch, which would slow down the next one."""
WORKER_COUNTS = {"bare": (0,), "climit": (2,), "ffcvs": (2,)}
"""Module -> numbers of workers to try, for contestants without a choice: the loops that are not loaders, and FFCV,
which takes at most one thread per core and compiles for a minute."""
TRIAL_IMAGES = 640
NEAR_MEAN = {"uint8": 5.0, "float32": 0.1}
"""Largest allowed difference between the mean of a contestant's pixels and the mean of mpload's."""
MEAN_LABEL, NEAR_MEAN_LABEL = 4.5, 0.2  # the photographs are spread over ten classes
MAX_REPEATED = 3
"""Number of crops in a batch that may equal earlier ones: a small photograph may be shown in full twice, by chance."""


@contextmanager
def entered(
    entry: Entry, python: Path, data: Path, output: str, *, num_images: int, seconds: float, is_quick: bool
) -> Iterator[Running]:
    """Start a contestant with its best number of workers, and run the epoch that is checked."""
    worker_counts: tuple[int, ...] = (2,) if is_quick else (2, 3) if output != "bytes" else (0, 1, 2)
    best = trial(entry, python, data / "trial", output, WORKER_COUNTS.get(entry.module, worker_counts))
    times = math.ceil(seconds * best.images_per_second / num_images) if entry.reads_list else 1
    listing = write_listing(data, times) if entry.reads_list and times > 1 else None
    with running(entry, python, data, output, best.num_workers, listing=listing) as contestant:
        with MemoryMonitor(contestant.process.pid, interval_seconds=0.1) as monitor:
            contestant.first = contestant.run(0)
        contestant.num_epochs = 1
        contestant.peak = {"pss": monitor.peak.pss_bytes, "uss": monitor.peak.uss_bytes}
        yield contestant


def check(contestant: Running, output: str, num_images: int, mean: float | None) -> None:
    """Raise `CannotRunError` unless a contestant does the same work as the others.

    Args:
        contestant: has run its first epoch.
        output: what its batches contain.
        num_images: number of photographs.
        mean: mean of mpload's pixels, if known.
    """
    if not contestant.entry.is_loader:
        return
    found, looked = contestant.first, contestant.first["looked"]
    times = max(1, round(found["num_samples"] / num_images))
    num_distinct = num_images if output == "bytes" else num_images * times
    faults = []
    if abs(found["num_samples"] - num_images * times) > BATCH_SIZE:
        faults.append(f"{found['num_samples']} samples of {num_images} files")
    if looked["num_distinct"] < 0.98 * num_distinct:
        faults.append(f"{looked['num_distinct']} of {num_distinct} are distinct")
    if abs(looked["mean_label"] - MEAN_LABEL) > NEAR_MEAN_LABEL:
        faults.append(f"a mean label of {looked['mean_label']}, not {MEAN_LABEL}")
    if output != "bytes":
        if looked["shapes"] != [[224, 224, 3]] or looked["dtypes"] != [output]:
            faults.append(f"{looked['dtypes']} of {looked['shapes']}")
        if mean is not None and abs(looked["mean"] - mean) > NEAR_MEAN[output]:
            faults.append(f"a mean of {looked['mean']}, mpload's is {mean}")
    if faults:
        raise CannotRunError(f"not the same work as the others: {'; '.join(faults)}")


def turn(contestant: Running, output: str, seconds: float) -> None:
    """Let a contestant run full epochs until `seconds` have passed."""
    taken, num_samples = 0.0, 0
    while taken < seconds:
        found = contestant.run(contestant.num_epochs)
        contestant.num_epochs += 1
        taken += found["seconds"]
        num_samples += found["num_samples"]
        if output != "bytes" and found["num_repeated"] > MAX_REPEATED:
            raise CannotRunError(f"{found['num_repeated']} crops of a batch repeat crops of the first epoch")
    contestant.seconds.append(taken / num_samples)


def race(
    able: dict[Entry, Path], data: Path, output: str, *, num_images: int, rounds: int, seconds: float, is_quick: bool
) -> tuple[list[Running], dict[Entry, str]]:
    """Let the contestants take turns; return them with their times, and the reason for each that failed."""
    unable: dict[Entry, str] = {}
    contestants: list[Running] = []
    mean = None
    with ExitStack() as stack:
        for entry, python in able.items():
            if output not in entry.outputs:
                continue
            with ExitStack() as attempt:  # ends the process if the contestant fails
                try:
                    contestant = attempt.enter_context(
                        entered(entry, python, data, output, num_images=num_images, seconds=seconds, is_quick=is_quick)
                    )
                    check(contestant, output, num_images, mean)
                except CannotRunError as error:
                    unable[entry] = str(error)
                    continue
                stack.enter_context(attempt.pop_all())
            contestants.append(contestant)
            if entry.name == "mpload" and output != "bytes":
                mean = contestant.first["looked"]["mean"]
        for number in range(rounds):
            order = list(contestants)
            random.Random(number).shuffle(order)
            for contestant in order:
                time.sleep(REST_SECONDS)
                try:
                    turn(contestant, output, seconds)
                except CannotRunError as error:
                    unable[contestant.entry] = str(error)
                    contestants.remove(contestant)
    return contestants, unable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images, only installed contestants; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps the photographs; default: a temporary one")
    parser.add_argument("--outputs", nargs="+", choices=OUTPUTS, default=OUTPUTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these contestants or modules")
    parser.add_argument("--num-images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="shortest length of a turn")
    parser.add_argument("--records", default="peers", help="name of the file in benchmarks/records, without .jsonl")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_images, arguments.rounds, arguments.only = 128, 1, sorted(QUICK_MODULES)
        arguments.outputs, arguments.seconds = ("uint8",), 0.1
    elif arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    wanted = arguments.only and set(arguments.only)
    entries = [entry for entry in ENTRIES if not wanted or wanted & {entry.name, entry.module}]
    folder = None if arguments.quick else arguments.environments.absolute()
    with ExitStack() as stack:
        data = (arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        data.mkdir(parents=True, exist_ok=True)
        trial_images = min(TRIAL_IMAGES, arguments.num_images)
        able, unable = prepare(entries, folder, data, arguments.num_images)
        able, failed = prepare(list(able), folder, data / "trial", trial_images)
        unable |= failed
        for output in arguments.outputs:
            print(output, flush=True)
            found, failed = race(
                able,
                data,
                output,
                num_images=arguments.num_images,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
                is_quick=arguments.quick,
            )
            failed |= {entry: reason for entry, reason in unable.items() if output in entry.outputs}
            for case, figures in rows(found, failed, data, output, arguments.num_images):
                print(json.dumps({**case, **figures}), flush=True)
                if not arguments.quick:
                    write_record(arguments.records, case, figures)


def rows(
    found: list[Running], unable: dict[Entry, str], data: Path, output: str, num_images: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the case and the figures of a record for each contestant, the fastest first."""
    code = code_digest()
    ours = next((each.seconds for each in found if each.entry.name == "mpload"), None)
    for each in sorted(found, key=lambda each: statistics.median(each.seconds)):
        codecs = json.loads((data / f"{each.entry.module}.codecs").read_text(encoding="utf-8"))
        yield (
            {
                "output": output,
                "contestant": each.entry.name,
                "version": each.first["version"],
                "note": each.entry.note,
                "is_loader": each.entry.is_loader,
                "decodes_with": codecs[each.entry.name] if output != "bytes" else "",
                "batch_size": BATCH_SIZE,
                "num_images": num_images,
                "epoch_samples": each.first["num_samples"],
                "num_workers": each.num_workers,
                "code": code,
            },
            {
                "images_per_second": [round(1 / seconds, 1) for seconds in each.seconds],
                "ratio_to_mpload": ours
                and [round(mine / its, 3) for mine, its in zip(ours, each.seconds, strict=True)],
                "peak_pss_bytes": each.peak["pss"],
                "peak_uss_bytes": each.peak["uss"],
                "first_batch_seconds": round(each.first["first_batch_seconds"], 3),
                "looked": each.first["looked"],
            },
        )
    for entry, reason in unable.items():
        yield {"output": output, "contestant": entry.name, "num_images": num_images, "code": code}, {"failed": reason}


if __name__ == "__main__":
    main()
