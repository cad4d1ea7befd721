"""How far the workers of a pool have come: a snapshot that is also right in the middle of a chunk."""

from collections.abc import Mapping
from dataclasses import dataclass

from mpload.transport.batches import PoolStats
from mpload.transport.board import WorkerRow
from mpload.transport.chunks import Chunk

__all__ = ["Progress", "progress_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the workers have done since the pool was made, and what they do now."""

    num_samples: int
    """Samples made, including those of chunks that are not finished yet."""
    occupied_seconds: float
    """Time that workers spent on finished chunks, summed over all workers."""
    num_opening: int
    """Workers that are starting."""
    num_idle: int
    """Workers that have no chunk, or wait for their turn to use much memory."""


def progress_of(stats: PoolStats, rows: Mapping[int, WorkerRow], chunks: Mapping[int, Chunk]) -> Progress:
    """Return the progress of workers.

    Args:
        stats: what their answers said.
        rows: the state of each worker.
        chunks: by serial number, those that have not been answered.
    """
    states = list(rows.values())
    return Progress(
        num_samples=stats.num_made + sum(_num_finished(row, chunks) for row in states if row.is_filling),
        occupied_seconds=stats.busy_ns * 1e-9,
        num_opening=sum(row.is_opening for row in states),
        num_idle=sum(row.waits_for_turn or not (row.is_filling or row.is_opening) for row in states),
    )


def _num_finished(row: WorkerRow, chunks: Mapping[int, Chunk]) -> int:
    """Return how many samples of its chunk a worker has finished, which is 0 while the chunk is unknown."""
    chunk = chunks.get(row.serial)
    return 0 if chunk is None or row.sample is None or chunk.is_last_step else max(0, row.sample - chunk.first)
