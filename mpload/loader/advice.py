"""Warnings that help: what slows a loader down, with numbers and what to do about it, each said once."""

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
    Stage.DECODE: "decode less (RandomResizedCrop and ResizeCenterCrop decode only what they show), store smaller "
    "images (mpload pack), do less in __getitem__, or give the job more cores",
    Stage.TRANSFORM: "make the transform cheaper, do it on the device (DevicePrefetcher(device_transform=...)), or "
    "give the job more cores",
    Stage.TRANSPORT: "raise memory_budget or batch_size, so that more batches are under way",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What advice depends on besides the statistics."""

    num_cores: int
    is_auto: bool
    """Whether the number of workers is the loader's own choice."""
    runnable_seconds: float = 0.0
    """Time that workers were on a core or waited for one."""
    refaulted_bytes: int = 0
    """Bytes that were read again since the page cache had dropped them."""


def advise(
    span: LoaderStats, now: Circumstances, *, image_excess: Callable[[], float] = lambda: 1.0
) -> dict[str, str]:  # fmt: skip
    """Return what there is to say about a span of a run, by subject.

    Args:
        span: what happened.
        now: and under which circumstances.
        image_excess: returns how many times more pixels images have than the decoder makes of them; only asked where
            decoding is the cause.
    """
    found: dict[str, str] = {}
    if span.num_batches < _MIN_BATCHES or not span.num_workers:
        return found
    busy_seconds = span.timings.total_ns * 1e-9
    computing = now.runnable_seconds / busy_seconds if busy_seconds else 0.0
    if not now.is_auto and span.num_workers > now.num_cores and computing > _COMPUTES:
        found["workers"] = (
            f"{span.num_workers} workers share {now.num_cores} cores, and compute for {min(1.0, computing):.0%} of "
            f'their time: more than {now.num_cores} only take memory. Use num_workers="auto" or {now.num_cores}'
        )
    if span.wait_fraction <= _WAITS:
        return found
    limit = span.limit
    found["waits"] = _waits(span, limit, now)
    if limit is Stage.DECODE and (excess := image_excess()) > _LARGE_IMAGES:
        found["images"] = (
            f"images have {excess:.0f} times as many pixels as the decoder makes of them, and decoding is what limits. "
            "Store smaller ones (mpload pack resizes), or keep them small in a cache (PartialCache(what=...))"
        )
    rate = now.refaulted_bytes / span.elapsed_seconds
    if limit is Stage.READ and rate > _THRASH_BYTES_PER_SECOND:
        found["page cache"] = (
            f"{format_bytes(rate)} a second were read again that the page cache had dropped shortly before: it is too "
            'small for the data. Use page_cache="drop", BlockShuffle, or a PartialCache on a disk, or give the job '
            "more memory"
        )
    return found


def _waits(span: LoaderStats, limit: Stage, now: Circumstances) -> str:
    stages = span.seconds_per_sample
    total = sum(stages.values())
    fewer = "" if span.num_workers >= now.num_cores or now.is_auto else f"use {now.num_cores} workers, "
    return (
        f"batches come too slowly: for {span.wait_fraction:.0%} of the last {format_seconds(span.elapsed_seconds)} the "
        f"loop waited for them, {span.samples_per_second:,.0f} samples/s by {span.num_workers} workers "
        f"on {now.num_cores} cores. The bottleneck is {limit}: {stages[limit] * 1e6:,.0f} of a worker's "
        f"{total * 1e6:,.0f} microseconds per sample. To change that, {fewer}{_REMEDIES[limit]}. Shown once"
    )


class Adviser:
    """Looks at the statistics when told to, and warns of each subject once."""

    def __init__(self, *, is_auto: bool, num_cores: int, image_excess: Callable[[], float]) -> None:
        """Know a loader.

        Args:
            is_auto: whether its number of workers is its own choice.
            num_cores: that its workers have.
            image_excess: returns how much too large its images are.
        """
        self._is_auto = is_auto
        self._num_cores = num_cores
        self._image_excess = image_excess
        self._last: LoaderStats | None = None
        self._runnable: dict[int, float] = {}
        self._refaulted = 0
        self._said: set[str] = set()

    def __call__(self, stats: LoaderStats) -> None:
        """Look at what happened since the last call."""
        before, last = self._runnable, self._last
        self._runnable = {worker.pid: runnable_seconds(worker.pid) for worker in stats.workers}
        refaulted, self._refaulted, self._last = self._refaulted, refaulted_bytes(), stats
        if last is None:
            return
        now = Circumstances(
            num_cores=self._num_cores,
            is_auto=self._is_auto,
            runnable_seconds=sum(seconds - before.get(pid, 0.0) for pid, seconds in self._runnable.items()),
            refaulted_bytes=self._refaulted - refaulted,
        )
        for subject, text in advise(stats.since(last), now, image_excess=self._image_excess).items():
            if subject not in self._said:
                self._said.add(subject)
                warnings.warn(text, MploadWarning, stacklevel=5)
