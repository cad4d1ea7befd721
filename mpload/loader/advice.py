"""Warnings that explain what slows a loader down, with numbers and remedies. Each is shown once."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from mpload.errors import MploadWarning
from mpload.loader.scaling import runnable_seconds
from mpload.memory.machine import refaulted_bytes
from mpload.telemetry.stats import LoaderStats, Stage
from mpload.units import MIB, format_bytes, format_seconds

__all__ = ["Adviser", "Circumstances", "advise"]

_WAITS = 0.1
_MIN_BATCHES = 20
_THRASH_BYTES_PER_SECOND = 4 * MIB
_LARGE_IMAGES = 6.0
_COMPUTES = 0.7

_REMEDIES = {
    Stage.READ: "read whole blocks (shuffle=BlockShuffle(...)), keep samples on a fast disk (cache=PartialCache(...)), "
    "or pack them into shards (mpload pack)",
    Stage.DECODE: "decode less (RandomResizedCrop and ResizeCenterCrop decode only what they need), store smaller "
    "images (mpload pack), do less in __getitem__, or give the job more cores",
    Stage.TRANSFORM: "make the transform cheaper, do it on the device (DevicePrefetcher(device_transform=...)), or "
    "give the job more cores",
    Stage.TRANSPORT: "raise memory_budget or batch_size, so that more samples are in flight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The facts besides the statistics on which advice depends."""

    num_cores: int
    """Number of cores available to the workers."""
    is_auto: bool
    """Whether the loader chooses the number of workers."""
    runnable_seconds: float = 0.0
    """Time that the workers were on a core or waited for one, summed over all workers."""
    refaulted_bytes: int = 0
    """Bytes that had to be read again because the page cache had dropped them."""


def advise(
    span: LoaderStats, context: Circumstances, *, image_excess: Callable[[], float] = lambda: 1.0
) -> dict[str, str]:  # fmt: skip
    """Return advice about a span of a run: a message per subject.

    Args:
        span: the statistics of the span.
        context: the circumstances of the span.
        image_excess: returns the ratio of stored to decoded pixels. Called only if decoding is the bottleneck.
    """
    found: dict[str, str] = {}
    if span.num_batches < _MIN_BATCHES or not span.num_workers:
        return found
    busy_seconds = span.timings.total_ns * 1e-9
    computing = context.runnable_seconds / busy_seconds if busy_seconds else 0.0
    if not context.is_auto and span.num_workers > context.num_cores and computing > _COMPUTES:
        found["workers"] = (
            f"{span.num_workers} workers share {context.num_cores} cores, and compute for {min(1.0, computing):.0%} of "
            f"their time: more than {context.num_cores} workers only use more memory. "
            f'Use num_workers="auto" or {context.num_cores}'
        )
    if span.wait_fraction <= _WAITS:
        return found
    limit = span.limit
    found["waits"] = _waits(span, limit, context)
    if limit is Stage.DECODE and (excess := image_excess()) > _LARGE_IMAGES:
        found["images"] = (
            f"images have {excess:.0f} times as many pixels as the decoder's output, and decoding is the bottleneck. "
            'Store smaller images (mpload pack), or cache them resized (PartialCache(..., what="resized"))'
        )
    rate = context.refaulted_bytes / span.elapsed_seconds
    if limit is Stage.READ and rate > _THRASH_BYTES_PER_SECOND:
        found["page cache"] = (
            f"{format_bytes(rate)} per second had to be read again because the page cache had dropped them: it is too "
            'small for the data. Use page_cache="drop", BlockShuffle, or a PartialCache on a disk, or give the job '
            "more memory"
        )
    return found


def _waits(span: LoaderStats, limit: Stage, context: Circumstances) -> str:
    stages = span.seconds_per_sample
    total = sum(stages.values())
    use_cores = f"use {context.num_cores} workers, "
    more = "" if span.num_workers >= context.num_cores or context.is_auto else use_cores
    return (
        f"batches come too slowly: the loop waited for {span.wait_fraction:.0%} of the last "
        f"{format_seconds(span.elapsed_seconds)}, while {span.num_workers} workers on {context.num_cores} cores made "
        f"{span.samples_per_second:,.0f} samples/s. The bottleneck is {limit}: {stages[limit] * 1e6:,.0f} of a "
        f"worker's {total * 1e6:,.0f} microseconds per sample. To change that, {more}{_REMEDIES[limit]}. Shown once"
    )


class Adviser:
    """Checks the statistics of a loader whenever it is called, and warns once per subject."""

    def __init__(self, *, is_auto: bool, num_cores: int, image_excess: Callable[[], float]) -> None:
        """Advise one loader.

        Args:
            is_auto: whether the loader chooses the number of workers.
            num_cores: number of cores available to the workers.
            image_excess: returns the ratio of stored to decoded pixels.
        """
        self._is_auto = is_auto
        self._num_cores = num_cores
        self._image_excess = image_excess
        self._last: LoaderStats | None = None
        self._runnable: dict[int, float] = {}
        self._refaulted = 0
        self._said: set[str] = set()

    def __call__(self, stats: LoaderStats) -> None:
        """Check the span since the last call."""
        before, last = self._runnable, self._last
        self._runnable = {worker.pid: runnable_seconds(worker.pid) for worker in stats.workers}
        refaulted, self._refaulted, self._last = self._refaulted, refaulted_bytes(), stats
        if last is None:
            return
        context = Circumstances(
            num_cores=self._num_cores,
            is_auto=self._is_auto,
            runnable_seconds=sum(seconds - before.get(pid, 0.0) for pid, seconds in self._runnable.items()),
            refaulted_bytes=self._refaulted - refaulted,
        )
        for subject, text in advise(stats.since(last), context, image_excess=self._image_excess).items():
            if subject not in self._said:
                self._said.add(subject)
                warnings.warn(text, MploadWarning, stacklevel=5)
