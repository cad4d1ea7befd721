"""Reads the ranges of a whole chunk of samples into one area, with one native call.

The call declines unusual ranges: files that cannot be opened beneath the root, spans that end after their shard,
absolute paths. The storage's own methods then read the range, or raise the error that explains it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import StorageError
from mpload.storage.mapped import MappedShard
from mpload.storage.native import NATIVE, NativeShard

__all__ = ["SLOW_NS", "ManyRanges", "ManyRead", "ManyReader"]

SLOW_NS: Final = 200_000
"""A read that takes longer than this is slow: it is worth a thread's overhead of about 50 microseconds."""
_MAX_SLOW_READS = 8  # so that the caller can soon begin to read ahead
_MAX_BYTES = (1 << 63) - 1


class _Open(Protocol):
    """An open file or folder, which stays open while this object lives."""

    descriptor: int


class _OpenShard(_Open, Protocol):
    """An open shard, which may be mapped into memory."""

    map: MappedShard | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManyRanges:
    """Whole files, or spans of shards."""

    names: bytes
    """The paths, among other bytes: UTF-8, or any other bytes that are the names of files."""
    paths: NDArray[np.int64]
    """int64 [n, 2]: where each path starts and ends in `names`; -1 for a range that is not to be read."""
    offsets: NDArray[np.int64]
    """int64 [n]: offset of the first byte."""
    lengths: NDArray[np.int64]
    """int64 [n]: number of bytes; -1 for a whole file."""
    num_samples: int | None = None
    """Ranges `i` and `i + num_samples` are of the same sample. None: each range is of another one."""
    first: int = 0
    """The number of the first sample: range `i` is of the sample `first + i % num_samples`."""
    at: "memoryview[int] | None" = None
    """One int64, to which the number of the sample that is next is written before each range is read, and before each
    shard is opened; None for nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManyRead:
    """The outcome of one call, which may have read the first of its ranges only."""

    starts: NDArray[np.int64]
    """int64 [num_done]: where each range starts in the area."""
    lengths: NDArray[np.int64]
    """int64 [num_done]: the number of bytes of each range; -1 if it was declined."""
    num_slow: int
    """Number of slow reads. Up to 16 copies from maps are timed together: then all of them are slow, or none."""
    used_bytes: int
    """Size of the used part of the area, a multiple of 64 bytes."""

    def part(self, first: int, last: int) -> "ManyRead":
        """Return the outcome for the ranges `first` to `last` (exclusive) alone."""
        return replace(self, starts=self.starts[first:last], lengths=self.lengths[first:last])


class ManyReader:
    """Reads the ranges of one chunk. The shards that they need are opened first, each of them once.

    Args:
        ranges: the ranges.
        folder: the root, which whole files are opened beneath.
        open_shard: returns an open shard, by its path. Spans of a mapped one are copied instead of read.
        max_shards: greatest number of shards to use; spans of others are declined.
        max_bytes: size of the largest range that may be read; None means no limit.
    """

    def __init__(
        self,
        ranges: ManyRanges,
        *,
        folder: _Open,
        open_shard: Callable[[str], _OpenShard],
        max_shards: int,
        max_bytes: int | None,
    ) -> None:
        self._ranges = ranges
        self._num_samples = ranges.num_samples or max(1, len(ranges.lengths))
        self._folder = folder
        self._max_bytes = (
            _MAX_BYTES if max_bytes is None else int(min(max_bytes, _MAX_BYTES))
        )  # it may be written as 1e9
        self._open: list[_OpenShard] = []  # keeps the shards open
        self._numbers = np.full(len(ranges.lengths), -1, np.int64)
        self._shards: tuple[NativeShard, ...] = ()
        if (ranges.lengths >= 0).any():
            self._open_shards(open_shard, max_shards)

    def _open_shards(self, open_shard: Callable[[str], _OpenShard], max_shards: int) -> None:
        assert NATIVE is not None
        ranges = self._ranges
        firsts = np.empty(min(max_shards, len(ranges.lengths)), np.int64)
        num_distinct = NATIVE.distinct(ranges.names, ranges.paths, self._numbers, firsts)
        shards: list[NativeShard] = [(-1, None, 0, None)] * num_distinct
        for number, place in enumerate(firsts[:num_distinct].tolist()):
            if ranges.at is not None:
                ranges.at[0] = ranges.first + place % self._num_samples  # opening may take long, or never end
            start, end = ranges.paths[place].tolist()
            try:
                shard = open_shard(ranges.names[start:end].decode("utf-8", "surrogateescape"))
            except StorageError:
                continue
            self._open.append(shard)
            shards[number] = (
                (shard.descriptor, None, 0, None)
                if shard.map is None
                else (shard.descriptor, shard.map.data, shard.map.changed_ns, shard.map.are_loaded)
            )
        self._shards = tuple(shards)

    def read(
        self,
        area: NDArray[np.uint8],
        *,
        first: int = 0,
        step_bytes: int = 0,
        max_bytes: int | None = None,
    ) -> ManyRead:
        """Read ranges into an area, as many as fit into it. Stop early after several slow reads.

        Args:
            area: uint8 [num_bytes], C-contiguous.
            first: the range to begin with.
            step_bytes: the distance between the places of two ranges in the area, for ranges of equal size; 0 places
                each range behind the previous one, on a multiple of 64 bytes.
            max_bytes: size of the largest range to read, if that is less than this reader's limit.
        """
        assert NATIVE is not None
        ranges = self._ranges
        starts, lengths = np.empty((2, len(ranges.lengths) - first), np.int64)
        num_done, num_slow, used_bytes = NATIVE.read_many(
            ranges.names,
            ranges.paths[first:],
            ranges.offsets[first:],
            ranges.lengths[first:],
            self._numbers[first:],
            self._shards,
            area,
            starts,
            lengths,
            ranges.at,
            self._folder.descriptor,
            self._max_bytes if max_bytes is None else min(self._max_bytes, max_bytes),
            step_bytes,
            SLOW_NS,
            _MAX_SLOW_READS,
            ranges.first,
            first,
            self._num_samples,
        )
        return ManyRead(starts=starts[:num_done], lengths=lengths[:num_done], num_slow=num_slow, used_bytes=used_bytes)
