"""What does it cost to sample the memory of 64 processes once per second? And are the statistics of a loader right?

    python benchmarks/bench_monitor.py [--num-processes 64] [--seconds 30]

The monitor runs in a fresh process that does nothing else, so the CPU time of that process is the cost of the monitor.
In case `idle` the processes sleep. In `busy` they change their memory all the time. `births` is like `busy`, and in
addition a process starts ten times per second. `fresh_percent` is the percentage of figures that were read anew instead
of kept from the previous reading. Records: benchmarks/records/monitor.jsonl.

The statistics are compared with a clock around `next()`. Three writers are attached. One of them takes 30 ms each time.
`waits` and `computes` say what a sample does; with `slow_loop` the training step takes longer than a batch. The record
is of the median of the turns by the error of the waiting. Records: benchmarks/records/statistics.jsonl.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from records import write_record

from mpload import JsonLinesWriter, MPLoader, PrometheusWriter, Topology

TREE = """
import os, subprocess, sys, time
import numpy
case, num_children = sys.argv[1], int(sys.argv[2])
for _ in range(num_children):
    if os.fork() == 0:
        kept = bytearray()
        while True:
            time.sleep(0.2 if case != "idle" else 1000)
            kept = bytearray(1 << 18) if len(kept) < 1 << 18 else bytearray(1 << 14)
print("ready", flush=True)
while case == "births":
    subprocess.run(["true"])
    time.sleep(0.1)
sys.stdin.read()
"""

WATCH = """
import json, sys, time
from mpload.memory.monitor import MemoryMonitor
pid, seconds = int(sys.argv[1]), float(sys.argv[2])
monitor = MemoryMonitor(pid, interval_seconds=1.0)
monitor.read()
start, used = time.monotonic(), time.process_time()
with monitor:
    time.sleep(seconds)
used = time.process_time() - used
seconds = time.monotonic() - start
readings = monitor.readings[1:]
changes = 0
for one, other in zip(readings, readings[1:]):
    before = set(map(id, one.processes))
    changes += sum(id(process) not in before for process in other.processes)
print(json.dumps({
    "core_percent": 100 * used / seconds,
    "read_ms": 1000 * used / len(readings),
    "num_processes_seen": len(readings[-1].processes),
    "num_readings": len(readings),
    "fresh_percent": 100 * changes / sum(len(reading.processes) for reading in readings[1:]),
}))
"""


NUM_TURNS = 3
STATISTICS = {"waits": (0.005, 0.001), "computes": (0.002, 0.001), "slow_loop": (0.001, 0.02)}
"""Seconds that a sample takes, and a step."""


class Samples:
    """Samples that take a fixed time, waiting or computing."""

    def __init__(self, seconds: float, *, computes: bool) -> None:
        self.seconds = seconds
        self.computes = computes

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, number: int) -> Any:
        ends = time.thread_time() + self.seconds
        if not self.computes:
            time.sleep(self.seconds)
        while self.computes and time.thread_time() < ends:
            pass
        return np.full((32, 32), number, np.float32)


class SlowWriter:
    """A writer that takes its time."""

    def write(self, span: object, total: object) -> None:
        """Take 30 ms."""
        del span, total
        time.sleep(0.03)


def compare(case: str, seconds: float, folder: Path) -> dict[str, float]:
    """Take batches for some time. Return what the statistics and a clock say about the waiting."""
    sample_seconds, step_seconds = STATISTICS[case]
    samples = Samples(sample_seconds, computes=case == "computes")
    with MPLoader(samples, batch_size=8, num_workers=2, topology=Topology()) as loader:
        for writer in (JsonLinesWriter(folder / "stats.jsonl"), PrometheusWriter(folder / "stats.prom"), SlowWriter()):
            loader.stats_to(writer, every_seconds=0.2)
        waits, start = [], time.perf_counter()
        batches = iter(loader)
        while time.perf_counter() < start + seconds:
            asked = time.perf_counter()
            next(batches)
            received = time.perf_counter()
            waits.append(received - asked)
            time.sleep(step_seconds)
        stats = loader.stats()
    figures = {
        "waiting_percent": 100 * stats.wait_fraction,
        "clock_waiting_percent": 100 * sum(waits) / (received - start),
        "num_batches": len(waits),
    }
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        figures[f"{name}_ms"] = 1e3 * stats.latencies.quantile_seconds(share)
        figures[f"clock_{name}_ms"] = 1e3 * sorted(waits)[math.ceil(share * len(waits)) - 1]
    return figures


def check_statistics(*, is_quick: bool) -> None:
    """Compare and record each case."""
    for case in STATISTICS:
        turns = []
        for _ in range(1 if is_quick else NUM_TURNS):
            with tempfile.TemporaryDirectory() as folder:
                turns.append(compare(case, 1.0 if is_quick else 5.0, Path(folder)))
        turns.sort(key=lambda figures: abs(figures["waiting_percent"] - figures["clock_waiting_percent"]))
        median = turns[len(turns) // 2]
        print(case, json.dumps({name: round(value, 2) for name, value in median.items()}))
        if not is_quick:
            write_record("statistics", {"case": case, "num_writers": 3, "num_turns": NUM_TURNS}, median)


def measure(case: str, num_processes: int, seconds: float) -> dict[str, float]:
    tree = [sys.executable, "-c", TREE, case, str(num_processes - 1)]
    with subprocess.Popen(tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as root:
        assert root.stdout is not None
        root.stdout.readline()
        try:
            watch = [sys.executable, "-c", WATCH, str(root.pid), str(seconds)]
            figures: dict[str, float] = json.loads(subprocess.run(watch, capture_output=True, check=True).stdout)
        finally:
            subprocess.run(["kill", "-9", "--", f"-{root.pid}"], check=False)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--quick", action="store_true", help="three seconds per case, to check that it runs; write no record"
    )
    arguments = parser.parse_args()
    for case in ("idle", "busy", "births"):
        seconds = 3.0 if arguments.quick else arguments.seconds
        figures = measure(case, arguments.num_processes, seconds)
        print(case, json.dumps({name: round(value, 2) for name, value in figures.items()}))
        if not arguments.quick:
            write_record("monitor", {"case": case, "num_processes": arguments.num_processes}, figures)
    check_statistics(is_quick=arguments.quick)


if __name__ == "__main__":
    main()
