"""Reads the columns of a sidecar by position, in any process and without pyarrow.

The file is read, not memory-mapped. If another process truncates a mapped file, access to the map kills this process by
SIGBUS, whereas a read is merely short. The page cache is shared either way. (Workers do map small indexes, for their
native look-ups: see `mpload.storage.mapped`.) There are two kinds of reads:

- `SidecarFile.offsets` looks up line offsets, 16 bytes per sample. The reader of the text verifies them: a line starts
  after a newline and ends with one.
- `SidecarColumn` reads whole blocks of 512 rows and compares each with its stored checksum.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SidecarError
from mpload.index.open_file import OpenFile
from mpload.units import KIB

__all__ = [
    "BATCH_ROWS",
    "DTYPES",
    "BatchOffsets",
    "SidecarColumn",
    "SidecarFile",
    "SidecarLayout",
    "check_sample_ids",
    "checks_of",
    "first_rows",
]

BATCH_ROWS: Final = 1 << 20
"""Number of rows in every record batch of a sidecar except the last."""

DTYPES: Final = MappingProxyType(
    {"offset": np.dtype(np.uint64), "label": np.dtype(np.int64), "nbytes": np.dtype(np.int64)}
)

_ROW_BYTES = 8
_CHECK_BYTES = 8  # CRC-32 as hexadecimal digits, because Arrow's metadata is text
_BLOCK_ROWS = 512  # a page of 4 KiB, which a cold read fetches anyway
_READ_ROWS = 1 << 17
_SPARE_BYTES = 2 * KIB  # per id: reading this many unneeded bytes costs about as much as another system call


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffsets:
    """File offsets of one part of every record batch."""

    first_bytes: int
    """File offset of the part that belongs to the first full record batch."""
    stride_bytes: int
    """Distance from one full record batch's part to the next one's."""
    last_bytes: int
    """File offset of the part that belongs to the last, shorter record batch. Unused if all are full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarLayout:
    """Everything that a process needs to read a sidecar without pyarrow."""

    path: Path
    file_bytes: int
    num_samples: int
    digest: str
    columns: Mapping[str, BatchOffsets]
    """Where the rows of each column are stored."""
    checks: BatchOffsets
    """Where the checksums of the blocks are stored: those of the first column, then of the second, and so on."""
    seed: int
    """Initial value of the checksums. It differs between states of the text."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def row_offsets(self, name: str, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the file offsets of the rows of `sample_ids`."""
        offsets, num_full = self.columns[name], self.num_samples // BATCH_ROWS
        batches = sample_ids >> 20
        starts = np.where(batches < num_full, offsets.first_bytes + batches * offsets.stride_bytes, offsets.last_bytes)
        rows: NDArray[np.int64] = starts + (sample_ids & (BATCH_ROWS - 1)) * _ROW_BYTES
        return rows


_REBUILD = "Delete it and open the index again, which rebuilds it"


class SidecarFile:
    """A sidecar that is open for reading.

    Memory: the rows requested, and one file descriptor. Process: may be forked, as reads share no file position.

    Raises:
        SidecarError: the file is not the one that the layout describes.
        StorageError: the file cannot be opened.
    """

    def __init__(self, layout: SidecarLayout) -> None:
        self._layout = layout
        self._file = OpenFile(layout.path)
        if self._file.stamp()[0] != layout.file_bytes:
            raise SidecarError(f"{layout.path}: was changed after the index was opened. Open the index again")
        self.columns: Mapping[str, SidecarColumn] = MappingProxyType(
            {name: SidecarColumn(self._file, layout, name) for name in layout.columns}
        )

    @property
    def descriptor(self) -> int:
        """Descriptor of the open file."""
        return self._file.descriptor

    def offsets(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets of the lines of `sample_ids`, and the offsets of the lines that follow them.

        `sample_ids` must not be empty. The last line of the index has no successor and gets its own offset instead.
        Checksums are not compared: the caller, who reads the lines, can tell whether the offsets are right.
        """
        first, last = int(sample_ids.min()), min(int(sample_ids.max()) + 1, self._layout.num_samples - 1)
        start, end = self._layout.row_offsets("offset", np.array([first, last])).tolist()
        if first >> 20 == last >> 20 and end - start <= len(sample_ids) * _SPARE_BYTES:
            rows = np.frombuffer(_read(self._file, [start], end - start + _ROW_BYTES), np.int64)
            return rows[sample_ids - first], rows[np.minimum(sample_ids + 1, last) - first]
        following = np.minimum(sample_ids + 1, self._layout.num_samples - 1)
        offsets = self._layout.row_offsets("offset", np.concatenate([sample_ids, following]))
        here, there = offsets.reshape(2, -1)
        if (there - here == _ROW_BYTES).all():
            rows = np.frombuffer(_read(self._file, here.tolist(), 2 * _ROW_BYTES), np.int64)
            return rows[::2], rows[1::2]
        rows = np.frombuffer(_read(self._file, offsets.tolist(), _ROW_BYTES), np.int64)
        return rows[: len(here)], rows[len(here) :]


class SidecarColumn:
    """A read-only column with one number per sample, made by an `Index` and read from the file on demand.

    `column[i]`, `column[a:b]`, `column[ids]` and `column[mask]` return NumPy values. `np.asarray(column)` returns the
    whole column, 8 bytes per sample. `blocks()` iterates over any number of samples in constant memory.

    Process: may be forked, or pickled and sent to any process of the same machine.

    Raises:
        SidecarError: the rows read do not match their checksum.
    """

    def __init__(self, file: OpenFile, layout: SidecarLayout, name: str, *, num_rows: int | None = None) -> None:
        self._file = file
        self._layout = layout
        self._name = name
        self.shape = (layout.num_samples if num_rows is None else num_rows,)
        self.dtype = DTYPES[name]

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the column in order, in arrays of at most 2**17 rows."""
        for start in range(0, len(self), _READ_ROWS):
            yield self._rows(start, min(start + _READ_ROWS, len(self)))

    def take(self, sample_ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of `sample_ids`, int64 [n] with values in [0, N), as a new array."""
        out: NDArray[Any] = np.empty(sample_ids.shape, self.dtype)
        order = np.argsort(sample_ids, kind="stable")
        blocks = sample_ids[order] // _BLOCK_ROWS
        seams = np.flatnonzero(np.diff(blocks)) + 1
        for positions in np.split(order, seams) if len(order) else ():
            start = int(sample_ids[positions[0]]) // _BLOCK_ROWS * _BLOCK_ROWS
            rows = self._rows(start, min(start + _BLOCK_ROWS, len(self)))
            out[positions] = rows[sample_ids[positions] - start]
        return out

    def _rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop` (exclusive), all of one record batch, as a read-only array."""
        batch = start // BATCH_ROWS * BATCH_ROWS
        batch_rows = min(BATCH_ROWS, self._layout.num_samples - batch)
        first_block = (start - batch) // _BLOCK_ROWS
        first = batch + first_block * _BLOCK_ROWS
        last = min(-(-stop // _BLOCK_ROWS) * _BLOCK_ROWS, batch + batch_rows)
        offset = self._offset_of(self._layout.columns[self._name], batch) + (first - batch) * _ROW_BYTES
        data = _read(self._file, [offset], (last - first) * _ROW_BYTES)
        number = list(self._layout.columns).index(self._name) * _num_blocks(batch_rows) + first_block
        checks = checks_of(data, first, seed=self._layout.seed)
        offset = self._offset_of(self._layout.checks, batch) + number * _CHECK_BYTES
        if _read(self._file, [offset], len(checks)) != checks:
            raise SidecarError(
                f"{self._layout.path}: is damaged, or belongs to another state of the text: column {self._name} of "
                f"samples {first} to {last - 1} does not match its checksum. {_REBUILD}"
            )
        return np.frombuffer(data, self.dtype)[start - first : stop - first]

    def _offset_of(self, part: BatchOffsets, batch: int) -> int:
        """Return the file offset of one part of the record batch that starts at row `batch`."""
        if self._layout.num_samples - batch < BATCH_ROWS:
            return part.last_bytes
        return part.first_bytes + batch // BATCH_ROWS * part.stride_bytes

    def between(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop` (exclusive) as a new array."""
        out: NDArray[Any] = np.empty(stop - start, self.dtype)
        for first in range(start // _READ_ROWS * _READ_ROWS, stop, _READ_ROWS):
            low, high = max(first, start), min(first + _READ_ROWS, stop)
            out[low - start : high - start] = self._rows(low, high)
        return out

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step, dtype=np.int64))
            return self.between(start, max(start, stop))
        ids = np.asarray(key)
        if ids.dtype == np.bool_ and ids.shape == self.shape:
            ids = np.flatnonzero(ids)
        if not ids.size:
            ids = ids.astype(np.int64)  # NumPy gives [] the dtype float64
        if ids.dtype.kind not in "iu":
            raise IndexError(f"{key!r} is not a row, slice, array of rows, or mask of {len(self)} rows")
        if ids.size and (ids.min() < -len(self) or ids.max() >= len(self)):
            raise IndexError(f"row {key} is outside [0, {len(self)})")
        ids = ids.astype(np.int64)
        ids = np.where(ids < 0, ids + len(self), ids)
        return self.take(ids.reshape(-1)).reshape(ids.shape)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(f"a column of {len(self)} rows is read from a file. Use blocks(), or allow a copy")
        return np.asarray(self[:], dtype)

    def __reduce__(self) -> tuple[object, ...]:
        return _open_column, (self._layout, self._name, len(self))

    def __repr__(self) -> str:
        return f"<SidecarColumn {self.dtype}[{len(self)}]>"


def first_rows(column: SidecarColumn, num_rows: int) -> SidecarColumn:
    """Return the column of the first samples only."""
    return SidecarColumn(column._file, column._layout, column._name, num_rows=num_rows)  # noqa: SLF001


def _open_column(layout: SidecarLayout, name: str, num_rows: int) -> SidecarColumn:
    return first_rows(SidecarFile(layout).columns[name], num_rows)


def _num_blocks(num_rows: int) -> int:
    """Return the number of blocks that `num_rows` rows of a record batch fill."""
    return -(-num_rows // _BLOCK_ROWS)


def checks_of(rows: bytes, first_row: int, *, seed: int) -> bytes:
    """Return the concatenated checksums of all blocks. A block's position affects its checksum, as does `seed`."""
    data = memoryview(rows)
    block_bytes = _BLOCK_ROWS * _ROW_BYTES
    return b"".join(
        b"%08x" % zlib.crc32(data[start : start + block_bytes], seed ^ (first_row + start // _ROW_BYTES) & 0xFFFFFFFF)
        for start in range(0, len(data), block_bytes)
    )


def check_sample_ids(sample_ids: NDArray[np.int64], num_samples: int) -> None:
    """Raise `ArgumentError` unless every id is in [0, num_samples)."""
    if sample_ids.size and (int(sample_ids.min()) < 0 or int(sample_ids.max()) >= num_samples):
        raise ArgumentError(
            f"sample_ids must be in [0, {num_samples}), got {int(sample_ids.min())} to {int(sample_ids.max())}"
        )


def _read(file: OpenFile, offsets: Sequence[int], num_bytes: int) -> bytes:
    """Return the concatenated bytes at all `offsets` in the file, `num_bytes` from each."""
    data = b"".join([file.read(offset, num_bytes) for offset in offsets])
    if len(data) != len(offsets) * num_bytes:
        raise SidecarError(f"{file.path}: was truncated while it was in use. {_REBUILD}")
    return data
