"""Measures the encoded size of each sample and stores it in the sidecar."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SampleError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.index.index import Index, Record, header_of, require_files, sidecar_of
from mpload.index.lookup import SidecarColumn, SidecarFile, SidecarLayout
from mpload.index.parts_index import PartsIndex
from mpload.index.sidecar import Progress, rewrite_sidecar
from mpload.ingest.threads import map_in_threads
from mpload.storage.ranges import Span
from mpload.storage.urls import redacted
from mpload.units import printable

__all__ = ["measure_sizes", "refuse_sizes"]

_CHUNK_SAMPLES = 1024
_KNOWN_SAMPLES = 1 << 17


def measure_sizes(
    index: Index, *, num_workers: int = 8, progress: Progress | None = None, known: SidecarColumn | None = None
) -> SidecarLayout:
    """Measure the size of each sample, and rewrite the sidecar with the sizes as column `nbytes`.

    The size of a sample is the total of all its images. The length of a span is in the index, and the size of a file
    comes from `stat`. Indexes opened afterwards have `index.nbytes`.

    Args:
        index: an open index of local files.
        num_workers: number of threads that call `stat`.
        progress: called with the number of samples measured so far.
        known: the sizes of the first samples, which are not measured again.

    Raises:
        ArgumentError: there are no files, they are at a URL, or samples are LMDB values or Parquet rows.
        SampleError: a file cannot be found.

    Memory: constant.
    """
    require_files(index, what="the measurement of sizes")
    if isinstance(index, PartsIndex):
        raise ArgumentError(f"{index.path}: lists parts. Measure the sizes of each: mpload index SOURCE --stat -o PART")
    refuse_sizes(index.columns, index.root, index.path)
    sources = [number for number, column in enumerate(index.columns) if column.type.is_source]
    root = Path(index.root)

    def measure(records: Sequence[Record]) -> NDArray[np.int64]:
        return np.array(
            [sum(_num_bytes(index, record, record.cells[number], root) for number in sources) for record in records],
            np.int64,
        )

    def rows() -> Iterator[dict[str, NDArray[Any]]]:
        columns = SidecarFile(sidecar_of(index)).columns
        start = 0 if known is None else len(known)
        for done in range(0, start, _KNOWN_SAMPLES):
            stop = min(done + _KNOWN_SAMPLES, start)
            others = {name: column[done:stop] for name, column in columns.items() if name != "nbytes"}
            yield others | {"nbytes": np.asarray(known[done:stop] if known is not None else [], np.int64)}
        chunks = (index[first : first + _CHUNK_SAMPLES] for first in range(start, len(index), _CHUNK_SAMPLES))
        for sizes in map_in_threads(measure, chunks, num_workers=num_workers):
            stop = start + len(sizes)
            others = {name: column[start:stop] for name, column in columns.items() if name != "nbytes"}
            yield others | {"nbytes": sizes}
            start = stop

    return rewrite_sidecar(
        index.path,
        header_of(index),
        rows,
        num_samples=len(index),
        digest=sidecar_of(index).digest,
        progress=progress,
    )


def refuse_sizes(columns: Sequence[Column], root: str, index: Path) -> None:
    """Raise `ArgumentError` if the sizes of samples cannot be measured: of files at a URL, LMDB values or Parquet rows.

    Args:
        columns: the columns of the index.
        root: what its paths are relative to.
        index: its path.
    """
    for column in columns:
        if column.type in {ColumnType.LMDB, ColumnType.ROW}:
            raise ArgumentError(f"{index}: sizes of {column.type} values cannot be measured. Build without sizes")
    if "://" in root and any(column.type is ColumnType.PATH for column in columns):
        raise ArgumentError(f"{index}: sizes of files at {redacted(root)} cannot be measured. Build without sizes")


def _num_bytes(index: Index, record: Record, cell: Cell, root: Path) -> int:
    if isinstance(cell, Span):
        return cell.length_bytes
    try:
        return (root / str(cell)).stat().st_size
    except OSError as error:
        raise SampleError(
            f"{index.where(record.sample_id)}: {printable(str(cell))}: {error.strerror or error}, "
            f"below {printable(str(root))}. Is #root the right folder? mpload inspect --check lists all missing files"
        ) from error
