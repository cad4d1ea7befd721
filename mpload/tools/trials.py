"""Trials: run a loader for a few seconds, and measure its rate, waits and memory."""

import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpload.errors import MploadError, SampleError, WorkerError
from mpload.index.index import Index
from mpload.loader.dataset import MPDataset
from mpload.loader.loader import MPLoader
from mpload.memory.core_times import read_core_times_of
from mpload.plan.topology import Topology
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorAction, ErrorPolicy
from mpload.telemetry.stats import Stage

__all__ = ["LoaderTrial", "check_samples", "device_copy", "run_loader", "run_trial"]

_WARM_UP_SHARE = 0.25
_COPY_BYTES = 64 << 20
_NUM_COPIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrial:
    """The result of a trial."""

    samples_per_second: float
    """0 if the loader could not start."""
    start_seconds: float = 0.0
    """The time until the first batch."""
    decode_seconds: float = 0.0
    """A worker's wall-clock time per sample, including time in which other processes had the core."""
    transform_seconds: float = 0.0
    busy_share: float = 0.0
    """The share of time in which workers made samples, including time in which they waited while doing so."""
    cpu_seconds: float = 0.0
    """The CPU time of workers and training process per sample."""
    waiting_share: float = 0.0
    """The share of time in which workers waited for anything but a core: for storage, a sleep or the consumer."""
    memory_bytes: int = 0
    """Memory of slots, workers and zygote at the end, as the memory budget counts it."""
    error: str = ""
    """Why the loader could not start; empty if it did."""
    is_short_of_files: bool = False
    """Whether the limit of open files was the cause."""


def run_loader(
    index: Index,
    *,
    decode: Callable[..., Any],
    transform: Callable[..., Any] | None,
    num_workers: int,
    batch_size: int,
    seconds: float,
    report: Path,
    memory_budget: int | str = "auto",
    seed: int = 0,
) -> LoaderTrial:
    """Take batches for `seconds`, and at least three. The first quarter of the time is a warm-up and does not count.

    Args:
        index: The samples. They are read in shuffled order.
        decode: As in `MPDataset`. Bad samples are substituted.
        transform: As in `MPDataset`.
        num_workers: As in `MPLoader`.
        batch_size: As in `MPDataset`.
        memory_budget: As in `MPLoader`.
        seconds: The duration of the trial after the first batch.
        report: The file for reports of bad samples.
        seed: The seed of the order.

    Raises:
        SampleError: No sample can be made.
        ArgumentError: The memory budget is too small.
    """
    policy = ErrorPolicy(action=ErrorAction.SUBSTITUTE, report=report, max_error_fraction=1.0)
    dataset = MPDataset(
        index,
        decode=decode,
        transform=transform,
        batch_size=batch_size,
        shuffle=True,
        seed=seed,
        topology=Topology(),
        on_error=policy,
    )
    return run_trial(lambda: MPLoader(dataset, num_workers=num_workers, memory_budget=memory_budget), seconds=seconds)


def run_trial(start: Callable[[], MPLoader[Any]], *, seconds: float) -> LoaderTrial:
    """Start a loader and take batches for `seconds`; see `run_loader`."""
    started = time.monotonic()
    try:
        with start() as loader:
            return _run(loader, started=started, seconds=seconds)
    except (OSError, WorkerError) as error:
        is_short = _is_short_of_files(error)
        if not is_short and isinstance(error, MploadError):
            raise
        return LoaderTrial(samples_per_second=0.0, error=str(error), is_short_of_files=is_short)


def _run(loader: MPLoader[Any], *, started: float, seconds: float) -> LoaderTrial:
    first: float | None = None
    counted_from, last, num_samples, num_batches = 0.0, 0.0, 0, 0
    busy_before, cpu_before, made_before = 0.0, 0.0, 0
    while True:
        for batch in loader:
            size = _num_samples(batch)
            del batch  # releases its slot
            now = time.monotonic()
            if first is None:
                first = now
            if not counted_from:
                if now - first >= _WARM_UP_SHARE * seconds:
                    counted_from = now
                    running, delayed = _core_seconds(loader)
                    busy_before, cpu_before = running + delayed, running + time.process_time()
                    made_before = loader.stats().timings.total_ns
                continue
            num_samples, num_batches, last = num_samples + size, num_batches + 1, now
            if now - first >= seconds and num_batches >= 2:
                stats = loader.stats()
                available = loader.num_workers * (last - counted_from)
                running, delayed = _core_seconds(loader)
                busy = running + delayed - busy_before
                return LoaderTrial(
                    samples_per_second=num_samples / (last - counted_from),
                    start_seconds=first - started,
                    decode_seconds=stats.seconds_per_sample[Stage.DECODE],
                    transform_seconds=stats.seconds_per_sample[Stage.TRANSFORM],
                    busy_share=(stats.timings.total_ns - made_before) * 1e-9 / available if available else 0.0,
                    cpu_seconds=max(0.0, running + time.process_time() - cpu_before) / num_samples,
                    waiting_share=min(1.0, max(0.0, 1 - busy / available)) if available else 0.0,
                    memory_bytes=stats.memory.total_bytes,
                )


def _num_samples(batch: Any) -> int:
    while isinstance(batch, tuple | Mapping):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def _core_seconds(loader: MPLoader[Any]) -> tuple[float, float]:
    """Return how long all workers have run, and how long they could have run but had no core."""
    times = read_core_times_of(pid for name, pid in loader.pids.items() if "zygote" not in name).values()
    return sum(each.running_seconds for each in times), sum(each.delayed_seconds for each in times)


def check_samples(
    index: Index, *, decode: Callable[..., Any], transform: Callable[..., Any] | None, num_samples: int = 16
) -> None:
    """Check, before any trial, that at least one of the first samples can be made in this process.

    Raises:
        SampleError: None of them can be made.
    """
    pipeline = Pipeline(index=index, decode=decode, transform=transform, policy=ErrorPolicy())
    failed: SampleError | None = None
    for record in index[:num_samples]:
        try:
            pipeline.sample(record, seed=0, epoch=0)
        except SampleError as error:
            failed = failed or error
        else:
            return
    raise SampleError(f"{index.path}: none of the first samples could be made: {failed}")


def device_copy() -> tuple[str, float] | None:
    """Return the accelerator's name and the bytes per second of copies to it. None if there is no accelerator."""
    import torch  # noqa: PLC0415  takes a second; the command reports its progress first

    if not torch.cuda.is_available():
        return None
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    started = time.monotonic()
    for _ in range(_NUM_COPIES):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return torch.cuda.get_device_name(), _NUM_COPIES * _COPY_BYTES / (time.monotonic() - started)


def _is_short_of_files(error: BaseException) -> bool:
    known: BaseException | None = error
    while known is not None:
        if isinstance(known, OSError) and known.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        if "Too many open files" in str(known):  # as a worker or the zygote reports it
            return True
        known = known.__cause__ or known.__context__
    return False
