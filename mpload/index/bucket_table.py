"""The samples of an index, grouped by bucket: a table in a file, and the order of an epoch over it."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from mpload.errors import IndexChangedError
from mpload.index.table_files import checksum_of
from mpload.plan.order import checked_positions, round_keys
from mpload.plan.permutation import Permutation, mixed
from mpload.plan.ranges import MAX_SEED, check_range

__all__ = ["BucketChoice", "BucketTable", "facts_of", "write_table"]

_HEAD_BYTES: Final = 1 << 15
_MAX_SHORT: Final = 1 << 32


def write_table(
    file: BinaryIO,
    buckets: Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[Any]]]],
    *,
    num_samples: int,
    num_buckets: int,
    facts: Mapping[str, Any],
) -> None:
    """Write the rows of each bucket, in two passes over the samples.

    Args:
        file: an empty file.
        buckets: returns the bucket of each sample, int64 [n] block by block, and the value that it follows from.
        num_samples: number of samples.
        num_buckets: number of buckets.
        facts: what `facts_of` returns, beside the number of samples of each bucket and its largest value.

    Memory: a few blocks.
    """
    counts, largest = np.zeros(num_buckets, np.int64), [0.0] * num_buckets
    for numbers, values in buckets():
        counts += np.bincount(numbers, minlength=num_buckets)
        for bucket in np.unique(numbers).tolist():
            largest[bucket] = max(largest[bucket], values[numbers == bucket].max().item())
    dtype, first = _dtype_of(num_samples), 0
    next_rows = np.cumsum(counts) - counts
    for numbers, _ in buckets():
        rows = np.argsort(numbers, kind="stable")
        found = np.bincount(numbers, minlength=num_buckets)
        ends = np.cumsum(found)
        for bucket in np.flatnonzero(found).tolist():
            file.seek(_HEAD_BYTES + int(next_rows[bucket]) * dtype.itemsize)
            file.write((first + rows[ends[bucket] - found[bucket] : ends[bucket]]).astype(dtype).tobytes())
        next_rows += found
        first += len(numbers)
    file.flush()
    checksum = checksum_of(Path(file.name), head_bytes=_HEAD_BYTES)
    head = json.dumps({**facts, "checksum": checksum, "counts": counts.tolist(), "largest": largest}).encode()
    file.seek(0)
    file.write(head.ljust(_HEAD_BYTES))


def facts_of(path: Path, *, num_samples: int) -> dict[str, Any]:
    """Return what was passed to `write_table`, and `counts` and `largest`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no table of so many samples, or it is damaged.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        num_bytes = file.seek(0, os.SEEK_END)
    try:
        facts = dict(json.loads(head))
        counted = sum(facts["counts"])
    except (TypeError, LookupError, RecursionError) as error:
        raise ValueError("its head is damaged") from error
    if num_bytes != _HEAD_BYTES + _dtype_of(num_samples).itemsize * num_samples or counted != num_samples:
        raise ValueError("its size is wrong")
    if facts.get("checksum") != checksum_of(path, head_bytes=_HEAD_BYTES):
        raise ValueError("its rows are damaged")
    return facts


def _dtype_of(num_samples: int) -> np.dtype[Any]:
    return np.dtype("<u4" if num_samples <= _MAX_SHORT else "<u8")


@dataclass(frozen=True, kw_only=True)
class BucketTable:
    """A table in a file, mapped into memory when it is first used.

    Process: may be forked, or pickled and sent to any process of the same machine. All share the pages.
    """

    path: Path
    num_samples: int
    facts: Mapping[str, Any]
    """What `facts_of` returned."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of samples of each bucket."""
        return tuple(self.facts["counts"])

    @property
    def largest(self) -> tuple[float, ...]:
        """The largest value in each bucket; 0 if it is empty."""
        return tuple(self.facts["largest"])

    @cached_property
    def _rows(self) -> NDArray[Any]:
        again = "Open the dataset again"
        try:
            rows = np.memmap(self.path, _dtype_of(self.num_samples), mode="r", offset=_HEAD_BYTES)
            is_same = facts_of(self.path, num_samples=self.num_samples) == self.facts
        except (OSError, ValueError, LookupError) as error:
            raise IndexChangedError(f"{self.path}: the table of buckets cannot be read: {error}. {again}") from error
        if not is_same:
            raise IndexChangedError(f"{self.path}: the buckets were changed during the run. {again}")
        return rows

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row at each place, counted over all buckets, int64 [n]."""
        return self._rows[places].astype(np.int64) if len(places) else np.empty(0, np.int64)

    def bucket(self, bucket: int) -> "BucketRows":
        """Return the rows of a bucket."""
        start = sum(self.counts[:bucket])
        return BucketRows(table=self, places=range(start, start + self.counts[bucket]))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_rows"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRows(Sequence[int]):
    """The rows of one bucket. Each is looked up when it is asked for."""

    table: BucketTable
    places: range

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        return int(self.table.rows(np.array([self.places[place]]))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChoice:
    """The order in which each bucket goes through its samples: an `OrderChoice` for a `BucketPlan`."""

    spec: str
    table: BucketTable
    is_shuffled: bool
    shown: str
    """How the user wrote it."""

    def order(self, *, num_samples: int, seed: int, epoch: int) -> "_BucketOrder":
        """Return the order of an epoch; see `OrderChoice.order`."""
        check_range("num_samples", num_samples, self.table.num_samples, self.table.num_samples + 1)
        check_range("seed", seed, 0, MAX_SEED)
        check_range("epoch", epoch, 0, MAX_SEED)
        keys = round_keys("bucket", seed, epoch) if self.is_shuffled else None
        return _BucketOrder(table=self.table, keys=keys)

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketOrder:
    """A bijection: each bucket's positions are consecutive, and permuted by the bucket's own permutation."""

    table: BucketTable
    keys: tuple[int, ...] | None

    @property
    def num_samples(self) -> int:
        return self.table.num_samples

    def sample_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        unsigned = checked_positions(positions, self.num_samples)
        if self.keys is None:
            return self.table.rows(positions)
        places = np.empty_like(positions)
        counts = np.array(self.table.counts, np.int64)
        ends = np.cumsum(counts)
        buckets = np.searchsorted(ends, positions, side="right")
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            start = int(ends[bucket] - counts[bucket])
            offsets = unsigned[here] - np.uint64(start)
            tweaks = np.full(len(offsets), mixed(np.array([bucket], np.uint64))[0])
            permuted = Permutation(int(counts[bucket]), self.keys)(offsets, tweaks)
            places[here] = permuted.view(np.int64) + start
        return self.table.rows(places)
