"""The size of each sample's encoded bytes, measured and kept in the sidecar."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SampleError
from mpload.index.columns import Cell, ColumnType
from mpload.index.index import Index, Record, header_of, sidecar_of
from mpload.index.lookup import SidecarFile, SidecarLayout
from mpload.index.sidecar import Progress, rewrite_sidecar
from mpload.ingest.rows import shown
from mpload.ingest.threads import map_in_threads
from mpload.storage.ranges import Span

__all__ = ["measure_sizes"]

_CHUNK_SAMPLES = 1024


def measure_sizes(index: Index, *, num_workers: int = 8, progress: Progress | None = None) -> SidecarLayout:
    """Measure each sample's bytes, of all its images together, and publish a sidecar that holds them as `nbytes`.

    A span says its length, a file is asked for its size. An index that is opened afterwards has `index.nbytes`.

    Args:
        index: an open index over local files.
        num_workers: threads that ask for sizes.
        progress: told the number of samples done.

    Raises:
        ArgumentError: the index lies at a URL or in LMDB.
        SampleError: a file cannot be found.

    Memory: constant.
    """
    for column in index.columns:
        if column.type in {ColumnType.LMDB, ColumnType.ROW}:
            raise ArgumentError(f"{index.path}: sizes of {column.type} values are not measured. Build without sizes")
    if "://" in index.root and any(column.type is ColumnType.PATH for column in index.columns):
        raise ArgumentError(f"{index.path}: sizes of files at {index.root} are not measured. Build without sizes")
    sources = [number for number, column in enumerate(index.columns) if column.type.is_source]
    root = Path(index.root)

    def measure(records: Sequence[Record]) -> NDArray[np.int64]:
        return np.array(
            [sum(_num_bytes(index, record, record.cells[number], root) for number in sources) for record in records],
            np.int64,
        )

    def rows() -> Iterator[dict[str, NDArray[Any]]]:
        columns = SidecarFile(sidecar_of(index)).columns
        chunks = (index[start : start + _CHUNK_SAMPLES] for start in range(0, len(index), _CHUNK_SAMPLES))
        start = 0
        for sizes in map_in_threads(measure, chunks, num_workers=num_workers):
            stop = start + len(sizes)
            known = {name: column[start:stop] for name, column in columns.items() if name != "nbytes"}
            yield known | {"nbytes": sizes}
            start = stop

    return rewrite_sidecar(
        index.path,
        header_of(index),
        rows(),
        num_samples=len(index),
        digest=sidecar_of(index).digest,
        progress=progress,
    )


def _num_bytes(index: Index, record: Record, cell: Cell, root: Path) -> int:
    if isinstance(cell, Span):
        return cell.length_bytes
    try:
        return (root / str(cell)).stat().st_size
    except OSError as error:
        raise SampleError(
            f"{index.where(record.sample_id)}: {shown(str(cell))}: {error.strerror or error}, "
            f"below {shown(str(root))}. Is #root the right folder? mpload inspect --check lists all that are missing"
        ) from error
