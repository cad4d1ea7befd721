"""HDF5 files as sources: row number i of every dataset is sample i. They are indexed in place.

A dataset that is stored in one piece, or in chunks of one row each, contains its rows verbatim, so their cells are
spans: reading them does not need h5py, and `RawArray(shape, dtype=...)` decodes them. One-dimensional datasets of
numbers and texts are copied to the text of the index.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpload.errors import ArgumentError, MploadError, StorageError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.ingest.rows import LeftOut, Reason, Rows, choose_columns, root_and_prefix
from mpload.storage.ranges import Span
from mpload.units import printable

__all__ = ["HDF5_MAGIC", "open_hdf5s"]

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_SLICE_ROWS = 1 << 14
_COPY = "Is it a complete copy? Copy or write it again"


@contextmanager
def open_hdf5s(
    files: Sequence[str], *, columns: str | None = None, root: str | os.PathLike[str] | None = None
) -> Iterator[Rows]:
    """Open HDF5 files in the order given.

    Args:
        files: absolute paths.
        columns: other names for the columns, or a selection of them.
        root: a folder that contains all files, or a URL. Their common parent by default.

    Memory: a few thousand numbers or texts.

    Raises:
        ArgumentError: there is no dataset of rows, the datasets of a file have different numbers of rows, rows are
            compressed, or h5py is not installed.
        StorageError: a file is damaged or cannot be read.
    """
    parent = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    base, prefix = root_and_prefix(parent, root)
    left_out = LeftOut()
    with _opened(files[0]) as datasets:
        found, names = _columns(files[0], datasets, left_out)
    chosen, numbers = choose_columns(found, columns)
    wanted = [names[number] for number in numbers]

    def cells() -> Iterator[list[Cell]]:
        for file in files:
            path = prefix + file[len(parent) :].lstrip("/")
            with _opened(file) as datasets:
                if _columns(file, datasets, LeftOut()) != (found, names):
                    raise ArgumentError(
                        f"{printable(file)}: has other datasets than {printable(files[0])}. Index it separately"
                    )
                num_rows = _num_rows(file, {name: datasets[name] for name in wanted})
                readers = [_reader(file, path, datasets[name]) for name in wanted]
                for start in range(0, num_rows, _SLICE_ROWS):
                    parts = [read(start, min(num_rows, start + _SLICE_ROWS)) for read in readers]
                    yield from map(list, zip(*parts, strict=True))

    yield Rows(columns=chosen, root=base, cells=cells(), left_out=left_out)


@contextmanager
def _opened(file: str) -> Iterator[dict[str, Any]]:
    """Open a file, and yield its datasets that have rows, by their names."""
    try:
        import h5py  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(f"{printable(file)}: needs the package h5py. Run: pip install 'mpload[hdf5]'") from error
    try:
        with h5py.File(file, "r") as opened:
            datasets: dict[str, Any] = {}

            def add(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.shape:
                    datasets[name] = item

            opened.visititems(add)
            yield datasets
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, MploadError):
            raise
        cause = printable(" ".join(str(error).split()))
        raise StorageError(f"{printable(file)}: cannot be read: {cause}. {_COPY}") from error


def _columns(file: str, datasets: dict[str, Any], left_out: LeftOut) -> tuple[tuple[Column, ...], list[str]]:
    """Return the columns, arrays first, and the name of the dataset of each."""
    types = {name: _type(dataset) for name, dataset in datasets.items()}
    for name in sorted(name for name, type_ in types.items() if type_ is None):
        left_out.add(Reason.NO_TEXT, name)
    names = [name for name, type_ in types.items() if type_ is not None]
    names.sort(key=lambda name: (types[name] is not ColumnType.SPAN, name))
    found = [Column(name=_identifier(name), type=types[name] or ColumnType.STR) for name in names]
    if not any(column.type is ColumnType.SPAN for column in found):
        raise ArgumentError(
            f"{printable(file)}: has no dataset of arrays, of two or more dimensions, but "
            f"{', '.join(map(repr, datasets)) or 'no dataset at all'}"
        )
    if len({column.name for column in found}) < len(found):
        raise ArgumentError(f"{printable(file)}: several datasets have the same name, apart from their punctuation")
    return tuple(found), names


def _type(dataset: Any) -> ColumnType | None:
    kind = dataset.dtype.kind
    if kind in "iufb" and len(dataset.shape) > 1:
        return ColumnType.SPAN
    if len(dataset.shape) > 1:
        return None
    if kind in "iub":
        return ColumnType.INT
    if kind == "f":
        return ColumnType.FLOAT
    import h5py  # noqa: PLC0415  `_opened` has imported it

    return ColumnType.STR if h5py.check_string_dtype(dataset.dtype) is not None else None


def _num_rows(file: str, datasets: dict[str, Any]) -> int:
    counts: dict[str, int] = {name: dataset.shape[0] for name, dataset in datasets.items()}
    if len(set(counts.values())) > 1:
        raise ArgumentError(
            f"{printable(file)}: its datasets have different numbers of rows: {counts}. A sample is one row of each. "
            "Select those that belong together by their names and types: columns='images:span labels:int'"
        )
    return next(iter(counts.values()))


def _reader(file: str, path: str, dataset: Any) -> Callable[[int, int], list[Cell]]:
    """Return a function that returns the cells of a range of rows."""
    type_ = _type(dataset)
    if type_ is ColumnType.STR:
        return lambda start, end: dataset.asstr()[start:end].tolist()
    if type_ is not ColumnType.SPAN:
        convert = int if type_ is ColumnType.INT else float
        return lambda start, end: [convert(value) for value in dataset[start:end].tolist()]
    row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
    num_bytes = os.stat(file).st_size  # noqa: PTH116
    if not 0 < row_bytes * dataset.shape[0] <= num_bytes:
        raise StorageError(f"{printable(file)}: {dataset.name!r} is empty, or its end is missing. {_COPY}")
    is_plain = not dataset.external and not dataset.is_virtual and not dataset.file.userblock_size
    if is_plain and dataset.chunks is None and dataset.id.get_offset() is not None:
        first = dataset.id.get_offset()
        if first + row_bytes * dataset.shape[0] > num_bytes:
            raise StorageError(f"{printable(file)}: the end of {dataset.name!r} is missing. {_COPY}")
        return lambda start, end: [Span(path, first + row * row_bytes, row_bytes) for row in range(start, end)]
    if is_plain and dataset.chunks == (1, *dataset.shape[1:]) and not dataset.id.get_create_plist().get_nfilters():

        def chunks(start: int, end: int) -> list[Cell]:
            found: list[Cell] = []
            for row in range(start, end):
                info = dataset.id.get_chunk_info_by_coord((row, *[0] * (dataset.ndim - 1)))
                if info.byte_offset is None:
                    raise ArgumentError(f"{printable(file)}: row {row} of {dataset.name!r} was never written")
                found.append(Span(path, info.byte_offset, row_bytes))
            return found

        return chunks
    raise ArgumentError(
        f"{printable(file)}: the rows of {dataset.name!r} are compressed, or stored in pieces of several rows, so the "
        "file does not contain them verbatim. Write the dataset without chunks and compression: "
        f"file.create_dataset({dataset.name!r}, data=array)"
    )


def _identifier(name: str) -> str:
    return re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII) or "_"
