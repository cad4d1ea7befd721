"""Measures the memory of a list of samples in a training job, by storage and loader."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from pathlib import Path
from typing import IO, Final

import psutil

from mpload.errors import ArgumentError, MploadError
from mpload.index.opening import open_index
from mpload.memory.machine import MemoryGauge, available_bytes
from mpload.memory.process_tree import ProcessTree
from mpload.memory.usage import sum_memory
from mpload.tools.bench.sample_lists import LINE_BYTES, write_list
from mpload.units import GIB, format_bytes, format_counted

__all__ = [
    "LOADER_NAMES",
    "MemoryCase",
    "MemoryResult",
    "Moment",
    "Outcome",
    "all_cases",
    "measure_case",
    "measure_memory",
    "predict_bytes",
]

LOADER_NAMES: Final = {
    "list-fork": "list of (path, label), DataLoader, fork",
    "list-spawn": "list of (path, label), DataLoader, spawn",
    "numpy-fork": "list serialised into NumPy, DataLoader, fork",
    "mpdataset": "MPDataset, DataLoader",
    "mploader": "MPDataset, MPLoader",
}
"""The lists and loaders that are compared: names on the command line, and descriptions."""

_INTERVAL_SECONDS = 0.25
_CORE_SHARE = 0.1  # share of one core for measuring
_SIDECAR_LINE_BYTES = 16
_EXIT_SECONDS = 30.0
_DONE = b'{"done": true}'


class Outcome(StrEnum):
    """How a case ended."""

    DONE = auto()
    NOT_RUN = auto()
    """It was skipped, because smaller cases predict that it needs more memory than is available."""
    OUT_OF_MEMORY = auto()
    """It was stopped before the machine ran out of memory."""
    OUT_OF_TIME = auto()
    """It was stopped because it took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """A list of `num_samples`, read by `num_workers` processes."""

    loader: str
    """A key of `LOADER_NAMES`."""
    num_samples: int
    num_workers: int

    def __post_init__(self) -> None:
        if self.loader not in LOADER_NAMES:
            raise ArgumentError(f"{self.loader!r} is not a loader. Choose from {', '.join(LOADER_NAMES)}")
        if self.num_samples < 1 or self.num_workers < 0:
            raise ArgumentError(
                f"num_samples must be at least 1 and num_workers at least 0, got "
                f"{self.num_samples} and {self.num_workers}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The memory of all processes of a case at one moment."""

    seconds: float
    """The time since the first process was started."""
    pss_bytes: int
    uss_bytes: int
    largest_child_uss_bytes: int
    """The largest USS of any process except the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResult:
    """The result of a case, as far as it ran."""

    case: MemoryCase
    outcome: Outcome
    num_epochs: int = 0
    first_batch_seconds: float | None = None
    """The time from reading the list, or opening the index, to the first batch. Imports are not included."""
    epoch_seconds: float | None = None
    """The time of the first epoch."""
    peak_pss_bytes: int = 0
    peak_uss_bytes: int = 0
    peak_child_uss_bytes: int = 0
    needed_bytes: int | None = None
    """The peak PSS that smaller lists predict, if the case was skipped or stopped. None without a prediction."""
    curve: tuple[Moment, ...] = ()


def all_cases(loaders: Sequence[str], samples: Sequence[int], workers: Sequence[int]) -> list[MemoryCase]:
    """Return every combination, short lists first. Without workers, fork and spawn are the same case."""
    return [
        MemoryCase(loader=loader, num_samples=num_samples, num_workers=num_workers)
        for num_samples in sorted(set(samples))
        for num_workers in sorted(set(workers))
        for loader in loaders
        if num_workers or loader != "list-spawn" or "list-fork" not in loaders
    ]


def predict_bytes(results: Iterable[MemoryResult], case: MemoryCase) -> int | None:
    """Return the peak PSS of `case`, extrapolated linearly from the two longest lists that were read.

    None if fewer than two lists were read.
    """
    shorter = {
        result.case.num_samples: result.peak_pss_bytes
        for result in results
        if result.outcome is Outcome.DONE and replace(result.case, num_samples=case.num_samples) == case
    }
    if len(shorter) < 2:
        return None
    *_, (less, less_bytes), (more, more_bytes) = sorted(shorter.items())
    per_sample = max(0.0, (more_bytes - less_bytes) / (more - less))
    return round(more_bytes + per_sample * (case.num_samples - more))


def measure_memory(
    cases: Sequence[MemoryCase],
    *,
    num_epochs: int,
    max_seconds: float,
    folder: Path,
    reserve_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[MemoryResult]:
    """Measure the cases one after another, each in a fresh process.

    Args:
        cases: The cases, short lists first, because they predict the memory of longer ones.
        num_epochs: The epochs per case, if `max_seconds` allows.
        max_seconds: The time limit of one case.
        folder: The folder for the temporary lists.
        reserve_bytes: The memory that must stay free. None means a tenth of the limit, and at least 1 GiB.
        progress: Called with the number of cases done so far.

    Raises:
        MploadError: A list does not fit on the disk, or a case fails for another reason.
    """
    if reserve_bytes is None:
        reserve_bytes = max(GIB, MemoryGauge().read().limit_bytes // 10)
    done: list[MemoryResult] = []
    with tempfile.TemporaryDirectory(dir=folder, prefix="mpload-") as name:
        for case in cases:
            path = Path(name, f"{case.num_samples}.txt")
            needed_bytes = predict_bytes(done, case)
            if needed_bytes is not None and needed_bytes > available_bytes() - reserve_bytes:
                result = MemoryResult(case=case, outcome=Outcome.NOT_RUN, needed_bytes=needed_bytes)
            else:
                if not path.exists():
                    _make_list(path, case.num_samples)
                result = measure_case(
                    case, path, num_epochs=num_epochs, max_seconds=max_seconds, reserve_bytes=reserve_bytes
                )
                if result.outcome is not Outcome.DONE:
                    result = replace(result, needed_bytes=needed_bytes)
            done.append(result)
            yield result
            if progress is not None:
                progress(len(done))


def measure_case(
    case: MemoryCase, path: Path, *, num_epochs: int, max_seconds: float, reserve_bytes: int
) -> MemoryResult:
    """Run one case with the list at `path` in a process of its own. Stop it if it takes too much time or memory.

    Raises:
        MploadError: The case failed.
    """
    arguments = [case.loader, str(path), str(case.num_workers), str(num_epochs), str(max_seconds)]
    curve: list[Moment] = []
    outcome = None
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "mpload.tools.bench.memory_case", *arguments],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        ) as process,
    ):
        try:
            tree = ProcessTree(process.pid)
            while outcome is None and _is_running(process):
                is_done = _DONE in _content(out)
                curve += _read_memory(tree, time.monotonic() - started, in_full=is_done)
                if is_done:
                    outcome = Outcome.DONE
                    _let_end(process)
                elif available_bytes() < reserve_bytes:
                    outcome = Outcome.OUT_OF_MEMORY
                elif time.monotonic() - started > max_seconds:
                    outcome = Outcome.OUT_OF_TIME
        finally:
            _kill(process)
        if outcome is None and process.returncode == -signal.SIGKILL:  # not by us: most likely by the kernel
            outcome = Outcome.OUT_OF_MEMORY
        if outcome is None:
            reason = _content(errors).decode(errors="replace").strip().rpartition("\n")[2]
            raise MploadError(f"{case} ended with exit code {process.returncode}: {reason}")
        events = [json.loads(line) for line in _content(out).splitlines()]
    epochs = [event for event in events if "epoch_seconds" in event]
    if any(event["num_samples_seen"] < case.num_samples for event in epochs):
        raise MploadError(f"{case} did not read all samples: {epochs}")
    return MemoryResult(
        case=case,
        outcome=outcome,
        num_epochs=len(epochs),
        first_batch_seconds=events[0]["first_batch_seconds"] if events else None,
        epoch_seconds=epochs[0]["epoch_seconds"] if epochs else None,
        peak_pss_bytes=max((moment.pss_bytes for moment in curve), default=0),
        peak_uss_bytes=max((moment.uss_bytes for moment in curve), default=0),
        peak_child_uss_bytes=max((moment.largest_child_uss_bytes for moment in curve), default=0),
        curve=tuple(curve),
    )


def _read_memory(tree: ProcessTree, seconds: float, *, in_full: bool) -> list[Moment]:
    processes = tree.read(max_seconds=math.inf if in_full else _INTERVAL_SECONDS * _CORE_SHARE)
    total, largest = sum_memory(processes), max((process.uss_bytes for process in processes[1:]), default=0)
    moment = Moment(
        seconds=seconds, pss_bytes=total.pss_bytes, uss_bytes=total.uss_bytes, largest_child_uss_bytes=largest
    )
    return [moment] if processes else []


def _is_running(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(_INTERVAL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _content(file: IO[bytes]) -> bytes:
    # A read would move the offset that the process shares.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def _let_end(process: "subprocess.Popen[bytes]") -> None:
    """Let a case that was measured end by itself, so that it leaves no semaphore and no folder."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_SECONDS)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the processes of a case, if it has not ended, and wait until their memory is free again."""
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_EXIT_SECONDS)
        for member in psutil.wait_procs(family, timeout=_EXIT_SECONDS)[1]:
            member.kill()


def _make_list(path: Path, num_samples: int) -> None:
    for old in path.parent.iterdir():
        old.unlink()
    needed_bytes = num_samples * (LINE_BYTES + _SIDECAR_LINE_BYTES)
    free_bytes = psutil.disk_usage(str(path.parent)).free
    if needed_bytes > 0.9 * free_bytes:
        samples = format_counted(num_samples, "sample")
        raise MploadError(
            f"{path.parent}: a list of {samples} needs {format_bytes(needed_bytes)}, but only "
            f"{format_bytes(free_bytes)} are free. Name another folder with --folder"
        )
    write_list(path, num_samples)
    open_index(path)
