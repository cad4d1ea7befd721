"""Plans how to read many neighbouring runs of bytes of a file with a few larger reads."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.storage.ranges import Span

__all__ = ["MergedReads", "merge_nearby", "merged"]

_MAX_OFFSET_BYTES = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergedReads:
    """The reads to make from one file, and the place of each run in them.

    Run `i` is `data[read_of[i]][start_in_read[i] : start_in_read[i] + length]`, where `data[r]` holds the bytes of read
    `r`.

    Attributes:
        offsets: int64 [num_reads]: offset of each read in the file, ascending.
        lengths: int64 [num_reads]: length of each read, in bytes.
        read_of: int64 [num_runs]: number of the read that holds each run.
        start_in_read: int64 [num_runs]: offset of each run in its read.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    read_of: NDArray[np.int64]
    start_in_read: NDArray[np.int64]


def merge_nearby(
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    max_gap_bytes: int,
    max_read_bytes: int,
) -> MergedReads:
    """Plan a few reads that together hold all runs of bytes of one file. Opens nothing.

    Runs may be in any order, overlap, repeat and be empty. Neighbours that are at most `max_gap_bytes` apart share a
    read of at most `max_read_bytes`. A run longer than that gets a read of its own.

    Args:
        offsets: int64 [num_runs]: offset of each run in the file.
        lengths: int64 [num_runs]: length of each run, in bytes.
        max_gap_bytes: The largest gap between two runs that is cheaper to read than to skip with another request.
        max_read_bytes: The greatest length of a merged read.

    Raises:
        ArgumentError: A number is negative, `max_read_bytes` is not positive, or the arrays differ in shape.

    Memory:
        A few int64 per run.
    """
    _check_runs(offsets, lengths, max_gap_bytes, max_read_bytes)
    too_long = lengths > max_read_bytes
    alone = np.flatnonzero(too_long)
    shared = np.flatnonzero(~too_long)
    shared = shared[np.argsort(offsets[shared], kind="stable")]

    starts = offsets[shared]
    ends = starts + lengths[shared]
    first_runs = _first_run_of_each_read(starts, ends, max_gap_bytes, max_read_bytes)
    read_offsets = np.concatenate([starts[first_runs], offsets[alone]])
    read_ends = np.concatenate(
        [np.maximum.reduceat(ends, first_runs) if first_runs.size else ends, offsets[alone] + lengths[alone]],
    )
    ascending = np.argsort(read_offsets, kind="stable")
    rank = np.empty_like(ascending)
    rank[ascending] = np.arange(ascending.size)

    read_of = np.empty(offsets.size, np.int64)
    runs_per_read = np.diff(first_runs, append=shared.size)
    read_of[shared] = rank[: first_runs.size].repeat(runs_per_read)
    read_of[alone] = rank[first_runs.size :]
    read_offsets = read_offsets[ascending]
    return MergedReads(
        offsets=read_offsets,
        lengths=read_ends[ascending] - read_offsets,
        read_of=read_of,
        start_in_read=offsets - read_offsets[read_of],
    )


def merged(runs: Iterable[tuple[str, int, int]], *, max_gap_bytes: int) -> list[Span]:
    """Return spans that hold all runs of bytes, each a path, an offset and a length; neighbours in a file share one."""
    runs_of: dict[str, list[tuple[int, int]]] = {}
    for path, offset_bytes, length_bytes in runs:
        runs_of.setdefault(path, []).append((offset_bytes, length_bytes))
    found = []
    for path, of_path in runs_of.items():
        offsets, lengths = np.array(of_path, np.int64).T.copy()
        reads = merge_nearby(offsets, lengths, max_gap_bytes=max_gap_bytes, max_read_bytes=_MAX_OFFSET_BYTES)
        found += [Span(path, *read) for read in zip(reads.offsets.tolist(), reads.lengths.tolist(), strict=True)]
    return found


def _check_runs(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64], max_gap_bytes: int, max_read_bytes: int
) -> None:
    if offsets.ndim != 1 or offsets.shape != lengths.shape:
        raise ArgumentError(
            f"offsets and lengths must be one-dimensional and of equal length, got {offsets.shape} and {lengths.shape}"
        )
    if offsets.dtype != np.int64 or lengths.dtype != np.int64:
        raise ArgumentError(f"offsets and lengths must be int64, got {offsets.dtype} and {lengths.dtype}")
    if max_gap_bytes < 0:
        raise ArgumentError(f"max_gap_bytes must not be negative, got {max_gap_bytes}")
    if max_read_bytes < 1:
        raise ArgumentError(f"max_read_bytes must be positive, got {max_read_bytes}")
    bad = (offsets < 0) | (lengths < 0) | (lengths > _MAX_OFFSET_BYTES - np.maximum(offsets, 0))
    if bad.any():
        run = int(np.argmax(bad))
        raise ArgumentError(f"run {run} is out of range: offset {offsets[run]}, length {lengths[run]}")


def _first_run_of_each_read(
    starts: NDArray[np.int64], ends: NDArray[np.int64], max_gap_bytes: int, max_read_bytes: int
) -> NDArray[np.int64]:
    """Return the runs that begin a read. Runs must be sorted by start and no longer than `max_read_bytes`."""
    if not starts.size:
        return np.empty(0, np.int64)
    reach = np.maximum.accumulate(ends)
    begins = np.empty(starts.size, bool)
    begins[0] = True
    begins[1:] = starts[1:] - reach[:-1] > max_gap_bytes
    groups = np.flatnonzero(begins)
    group_ends = np.append(groups[1:], starts.size)

    # Groups that are too long are cut greedily. `reach` may come from a run before the cut. That run starts no later
    # than the read that begins at the cut and is no longer than a read may be, so it never exceeds that read's limit.
    for group in np.flatnonzero(reach[group_ends - 1] - starts[groups] > max_read_bytes):
        run, end = int(groups[group]), int(group_ends[group])
        while reach[end - 1] - starts[run] > max_read_bytes:
            run += int(np.searchsorted(reach[run:end] - starts[run], max_read_bytes, side="right"))
            begins[run] = True
    return np.flatnonzero(begins)
