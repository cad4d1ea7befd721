"""Contestants take turns in random order, each in a process of its own. A turn is one epoch, timed by its process.

A contestant writes a line of JSON about its first epoch, which is not timed, and then calls `run_epochs`. The benchmark
starts each with `started`, reads that line with `told`, and then calls `take_turns`.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Process", "Turn", "cpu_seconds", "medians", "run_epochs", "started", "take_turns", "told", "turn"]

Process = subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class Turn:
    """What an epoch took."""

    samples_per_second: float
    cpu_us: float
    """CPU time of the process and its workers, in microseconds per sample."""
    own_cpu_ms: float
    """CPU time of the process alone, in milliseconds per batch."""


def started(
    script: str, *arguments: str, python: Path | str = sys.executable, env: Mapping[str, str] | None = None
) -> Process:
    """Start a contestant: a script of a benchmark with these arguments, and further variables of the environment."""
    command = [str(python), "-W", "ignore", script, *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )


def run_epochs(loader: Iterable[Any], size_of: Callable[[Any], int]) -> None:
    """Run an epoch for each line of the input, and write what it took; `size_of` counts the samples of a batch."""
    for _ in sys.stdin:
        start, start_cpu = time.perf_counter(), time.process_time()
        sizes = [size_of(batch) for batch in loader]
        taken = {"seconds": time.perf_counter() - start, "owncpu_seconds": time.process_time() - start_cpu}
        print(json.dumps({**taken, "num_samples": sum(sizes), "num_batches": len(sizes)}), flush=True)


def told(process: Process) -> dict[str, Any]:
    """Return what a contestant writes next."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a contestant has failed; see above")
    result: dict[str, Any] = json.loads(line)
    return result


def turn(process: Process) -> Turn:
    """Let a contestant run an epoch, and return what it took."""
    assert process.stdin is not None
    before = cpu_seconds(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    result = told(process)
    taken = cpu_seconds(process.pid) - before
    return Turn(
        result["num_samples"] / result["seconds"],
        1e6 * taken / result["num_samples"],
        1e3 * result["owncpu_seconds"] / result["num_batches"],
    )


def take_turns(running: Mapping[str, Process], num_rounds: int) -> dict[str, list[Turn]]:
    """Return the result of each contestant's turns, by its name."""
    results: dict[str, list[Turn]] = {name: [] for name in running}
    for number in range(num_rounds):
        for name in random.Random(number).sample(list(running), len(running)):
            results[name].append(turn(running[name]))
    return results


def medians(turns: Sequence[Turn]) -> Turn:
    """Return the median of each figure."""
    return Turn(*(statistics.median(figures) for figures in zip(*map(astuple, turns), strict=True)))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of all its descendants."""
    import psutil

    process = psutil.Process(pid)
    own = process.cpu_times()
    return float(own.user + own.system) + sum(sum(child.cpu_times()[:2]) for child in process.children(recursive=True))
