"""Trials: run a loader for a few seconds, and measure its rate, waits and memory."""

import errno
import time
from collections.abc import Callable, Mapping
from typing import Any

from mpload.errors import MploadError, WorkerError
from mpload.judgement.facts import Job, Trial
from mpload.loader.loader import MPLoader
from mpload.memory.core_times import read_core_times_of
from mpload.telemetry.stats import LoaderStats, Stage
from mpload.units import MIB

__all__ = ["device_copy", "run_trial"]

_WARM_UP_SHARE = 0.25
_GROWS_BYTES = 4 * MIB
"""Buffers that fill may make a worker grow by less."""
_COPY_BYTES = 64 * MIB
_NUM_COPIES = 8


def run_trial(start: Callable[[], MPLoader[Any]], *, job: Job, seconds: float, **marks: Any) -> Trial:
    """Take batches for `seconds`, and at least four. The first quarter of the time is a warm-up and does not count.

    Args:
        start: Starts the loader.
        job: The settings of the loader, for the result.
        seconds: The duration of the trial after the first batch.
        marks: What else distinguishes the trial: more attributes of the result.

    Raises:
        MploadError: The loader cannot start for another reason than a limit of the machine.
    """
    about = {"num_workers": job.num_workers or 1, "batch_size": int(job.batch_size), **marks}
    try:
        with start() as loader:
            return _run(loader, about, seconds=seconds)
    except (OSError, WorkerError) as error:
        is_short = _is_short_of_files(error)
        if not is_short and isinstance(error, MploadError):
            raise
        return Trial(**about, samples_per_second=0.0, error=str(error), is_short_of_files=is_short)


class _Moment:
    """What a loader has done and used until one moment of a trial."""

    def __init__(self, loader: MPLoader[Any], num_samples: int) -> None:
        pids = [pid for name, pid in loader.pids.items() if "zygote" not in name]
        running = sum(each.running_seconds for each in read_core_times_of(pids).values())
        self.at_seconds = time.monotonic()
        self.num_samples = num_samples
        self.cpu_seconds = running + time.process_time()
        self.stats: LoaderStats = loader.stats()

    def growth_since(self, earlier: "_Moment") -> float:
        """Return the bytes by which the workers grew per sample that the loader delivered."""
        grown_bytes = self.stats.memory.workers_bytes - earlier.stats.memory.workers_bytes
        if grown_bytes < _GROWS_BYTES * self.stats.num_workers:
            return 0.0
        return grown_bytes / max(1, self.num_samples - earlier.num_samples)


def _run(loader: MPLoader[Any], about: dict[str, Any], *, seconds: float) -> Trial:
    first, num_samples, num_batches = 0.0, 0, 0
    moments: list[_Moment] = []  # after the warm-up, and in the middle
    while True:
        for batch in loader:
            num_samples += _num_samples(batch)
            del batch  # releases its slot
            now = time.monotonic()
            first = first or now
            done = (now - first) / seconds
            if not moments and done >= _WARM_UP_SHARE:
                moments.append(_Moment(loader, num_samples))
                num_batches = -1
            num_batches += 1
            if len(moments) == 1 and num_batches and done >= (1 + _WARM_UP_SHARE) / 2:
                moments.append(_Moment(loader, num_samples))
            if len(moments) == 2 and num_batches >= 2 and done >= 1:
                return _result(about, [*moments, _Moment(loader, num_samples)])


def _result(about: dict[str, Any], moments: list[_Moment]) -> Trial:
    begin, middle, end = moments
    num_samples, seconds = end.num_samples - begin.num_samples, end.at_seconds - begin.at_seconds
    made_ns = end.stats.timings.total_ns - begin.stats.timings.total_ns
    return Trial(
        **about,
        samples_per_second=num_samples / seconds,
        decode_seconds=end.stats.seconds_per_sample[Stage.DECODE],
        transform_seconds=end.stats.seconds_per_sample[Stage.TRANSFORM],
        busy_share=made_ns * 1e-9 / (about["num_workers"] * seconds),
        cpu_seconds=max(0.0, end.cpu_seconds - begin.cpu_seconds) / num_samples,
        # A worker that grows once, for a large image, does not grow in both halves.
        grown_bytes_per_sample=min(middle.growth_since(begin), end.growth_since(middle)),
    )


def _num_samples(batch: Any) -> int:
    while isinstance(batch, tuple | Mapping):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


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
