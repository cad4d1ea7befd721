"""How much memory a list of samples takes in a training job, by how it is kept and loaded."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from pathlib import Path
from typing import IO, Final

import psutil

from mpload.errors import ArgumentError, MploadError
from mpload.index.opening import open_index
from mpload.memory.machine import MemoryGauge, available_bytes
from mpload.memory.process_tree import ProcessTree
from mpload.tools.bench.sample_lists import LINE_BYTES, write_list
from mpload.units import GIB, format_bytes

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
"""What is compared: the names on the command line, and what they are."""

_INTERVAL_SECONDS = 0.25
_CORE_SHARE = 0.1  # of one core, for looking
_SIDECAR_LINE_BYTES = 16
_END_SECONDS = 30.0
_DONE = b'{"done": true}'


class Outcome(StrEnum):
    """What became of a case."""

    DONE = auto()
    NOT_RUN = auto()
    """It would have taken more memory than there is, as smaller ones foretell."""
    OUT_OF_MEMORY = auto()
    """It was stopped before the machine had no memory left."""
    OUT_OF_TIME = auto()
    """It was stopped because it took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """A list of `num_samples`, read by `num_workers` processes."""

    loader: str
    """One of `LOADER_NAMES`."""
    num_samples: int
    num_workers: int

    def __post_init__(self) -> None:
        if self.loader not in LOADER_NAMES:
            raise ArgumentError(f"{self.loader!r} is none of {', '.join(LOADER_NAMES)}")
        if self.num_samples < 1 or self.num_workers < 0:
            raise ArgumentError(f"a list needs samples, got {self.num_samples}, and {self.num_workers} workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What all processes of a case took together at one moment."""

    seconds: float
    """Since the first of them was started."""
    pss_bytes: int
    uss_bytes: int
    largest_child_uss_bytes: int
    """Of the process with the most, the first one left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResult:
    """What a case took, as far as it came."""

    case: MemoryCase
    outcome: Outcome
    num_epochs: int = 0
    first_batch_seconds: float | None = None
    """From before the list is read, or the index opened, to the first batch; imports are made before."""
    epoch_seconds: float | None = None
    """The first epoch's."""
    peak_pss_bytes: int = 0
    peak_uss_bytes: int = 0
    peak_child_uss_bytes: int = 0
    needed_bytes: int | None = None
    """Where it was not run, or stopped: the peak of PSS that smaller lists foretell, if they do."""
    curve: tuple[Moment, ...] = ()


def all_cases(loaders: Sequence[str], samples: Sequence[int], workers: Sequence[int]) -> list[MemoryCase]:
    """Return every combination, small lists first; without workers, fork and spawn are one case."""
    return [
        MemoryCase(loader=loader, num_samples=num_samples, num_workers=num_workers)
        for num_samples in sorted(set(samples))
        for num_workers in sorted(set(workers))
        for loader in loaders
        if num_workers or loader != "list-spawn" or "list-fork" not in loaders
    ]


def predict_bytes(results: Iterable[MemoryResult], case: MemoryCase) -> int | None:
    """Return the peak of PSS that shorter lists foretell for `case`: a line through the two longest that were read.

    None: fewer than two were.
    """
    shorter = {
        result.case.num_samples: result.peak_pss_bytes
        for result in results
        if result.outcome is Outcome.DONE and replace(result.case, num_samples=case.num_samples) == case
    }
    (*_, (less, less_bytes), (more, more_bytes)) = [(0, 0), (0, 0), *sorted(shorter.items())]
    if len(shorter) < 2:
        return None
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
        cases: short lists first: what they take foretells what long ones will.
        num_epochs: how many each makes, if they end in time.
        max_seconds: of one case.
        folder: where the lists are written, temporarily.
        reserve_bytes: of memory that must stay free; None is a tenth of the limit, at least 1 GiB.
        progress: is told how many cases are done.

    Raises:
        MploadError: a list does not fit on the disk, or a case fails for a reason of its own.
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
    """Run one case over the list at `path`, in a process of its own that is stopped where it takes too much.

    Raises:
        MploadError: it failed.
    """
    arguments = [case.loader, str(path), str(case.num_workers), str(num_epochs), str(max_seconds)]
    curve: list[Moment] = []
    outcome = Outcome.DONE
    started = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "mpload.tools.bench.memory_case", *arguments],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            tree = ProcessTree(process.pid)
            while _runs(process):
                is_done = _DONE in _all_of(out)
                curve += _look(tree, time.monotonic() - started, in_full=is_done)
                if is_done:
                    _let_end(process)
                if available_bytes() < reserve_bytes:
                    outcome = Outcome.OUT_OF_MEMORY
                    break
                if time.monotonic() - started > max_seconds:
                    outcome = Outcome.OUT_OF_TIME
                    break
        finally:
            _end(process)
        if outcome is Outcome.DONE and process.returncode == -signal.SIGKILL:  # somebody else's, the kernel's mostly
            outcome = Outcome.OUT_OF_MEMORY
        if outcome is Outcome.DONE and process.returncode:
            told = _all_of(errors).decode(errors="replace").strip().rpartition("\n")[2]
            raise MploadError(f"{case} ended with exit code {process.returncode}: {told}")
        events = [json.loads(line) for line in _all_of(out).splitlines()]
    epochs = [event for event in events if "epoch_seconds" in event]
    if any(event["num_samples_seen"] < case.num_samples for event in epochs):
        raise MploadError(f"{case} has not read all samples: {epochs}")
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


def _look(tree: ProcessTree, seconds: float, *, in_full: bool) -> list[Moment]:
    processes = tree.read(max_seconds=math.inf if in_full else _INTERVAL_SECONDS * _CORE_SHARE)
    if not processes:
        return []
    return [
        Moment(
            seconds=seconds,
            pss_bytes=sum(process.pss_bytes for process in processes),
            uss_bytes=sum(process.uss_bytes for process in processes),
            largest_child_uss_bytes=max((process.uss_bytes for process in processes[1:]), default=0),
        )
    ]


def _runs(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(_INTERVAL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _all_of(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)  # the process writes on at its own end


def _let_end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of a case, and wait until its memory is free again."""
    _let_end(process)
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_END_SECONDS)
    for member in psutil.wait_procs(family, timeout=_END_SECONDS)[1]:
        member.kill()


def _make_list(path: Path, num_samples: int) -> None:
    for old in path.parent.iterdir():
        old.unlink()
    needed_bytes = num_samples * (LINE_BYTES + _SIDECAR_LINE_BYTES)
    free_bytes = psutil.disk_usage(str(path.parent)).free
    if needed_bytes > 0.9 * free_bytes:
        told = f"{path.parent}: a list of {num_samples:,} samples takes {format_bytes(needed_bytes)}"
        raise MploadError(f"{told}, {format_bytes(free_bytes)} are free. Name another folder with --folder")
    write_list(path, num_samples)
    open_index(path)
