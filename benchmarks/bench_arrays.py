"""How many small arrays per second does each loader deliver, shuffled exactly, with at most two workers?

    python benchmarks/bench_arrays.py --environments DIR [--only NAME ...]
    python benchmarks/bench_arrays.py --quick

The samples are rows: an image of 32 x 32 x 3 bytes and a label. Nothing is decoded, so a loader's own work is all that
counts. Each contestant reads the layout that suits it best: mpload and the DataLoaders a `.npy` file, Hugging Face
datasets an Arrow table, FFCV its own file, and Grain the mapped `.npy` file. All of them fetch whole batches where they
can. All files are in the page cache.

The contestants take turns in random order, each in its own process, with the number of workers or threads (1 or 2) that
was fastest in a trial. A bare gather in the training process itself, without workers, is listed too. Epoch 0 is checked
and not timed: all rows must occur once, with the right shape and the right mean. CPU time is that of a contestant's
whole process tree. Peers run in the environments of `bench_peers.py`; one that cannot be installed is listed with the
reason. `--quick` runs only contestants whose packages mpload itself needs. Records: benchmarks/records/arrays.jsonl.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from contestants import HERE, CannotRunError, Entry, Running, environment, running
from peers.rows import SHAPE, write_rows
from records import code_digest, write_record

BATCH_SIZE = 1024
ENTRIES = (
    Entry(name="mpload", module="rows_ours", distribution="mpload"),
    Entry(
        name="bare gather",
        module="rows_bare",
        distribution="numpy",
        note="not a loader: one process gathers batch after batch",
        is_loader=False,
    ),
    Entry(name="DataLoader, NumPy gather", module="rows_stock", distribution="torch"),
    Entry(name="DataLoader, NumPy gather into shared memory", module="rows_stock", distribution="torch"),
    Entry(name="HF datasets", module="rows_hf", distribution="datasets", environment="hf", note="DataLoader"),
    Entry(name="Grain", module="rows_grain", distribution="grain", environment="grain"),
    Entry(name="FFCV", module="rows_ffcv", distribution="ffcv", environment="ffcv", note="threads; its own file"),
)
QUICK_MODULES = {"rows_ours", "rows_bare", "rows_stock"}
WORKER_COUNTS = {"rows_bare": (0,)}
"""Module -> numbers of workers to try; (1, 2) for all others: they work beside the training process, not in it."""
MEAN, NEAR_MEAN = 127.5, 0.5


def prepare(entry: Entry, folder: Path | None, data: Path) -> Path:
    """Write the files that a contestant reads, and return its interpreter."""
    python = environment(entry.environment, folder)
    command = [str(python), "-W", "ignore", "-m", "peers.run", entry.module, "--prepare", "--data", str(data)]
    if not (data / f"{entry.module}.codecs").exists():
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotRunError((done.stderr.strip().splitlines() or ["?"])[-1][:300])
    return python


def check(contestant: Running, num_samples: int) -> None:
    """Raise `CannotRunError` unless the first epoch held every row once."""
    looked = contestant.first["looked"]
    facts = contestant.first["num_samples"], looked["num_distinct"], looked["shapes"], looked["dtypes"]
    num_alike = num_samples**2 / 2**32  # twice the number of rows that share a checksum of 32 bits by chance
    are_all = num_samples - num_alike <= facts[1] <= facts[0] == num_samples
    if not are_all or facts[2:] != ([list(SHAPE)], ["uint8"]) or abs(looked["mean"] - MEAN) > NEAR_MEAN:
        raise CannotRunError(f"not the same work as the others: {facts}, a mean of {looked['mean']}")


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process and all its descendants have used."""
    times = process.cpu_times()
    total: float = times.user + times.system + times.children_user + times.children_system
    for child in process.children(recursive=True):
        total += sum(child.cpu_times()[:2])
    return total


def turn(contestant: Running, seconds: float) -> tuple[float, float]:
    """Run epochs until `seconds` have passed; return the seconds and the CPU seconds per sample."""
    process = psutil.Process(contestant.process.pid)
    taken, num_samples, before = 0.0, 0, cpu_seconds(process)
    while taken < seconds:
        contestant.num_epochs += 1
        found = contestant.run(contestant.num_epochs)
        taken += found["seconds"]
        num_samples += found["num_samples"]
    return taken / num_samples, (cpu_seconds(process) - before) / num_samples


def entered(
    stack: ExitStack, entry: Entry, python: Path, data: Path, *, num_samples: int, seconds: float, is_quick: bool
) -> Running:
    """Start a contestant with the number of workers that is fastest, and check its first epoch."""
    rates = {}
    counts = (2,) if is_quick else WORKER_COUNTS.get(entry.module, (1, 2))
    for num_workers in counts if len(counts) > 1 else ():
        with running(entry, python, data, "uint8", num_workers, batch_size=BATCH_SIZE) as contestant:
            contestant.first = contestant.run(0)
            check(contestant, num_samples)
            rates[num_workers] = 1 / min(turn(contestant, seconds)[0] for _ in range(2))
    if rates:
        print(f"  {entry.name}: {', '.join(f'{count}: {rate:,.0f}/s' for count, rate in rates.items())}", flush=True)
    best = max(counts, key=lambda count: rates.get(count, 0.0))
    contestant = stack.enter_context(running(entry, python, data, "uint8", best, batch_size=BATCH_SIZE))
    contestant.first = contestant.run(0)
    check(contestant, num_samples)
    return contestant


def race(
    folder: Path | None,
    data: Path,
    entries: list[Entry],
    *,
    num_samples: int,
    rounds: int,
    seconds: float,
    is_quick: bool,
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Let the contestants take turns; return the case and the figures of each, the fastest first."""
    code = code_digest()
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
    times: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        contestants = []
        for entry in entries:
            try:
                python = prepare(entry, folder, data)
                contestant = entered(
                    stack, entry, python, data, num_samples=num_samples, seconds=seconds / 4, is_quick=is_quick
                )
                contestants.append(contestant)
            except CannotRunError as error:
                rows.append(({"contestant": entry.name, "code": code}, {"failed": str(error)}))
        for number in range(rounds):
            order = list(contestants)
            random.Random(number).shuffle(order)
            for contestant in order:
                times.setdefault(contestant.entry.name, []).append(turn(contestant, seconds))
    ours = [wall for wall, _ in times.get("mpload", [])]
    medians = {name: statistics.median(wall for wall, _ in found) for name, found in times.items()}
    for each in sorted(contestants, key=lambda each: medians[each.entry.name], reverse=True):
        case = {
            "contestant": each.entry.name,
            "version": each.first["version"],
            "note": each.entry.note,
            "is_loader": each.entry.is_loader,
            "shape": list(SHAPE),
            "batch_size": BATCH_SIZE,
            "num_samples": num_samples,
            "num_workers": each.num_workers,
            "code": code,
        }
        walls = [wall for wall, _ in times[each.entry.name]]
        figures = {
            "samples_per_second": [round(1 / wall) for wall in walls],
            "ratio_to_mpload": ours and [round(mine / its, 3) for mine, its in zip(ours, walls, strict=True)],
            "cpu_us_per_sample": [round(1e6 * cpu, 3) for _, cpu in times[each.entry.name]],
        }
        rows.insert(0, (case, figures))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, only installed contestants; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps the rows; default: a temporary one")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these contestants or modules")
    parser.add_argument("--num-samples", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="shortest length of a turn")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_samples, arguments.rounds, arguments.seconds = 4096, 1, 0.1
        arguments.only = sorted(QUICK_MODULES)
    elif arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    wanted = arguments.only and set(arguments.only)
    entries = [entry for entry in ENTRIES if not wanted or wanted & {entry.name, entry.module}]
    folder = None if arguments.quick else arguments.environments.absolute()
    with ExitStack() as stack:
        data = (arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        data.mkdir(parents=True, exist_ok=True)
        write_rows(data, arguments.num_samples)
        found = race(
            folder,
            data,
            entries,
            num_samples=arguments.num_samples,
            rounds=arguments.rounds,
            seconds=arguments.seconds,
            is_quick=arguments.quick,
        )
    for case, figures in found:
        print(json.dumps({**case, **figures}), flush=True)
        if not arguments.quick:
            write_record("arrays", case, figures)
    if arguments.quick and any("failed" in figures for _, figures in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
