"""Columns of a sidecar as NumPy views of its map, in any process and without pyarrow."""

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SidecarError

__all__ = ["BATCH_ROWS", "ROW_BYTES", "ColumnPlace", "MappedColumn", "SidecarLayout", "SidecarMap", "check_sample_ids"]

BATCH_ROWS = 1 << 20
"""Rows of every record batch of a sidecar but the last."""

ROW_BYTES = 8
"""Of a row, in every column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlace:
    """Where a column's rows lie in the sidecar file."""

    dtype: str
    first_bytes: int
    """Offset of the first record batch's rows."""
    stride_bytes: int
    """From one full record batch's rows to the next one's."""
    last_bytes: int
    """Offset of the last, shorter record batch's rows; unused where all are full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarLayout:
    """What a process needs to map a sidecar: found once with pyarrow, then passed on as integers."""

    path: Path
    file_bytes: int
    num_samples: int
    digest: str
    columns: Mapping[str, ColumnPlace]

    def __post_init__(self) -> None:
        full, rest = divmod(self.num_samples, BATCH_ROWS)
        for name, place in self.columns.items():
            ends = [place.first_bytes + (full - 1) * place.stride_bytes + BATCH_ROWS * ROW_BYTES] if full else []
            ends += [place.last_bytes + rest * ROW_BYTES] if rest else []
            starts = [place.first_bytes] * bool(full) + [place.last_bytes] * bool(rest)
            if any(end > self.file_bytes for end in ends) or any(start < 0 or start % ROW_BYTES for start in starts):
                raise SidecarError(f"{self.path}: column {name!r} does not lie inside the file")

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


class MappedColumn:
    """A read-only column of one number a sample, in the page cache: array-like, never copied as a whole.

    `column[i]`, `column[a:b]` and `column[ids]` give NumPy values; `np.asarray(column)` is a view while the index has
    at most 2**20 samples, and a copy (8 bytes a sample) beyond; `blocks()` walks any number of them without one.

    Memory: page cache only, shared by all processes of the machine.
    """

    def __init__(self, *, full: NDArray[Any], last: NDArray[Any]) -> None:
        self._full = full  # [record batches, BATCH_ROWS]
        self._last = last
        self._num_full = full.size
        self.shape = (full.size + last.size,)
        self.dtype = last.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the column in views of at most 2**20 rows, in order."""
        yield from self._full
        if self._last.size:
            yield self._last

    def take(self, sample_ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of `sample_ids`, each in [0, N), as a new array."""
        late = sample_ids >= self._num_full
        if late.all():
            return self._last[sample_ids - self._num_full]
        out: NDArray[Any] = np.empty(sample_ids.shape, self.dtype)
        out[late] = self._last[sample_ids[late] - self._num_full]
        early = sample_ids[~late]
        out[~late] = self._full[early >> 20, early & (BATCH_ROWS - 1)]
        return out

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            batch = start >> 20
            if step == 1 and start < stop and batch == (stop - 1) >> 20:
                rows = self._last if start >= self._num_full else self._full[batch]
                return rows[start - (batch << 20) : stop - (batch << 20)]
            return self.take(np.arange(start, stop, step, dtype=np.int64))
        ids = np.asarray(key)
        if ids.dtype == np.bool_:
            ids = np.flatnonzero(ids)
        if ids.size and (ids.min() < -len(self) or ids.max() >= len(self)):
            raise IndexError(f"row {key} is outside [0, {len(self)})")
        ids = np.where(ids < 0, ids + len(self), ids).astype(np.int64)
        return self.take(ids.reshape(-1)).reshape(ids.shape)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        blocks = list(self.blocks())
        if len(blocks) == 1:
            whole: NDArray[Any] = np.array(blocks[0], dtype=dtype, copy=copy)
            return whole
        if copy is False:
            raise ValueError(
                f"a column of {len(self)} rows lies in {len(blocks)} pieces: use blocks(), or allow a copy"
            )
        return np.asarray(np.concatenate(blocks), dtype)

    def __repr__(self) -> str:
        return f"<MappedColumn {self.dtype}[{len(self)}]>"


class SidecarMap:
    """A sidecar file mapped read-only.

    The pages of a map that one process alone has touched count as that process's private memory, though the kernel may
    drop them at will. So that USS shows what it should, `forget()` unmaps them; they stay in the page cache. (Counting
    what was touched is no use: one fault maps as much as lies together in the page cache, which may be megabytes.)
    """

    def __init__(self, layout: SidecarLayout) -> None:
        with layout.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != layout.file_bytes:
                raise SidecarError(f"{layout.path}: is not the sidecar that was opened. Open the index again")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        columns = {name: self._column(place, layout.num_samples) for name, place in layout.columns.items()}
        self.columns: Mapping[str, MappedColumn] = MappingProxyType(columns)

    def _column(self, place: ColumnPlace, num_samples: int) -> MappedColumn:
        num_full, rest = divmod(num_samples, BATCH_ROWS)
        dtype = np.dtype(place.dtype)
        full = np.ndarray(
            (num_full, BATCH_ROWS),
            dtype,
            buffer=self._map,
            offset=place.first_bytes if num_full else 0,
            strides=(place.stride_bytes, ROW_BYTES),
        )
        last = np.ndarray((rest,), dtype, buffer=self._map, offset=place.last_bytes if rest else 0)
        return MappedColumn(full=full, last=last)

    def forget(self) -> None:
        """Unmap the pages that were touched so far; views stay valid and map them again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def check_sample_ids(sample_ids: NDArray[np.int64], num_samples: int) -> None:
    """Raise `ArgumentError` unless every id is in [0, num_samples)."""
    if sample_ids.size and (int(sample_ids.min()) < 0 or int(sample_ids.max()) >= num_samples):
        raise ArgumentError(
            f"sample_ids must be in [0, {num_samples}), got {int(sample_ids.min())} to {int(sample_ids.max())}"
        )
