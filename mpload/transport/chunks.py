"""Parts of a batch: how a batch is cut for the workers, and what is done again after a death. Pure."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

__all__ = ["CHUNK_SAMPLES", "MAX_CHUNKS", "Chunk", "after_death", "cut"]

CHUNK_SAMPLES = 16
"""Enough that handing out and answering cost about a microsecond a sample."""
_CHUNK_NS = 8_000_000
"""Chunks of samples that take almost no time are larger: looking up where a chunk's samples lie costs a worker some 200
microseconds."""
MAX_CHUNKS = 64
"""Chunks of one batch at most: what is outstanding stays bounded for batches of any size."""
_CHUNKS_PER_WORKER = 2
_DEATHS_TO_BLAME = 2
_KILLS_TO_BLAME = 6
"""Of SIGKILL, which comes from outside: from a kernel that is short of memory, or from a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Samples `first` to `last` (exclusive) of the batch in `slot`, to be filled as `task` says."""

    batch: int
    """Serial number of the batch."""
    slot: int
    first: int
    last: int
    task: tuple[int, ...]
    num_deaths: int = 0
    """Workers that died over exactly this chunk."""

    @property
    def num_samples(self) -> int:
        """How many samples the chunk has."""
        return self.last - self.first


def cut(
    *, batch: int, slot: int, num_samples: int, task: tuple[int, ...], share: int, sample_ns: float = math.inf
) -> list[Chunk]:
    """Cut a batch into chunks, of which a worker's fair part is `share` samples of all that are under way.

    Small batches are cut so that every worker has something to do, but no smaller: it is batches under way that keep
    workers busy, not the pieces of one. `sample_ns` is how long a worker takes for a sample.
    """
    smallest = -(-num_samples // MAX_CHUNKS)
    fair = share // _CHUNKS_PER_WORKER
    # By doubling: where chunks begin, ragged fields take memory, so larger ones begin where smaller ones do.
    num_doublings = max(0, int(min(_CHUNK_NS / max(1.0, sample_ns), fair) / CHUNK_SAMPLES).bit_length() - 1)
    size = max(smallest, min(CHUNK_SAMPLES << num_doublings, fair), 1)
    starts = range(0, num_samples, size)
    return [
        Chunk(batch=batch, slot=slot, first=first, last=min(first + size, num_samples), task=task) for first in starts
    ]


def after_death(chunk: Chunk, sample: int | None, *, is_from_outside: bool = False) -> list[Chunk]:
    """Return what is to be done again after a worker died over `chunk`, at sample `sample` where that is known.

    First the same chunk: most deaths are no sample's fault. After a second death the chunk is split round the sample,
    or in the middle. An empty list says that the one sample of the chunk has killed two workers, six where they were
    killed from outside, when nothing else was there to blame.
    """
    chunk = replace(chunk, num_deaths=chunk.num_deaths + 1)
    is_alone = chunk.num_samples == 1
    if chunk.num_deaths < (_KILLS_TO_BLAME if is_alone and is_from_outside else _DEATHS_TO_BLAME):
        return [chunk]
    if is_alone:
        return []
    middle = (chunk.first + chunk.last) // 2
    ends = [chunk.first, middle, chunk.last]
    if sample is not None and chunk.first <= sample < chunk.last:
        ends = sorted({chunk.first, sample, sample + 1, chunk.last})
    return [replace(chunk, first=a, last=b, num_deaths=0) for a, b in pairwise(ends)]
