"""Parts of a batch: how a batch is cut for the workers, and what is retried after a death. Pure functions."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

__all__ = ["CHUNK_SAMPLES", "MAX_CHUNKS", "Chunk", "after_death", "cut"]

CHUNK_SAMPLES = 16
"""With this many samples, posting and answering a chunk costs about a microsecond per sample."""
_CHUNK_NS = 32_000_000
"""Chunks of fast samples are made larger, up to this much work. Looking up the samples of a chunk costs a worker about
200 microseconds, and photos are decoded two at a time but for the last one of a chunk."""
MAX_CHUNKS = 64
"""Maximum number of chunks in a batch. It bounds the chunks in flight for batches of any size."""
_CHUNKS_PER_WORKER = 2
_DEATHS_TO_BLAME = 2
_KILLS_TO_BLAME = 6
"""The limit for SIGKILL, which comes from outside: from a kernel that is out of memory, or from a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Samples `first` to `last` (exclusive) of the batch in `slot`, to be filled as `task` describes.

    A chunk without samples, whose `first` and `last` are the number of samples, is the last step of its batch.
    """

    batch: int
    """Serial number of the batch."""
    slot: int
    first: int
    last: int
    task: tuple[int, ...]
    layout: int = 0
    """Number of the slot's layout: see `SlotRing.adopt`."""
    num_deaths: int = 0
    """Number of workers that died while filling exactly this chunk."""

    @property
    def num_samples(self) -> int:
        """Number of samples in the chunk."""
        return self.last - self.first

    @property
    def is_last_step(self) -> bool:
        """Whether it finishes its batch, whose samples have all been made."""
        return self.first == self.last


def cut(
    *,
    batch: int,
    slot: int,
    num_samples: int,
    task: tuple[int, ...],
    share: int,
    layout: int = 0,
    sample_ns: float = math.inf,
) -> list[Chunk]:
    """Cut a batch into chunks.

    A small batch is cut just finely enough to give every worker something to do. Finer chunks would gain nothing:
    workers stay busy because several batches are in flight, not because one batch has many chunks.

    Args:
        batch: serial number of the batch.
        slot: slot that the batch is written to.
        num_samples: samples in the batch.
        task: description of the batch for the work.
        share: samples in flight per worker, over all batches.
        layout: number of the slot's layout.
        sample_ns: mean time that a worker takes for a sample.
    """
    smallest = -(-num_samples // MAX_CHUNKS)
    fair = share // _CHUNKS_PER_WORKER
    # Sizes double, so that larger chunks begin where smaller ones did: ragged fields use memory where a chunk begins.
    num_doublings = max(0, int(min(_CHUNK_NS / max(1.0, sample_ns), fair) / CHUNK_SAMPLES).bit_length() - 1)
    size = max(smallest, min(CHUNK_SAMPLES << num_doublings, fair), 1)
    starts = range(0, num_samples, size)
    return [
        Chunk(batch=batch, slot=slot, first=first, last=min(first + size, num_samples), task=task, layout=layout)
        for first in starts
    ]


def after_death(chunk: Chunk, sample: int | None, *, is_from_outside: bool = False) -> list[Chunk]:
    """Return the chunks to retry after a worker died while filling `chunk`.

    The first time, the same chunk is retried, because most deaths are no sample's fault. After a second death it is
    split around `sample`, the sample that the worker was making, or in the middle if that is unknown. An empty list
    means that the sample is to blame: it was alone in its chunk, and two workers died over it, or six if the last death
    came from outside. So is the last step of a batch.
    """
    chunk = replace(chunk, num_deaths=chunk.num_deaths + 1)
    is_alone = chunk.num_samples <= 1
    if chunk.num_deaths < (_KILLS_TO_BLAME if is_alone and is_from_outside else _DEATHS_TO_BLAME):
        return [chunk]
    if is_alone:
        return []
    middle = (chunk.first + chunk.last) // 2
    ends = [chunk.first, middle, chunk.last]
    if sample is not None and chunk.first <= sample < chunk.last:
        ends = sorted({chunk.first, sample, sample + 1, chunk.last})
    return [replace(chunk, first=a, last=b, num_deaths=0) for a, b in pairwise(ends)]
