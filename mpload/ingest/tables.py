"""Arrow and Parquet files of images as sources, as written by Hugging Face. They are indexed in place.

Images are columns of bytes, or of structs with a field `bytes`. The label is the integer column that the Hugging Face
metadata declares a ClassLabel, whose names become the classes, or else one with a name such as `label`. An uncompressed
Arrow file contains its values verbatim, so their cells are spans, and reading them does not need pyarrow. The values of
a Parquet file are encoded, so their cells give the row group and the row.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.ingest.rows import Rows, rename_columns, root_and_prefix
from mpload.storage.ranges import RowValue, Span
from mpload.units import printable

__all__ = ["open_arrows", "open_parquets"]

_LABEL_NAMES = ("label", "labels", "class", "cls", "target")
_SLICE_ROWS = 1 << 14
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_COPY = "Is it a complete copy? Copy or write it again"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns of a schema are images, and which one is the label."""

    images: tuple[tuple[str, ...], ...]
    """The name of each image column and, if it is a struct, of its field of bytes."""
    label: str | None
    classes: tuple[str, ...]

    @classmethod
    def of(cls, schema: pa.Schema, file: str) -> "_Layout":
        images: list[tuple[str, ...]] = []
        for column in schema:
            if _is_bytes(column.type):
                images.append((column.name,))
            elif _has_bytes(column.type):
                images.append((column.name, "bytes"))
        if not images:
            others = ", ".join(map(repr, schema.names)) or "no columns"
            raise ArgumentError(
                f"{printable(file)}: has no column of images, but {others}. "
                "Images must be bytes, or structs with a field 'bytes'"
            )
        names = _class_names(schema)
        integers = [column.name for column in schema if pa.types.is_integer(column.type)]
        labels = sorted(
            (name not in names, _LABEL_NAMES.index(name) if name in _LABEL_NAMES else len(_LABEL_NAMES), name)
            for name in integers
            if name in names or name in _LABEL_NAMES
        )
        label = labels[0][2] if labels else None
        return cls(tuple(images), label, names.get(label, ()) if label is not None else ())

    def columns(self, type_: ColumnType) -> tuple[Column, ...]:
        names = ["image"] if len(self.images) == 1 else [_column_name(image[0]) for image in self.images]
        if len(set(names)) < len(names):
            names = [f"image_{number}" for number in range(len(names))]
        found = [Column(name=name, type=type_) for name in names]
        if self.label is not None:
            found.append(Column(name="label", type=ColumnType.INT))
        return tuple(found)


@contextmanager
def open_arrows(
    files: Sequence[str], *, columns: str | None = None, root: str | os.PathLike[str] | None = None
) -> Iterator[Rows]:
    """Open Arrow IPC files or streams in the order given. Arguments are those of `open_parquets`.

    Memory: constant: the cells of a few thousand rows. Files are memory-mapped.

    Raises:
        ArgumentError: a file is compressed, or for the reasons given at `open_parquets`.
        StorageError: a file is truncated, damaged or cannot be read.
    """
    layout = _layout(files[0], parquet=False)
    yield _rows(files, layout, ColumnType.SPAN, columns, root)


@contextmanager
def open_parquets(
    files: Sequence[str], *, columns: str | None = None, root: str | os.PathLike[str] | None = None
) -> Iterator[Rows]:
    """Open Parquet files in the order given. Only their metadata and labels are read.

    Args:
        files: absolute paths.
        columns: other names for the columns.
        root: a folder that contains all files, or a URL. Their common parent by default.

    Memory: the labels of one row group.

    Raises:
        ArgumentError: there is no column of images, a file's columns differ from the first file's, or a label is
            null.
        StorageError: a file is truncated, damaged or cannot be read.
    """
    layout = _layout(files[0], parquet=True)
    yield _rows(files, layout, ColumnType.ROW, columns, root)


def _rows(
    files: Sequence[str],
    layout: _Layout,
    type_: ColumnType,
    columns: str | None,
    root: str | os.PathLike[str] | None,
) -> Rows:
    parent = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    base, prefix = root_and_prefix(parent, root)

    def cells(file: str) -> Iterator[list[Cell]]:
        path = prefix + file[len(parent) :].lstrip("/")
        if _layout(file, parquet=type_ is ColumnType.ROW) != layout:
            raise ArgumentError(f"{printable(file)}: has other columns than {printable(files[0])}. Index it separately")
        try:
            yield from (_parquet_cells if type_ is ColumnType.ROW else _arrow_cells)(file, path, layout)
        except (pa.ArrowException, OSError) as error:
            raise _broken(file, error) from error

    return Rows(
        columns=rename_columns(layout.columns(type_), columns),
        root=base,
        cells=chain.from_iterable(map(cells, files)),
        classes=layout.classes,
    )


def _layout(file: str, *, parquet: bool) -> _Layout:
    schema = _schema(file, parquet=parquet)
    try:
        return _Layout.of(schema, file)
    except UnicodeDecodeError as error:  # the name of a column is damaged
        raise _broken(file, error) from error


def _schema(file: str, *, parquet: bool) -> pa.Schema:
    try:
        if parquet:
            return pq.read_schema(file)
        with pa.memory_map(file) as mapped, _reader(mapped) as reader:
            schema: pa.Schema = reader.schema
            return schema
    except (pa.ArrowException, OSError) as error:
        raise _broken(file, error) from error


def _broken(file: str, error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    cause = str(error).splitlines()[0] if str(error) else type(error).__name__
    return StorageError(f"{printable(file)}: cannot be read: {cause}. {_COPY}")


def _reader(mapped: pa.MemoryMappedFile) -> Any:
    start = mapped.read(6)
    mapped.seek(0)
    return pa.ipc.open_file(mapped) if start == b"ARROW1" else pa.ipc.open_stream(mapped)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(number) for number in range(reader.num_record_batches))
    return iter(reader)


def _arrow_cells(file: str, path: str, layout: _Layout) -> Iterator[list[Cell]]:
    with Path(file).open("rb") as opened:
        if opened.read(6) != b"ARROW1":
            opened.seek(-len(_END_OF_STREAM), os.SEEK_END)
            if opened.read() != _END_OF_STREAM:
                raise StorageError(f"{printable(file)}: ends without an end-of-stream marker. {_COPY}")
    with pa.memory_map(file) as mapped:
        num_bytes = mapped.size()
        address = mapped.read_buffer(1).address
        mapped.seek(0)
        with _reader(mapped) as reader:
            first = 0
            for batch in _batches(reader):
                for start in range(0, batch.num_rows, _SLICE_ROWS):
                    part = batch.slice(start, _SLICE_ROWS)
                    spans = [_spans(part, image, file, first + start, address, num_bytes) for image in layout.images]
                    labels = _labels(part, layout, file, first + start)
                    for row in range(part.num_rows):
                        cells: list[Cell] = [Span(path, *span[row]) for span in spans]
                        yield cells if labels is None else [*cells, labels[row]]
                first += batch.num_rows


def _parquet_cells(file: str, path: str, layout: _Layout) -> Iterator[list[Cell]]:
    names = [".".join(image) for image in layout.images]
    with pq.ParquetFile(file) as table:
        first = 0
        for row_group in range(table.num_row_groups):
            num_rows = table.metadata.row_group(row_group).num_rows
            labels = None
            if layout.label is not None:
                labels = _labels(
                    table.read_row_group(row_group, columns=[layout.label], use_threads=False), layout, file, first
                )
            for row in range(num_rows):
                cells: list[Cell] = [RowValue(path, row_group, row, name) for name in names]
                yield cells if labels is None else [*cells, labels[row]]
            first += num_rows


def _spans(
    batch: pa.RecordBatch, image: tuple[str, ...], file: str, first: int, address: int, num_bytes: int
) -> list[tuple[int, int]]:
    """Return the offset and length of each value in the file."""
    values: Any = batch.column(image[0])
    if len(image) > 1:
        values = values.flatten()[values.type.get_field_index(image[1])]
    _refuse_null(values, file, first, image[0])
    values.validate(full=True)
    wide = pa.types.is_large_binary(values.type)
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    starts = ends.astype(np.int64) + (0 if data is None else data.address - address)
    if len(starts) and data is not None and data.size and not 0 <= starts[0] <= starts[-1] <= num_bytes:
        raise ArgumentError(
            f"{printable(file)}: is compressed, so it does not contain images verbatim. Write it without compression, "
            "or as Parquet"
        )
    return list(zip(starts[:-1].tolist(), np.diff(starts).tolist(), strict=True))


def _labels(table: pa.RecordBatch | pa.Table, layout: _Layout, file: str, first: int) -> list[int] | None:
    if layout.label is None:
        return None
    values: Any = table.column(layout.label)
    _refuse_null(values, file, first, layout.label)
    labels: list[int] = values.to_pylist()
    return labels


def _refuse_null(values: Any, file: str, first: int, column: str) -> None:
    if values.null_count:
        row = first + values.is_null().to_pylist().index(True)
        raise ArgumentError(
            f"{printable(file)}: row {row} has no value in column {column!r}. If images are given as paths of files, "
            "index these files. Otherwise remove the row"
        )


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _has_bytes(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    at = kind.get_field_index("bytes")
    return at >= 0 and _is_bytes(kind.field(at).type)


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the class names of each column that the Hugging Face metadata declares a ClassLabel."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {
            name: feature["names"]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: tuple(names)
        for name, names in found.items()
        if isinstance(names, list) and all(isinstance(item, str) for item in names)
    }


def _column_name(name: str) -> str:
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in name)
    plain = f"_{plain}" if plain[:1].isdigit() else plain or "image"
    return "label_image" if plain == "label" else plain
