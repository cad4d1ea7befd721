"""Which loader is fastest: the same photographs, the same transform, the same machine, the same run?

    python benchmarks/bench_peers.py --environments DIR --data DIR [--outputs uint8 float32 bytes] [--only NAME ...]
    python benchmarks/bench_peers.py --quick

Each contestant is set up as its authors advise, with the fastest decoder that fits into it, and says which that is.
Contestants take turns, each in a process of its own that waits while others run; every round draws another order, so
that nobody always comes after the same one. A turn lasts `--seconds` at least. Who reads a plain list gets one that
makes an epoch as long as that, which names photographs again and again; who reads files of its own runs epoch after
epoch. Each has the number of workers or threads (2 or 3, for bytes 0 to 2) that served it best in a trial over few
photographs; float32 takes that of uint8. Everything is read from warm page cache.

Epoch 0 is looked at and not timed: every sample has to come once, shapes, dtypes and means have to agree, and no two
crops may be alike; a later epoch that repeats crops fails too. Bytes are tensors of its slots with mpload, else bytes
objects or what the loader has instead. Peers live in virtual environments of their own under `--environments`, made
from `benchmarks/peers/requirements-*.txt` where they are not there; one that cannot be installed, or fails, is listed
with the reason. `--quick` runs those that mpload needs itself. Records: benchmarks/records/peers.jsonl, with the rate
of every turn and a digest of the code that ran; of the fastest alone over more rounds: leaders.jsonl.
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
"""Between two turns: some loaders go on reading ahead after an epoch, and would slow down whoever comes next."""
WORKER_COUNTS = {"bare": (0,), "climit": (2,), "ffcvs": (2,)}
"""Of contestants without a choice: those that are no loaders, and FFCV, which takes as many threads as there are cores
and compiles for a minute. Others try several numbers of workers."""
TRIAL_IMAGES = 640
NEAR_MEAN = {"uint8": 5.0, "float32": 0.1}
"""How far the mean of a contestant's pixels may be from that of mpload's."""
MEAN_LABEL, NEAR_MEAN_LABEL = 4.5, 0.2  # the photographs are spread over ten classes
MAX_REPEATED = 3
"""Crops of one batch that may have come before: of small photographs, whole, twice by chance."""


@contextmanager
def entered(
    entry: Entry, python: Path, data: Path, output: str, *, num_images: int, seconds: float, is_quick: bool
) -> Iterator[Running]:
    """Start a contestant as it is best, and let it run the epoch that is looked at."""
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
    """See that a contestant does what all do; `mean` is that of mpload's pixels."""
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
        raise CannotRunError(f"not what the others do: {'; '.join(faults)}")


def turn(contestant: Running, output: str, seconds: float) -> None:
    """Let a contestant run whole epochs until so many seconds are over."""
    taken, num_samples = 0.0, 0
    while taken < seconds:
        found = contestant.run(contestant.num_epochs)
        contestant.num_epochs += 1
        taken += found["seconds"]
        num_samples += found["num_samples"]
        if output != "bytes" and found["num_repeated"] > MAX_REPEATED:
            raise CannotRunError(f"{found['num_repeated']} crops of a batch are those of the first epoch")
    contestant.seconds.append(taken / num_samples)


def race(
    able: dict[Entry, Path], data: Path, output: str, *, num_images: int, rounds: int, seconds: float, is_quick: bool
) -> tuple[list[Running], dict[Entry, str]]:
    """Let the contestants take turns; return them with their times, and those that failed with the reason."""
    unable: dict[Entry, str] = {}
    contestants: list[Running] = []
    mean = None
    with ExitStack() as stack:
        for entry, python in able.items():
            if output not in entry.outputs:
                continue
            with ExitStack() as attempt:  # which ends the process of one that fails
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
    parser.add_argument("--quick", action="store_true", help="few images, no record, only what is installed here")
    parser.add_argument("--environments", type=Path, help="folder of the virtual environments")
    parser.add_argument("--data", type=Path, help="folder to keep the photographs in; none: a temporary one")
    parser.add_argument("--outputs", nargs="+", choices=OUTPUTS, default=OUTPUTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these contestants, or all of these modules")
    parser.add_argument("--num-images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="a turn's, at least")
    parser.add_argument("--records", default="peers", help="file below benchmarks/records that records go to")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_images, arguments.rounds, arguments.only = 128, 1, sorted(QUICK_MODULES)
        arguments.outputs, arguments.seconds = ("uint8",), 0.1
    elif arguments.environments is None:
        parser.error("--environments is needed, or --quick")
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
    """Yield a record's case and figures for each contestant, the fastest first."""
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
