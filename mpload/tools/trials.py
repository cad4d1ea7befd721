"""Trials: run a loader for a few seconds, and measure its rate, waits and memory."""

import errno
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mpload.errors import MploadError, WorkerError
from mpload.judgement.facts import Job, Trial
from mpload.loader.loader import MPLoader
from mpload.memory.core_times import read_core_times_of
from mpload.memory.usage import swapped_bytes
from mpload.telemetry.stats import LoaderStats, Stage
from mpload.units import MIB

__all__ = ["device_facts", "new_trial", "run_trial"]

_WARM_UP_SHARE = 0.25
_START_SECONDS, _LOOK_SECONDS = 3.0, 0.02
"""So long a trial waits for all workers to make a sample. If there are too few slots, some never do."""
_MIN_READINGS = 5.0
"""A trial takes this many times as long as to read the statistics once, which is slow on a busy machine."""
_GROWS_BYTES = 4 * MIB
"""Buffers that fill may make a worker grow by less."""
_COPY_BYTES = 64 * MIB
_NUM_COPIES = 8


def run_trial(start: Callable[[], MPLoader[Any]], *, job: Job, seconds: float, **marks: Any) -> Trial:
    """Take batches for `seconds` once all workers have started. The first quarter is a warm-up and does not count.

    Args:
        start: Starts the loader.
        job: The settings of the loader, for the result.
        seconds: The duration of the trial once all workers have started, and for at least two batches.
        marks: What else distinguishes the trial: more attributes of the result.

    Raises:
        MploadError: The loader cannot start for another reason than a limit of the machine.
    """
    trial = new_trial(job, **marks)
    try:
        with start() as loader:
            return _run(loader, trial, seconds=seconds)
    except (OSError, WorkerError) as error:
        is_short = _is_short_of_files(error)
        if not is_short and isinstance(error, MploadError):
            raise
        return replace(trial, error=str(error), is_short_of_files=is_short)


def new_trial(job: Job, **marks: Any) -> Trial:
    """Return the trial of a job before it has a result."""
    return Trial(num_workers=job.num_workers or 1, batch_size=int(job.batch_size), samples_per_second=0.0, **marks)


class _Moment:
    """What a loader has done and used until one moment of a trial."""

    def __init__(self, loader: MPLoader[Any]) -> None:
        pids = [pid for name, pid in loader.pids.items() if "zygote" not in name]
        running = sum(each.running_seconds for each in read_core_times_of(pids).values())
        self.at_seconds = time.monotonic()
        self.cpu_seconds = running + time.process_time()
        self.stats: LoaderStats = loader.stats()
        # Memory that comes back from the swap space is no growth.
        self.held_bytes = self.stats.memory.workers_bytes + sum(map(swapped_bytes, pids))

    def growth_since(self, earlier: "_Moment") -> float:
        """Return the bytes by which the workers grew per sample that the loader delivered."""
        grown_bytes = self.held_bytes - earlier.held_bytes
        if grown_bytes < _GROWS_BYTES * self.stats.num_workers:
            return 0.0
        return grown_bytes / max(1, self.stats.num_samples - earlier.stats.num_samples)


def _run(loader: MPLoader[Any], trial: Trial, *, seconds: float) -> Trial:
    batches = _endless(loader)
    ends_at = time.monotonic() + _START_SECONDS
    next(batches)  # starts the workers
    while time.monotonic() < ends_at and not all(worker.timings.total_ns for worker in loader.stats().workers):
        _take(batches, until=time.monotonic() + _LOOK_SECONDS)  # statistics take time
    _take(batches, until=time.monotonic() + _WARM_UP_SHARE * seconds)
    asked_at, begin = time.monotonic(), _Moment(loader)
    reading_seconds = time.monotonic() - asked_at
    ends_at = asked_at + max((1 - _WARM_UP_SHARE) * seconds, _MIN_READINGS * reading_seconds)
    _take(batches, until=(begin.at_seconds + ends_at) / 2)
    middle = _Moment(loader)
    _take(batches, until=ends_at)
    end = _Moment(loader)
    num_samples, seconds = end.stats.num_samples - begin.stats.num_samples, end.at_seconds - begin.at_seconds
    made_ns = end.stats.timings.total_ns - begin.stats.timings.total_ns
    return replace(
        trial,
        samples_per_second=num_samples / seconds,
        decode_seconds=end.stats.seconds_per_sample[Stage.DECODE],
        transform_seconds=end.stats.seconds_per_sample[Stage.TRANSFORM],
        busy_share=made_ns * 1e-9 / (trial.num_workers * seconds),
        cpu_seconds=max(0.0, end.cpu_seconds - begin.cpu_seconds) / num_samples,
        # A worker that grows once, for a large image, does not grow in both halves.
        grown_bytes_per_sample=min(middle.growth_since(begin), end.growth_since(middle)),
    )


def _endless(loader: MPLoader[Any]) -> Iterator[None]:
    """Take batches of one epoch after another. Each is released at once."""
    while True:
        for batch in loader:
            del batch
            yield


def _take(batches: Iterator[None], *, until: float) -> None:
    """Take batches, at least one, until a moment."""
    next(batches)
    while time.monotonic() < until:
        next(batches)


def device_facts() -> dict[str, Any]:
    """Return what an `Environment` says of the accelerator, its name and the speed of copies; nothing without one."""
    import torch  # noqa: PLC0415  takes a second; the command reports its progress first

    if not torch.cuda.is_available():
        return {}
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    started = time.monotonic()
    for _ in range(_NUM_COPIES):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    bytes_per_second = _NUM_COPIES * _COPY_BYTES / (time.monotonic() - started)
    return {"device": torch.cuda.get_device_name(), "device_bytes_per_second": bytes_per_second}


def _is_short_of_files(error: BaseException) -> bool:
    known: BaseException | None = error
    while known is not None:
        if isinstance(known, OSError) and known.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        if "Too many open files" in str(known):  # as a worker or the zygote reports it
            return True
        known = known.__cause__ or known.__context__
    return False
