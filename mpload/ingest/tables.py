"""Arrow and Parquet files of images as sources, as written by Hugging Face. They are indexed in place.

Images are columns of bytes, or of structs with a field `bytes`. The label is the integer column that the Hugging Face
metadata declares a ClassLabel, whose names become the classes, or else one with a name such as `label`. An uncompressed
Arrow file contains its values verbatim, so their cells are spans, and reading them does not need pyarrow. The values of
a Parquet file are encoded, so their cells give the row group and the row.

All other columns are copied to the text: texts and numbers as they are, lists and structs as JSON
(`mpload.ingest.table_cells`).
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, Column, ColumnType
from mpload.ingest.missing_values import refuse_missing_image, refuse_missing_images, refuse_missing_number
from mpload.ingest.rows import LeftOut, Reason, Rows, choose_columns, root_and_prefix
from mpload.ingest.table_cells import cell_type, cells_of
from mpload.storage.ranges import RowValue, Span
from mpload.units import printable

__all__ = ["open_arrows", "open_parquets"]

_LABEL_NAMES = ("label", "labels", "class", "cls", "target")
_SLICE_ROWS = 1 << 14
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_COPY = "Is it a complete copy? Copy or write it again"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns of a schema are images, which one is the label, and which others are copied."""

    images: tuple[tuple[str, ...], ...]
    """The name of each image column and, if it is a struct, of its field of bytes."""
    label: str | None
    copied: tuple[tuple[str, ColumnType], ...]
    """The name and type of each other column."""
    unknown: tuple[str, ...]
    """Columns whose values cannot be written as text."""
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
        others_by_name = {
            column.name: cell_type(column.type)
            for column in schema
            if column.name != label and column.name not in {image[0] for image in images}
        }
        return cls(
            images=tuple(images),
            label=label,
            copied=tuple((name, type_) for name, type_ in others_by_name.items() if type_ is not None),
            unknown=tuple(name for name, type_ in others_by_name.items() if type_ is None),
            classes=names.get(label, ()) if label is not None else (),
        )

    def columns(self, type_: ColumnType) -> tuple[Column, ...]:
        names = ["image"] if len(self.images) == 1 else [_column_name(image[0]) for image in self.images]
        if len(set(names)) < len(names):
            names = [f"image_{number}" for number in range(len(names))]
        found = [Column(name=name, type=type_) for name in names]
        if self.label is not None:
            found.append(Column(name="label", type=ColumnType.INT))
        taken = {column.name for column in found}
        for name, kind in self.copied:
            plain = _identifier(name)
            unique = next(
                each for number in count(1) if (each := f"{plain}_{number}" if number > 1 else plain) not in taken
            )
            taken.add(unique)
            found.append(Column(name=unique, type=kind))
        return tuple(found)

    def chosen(self, numbers: list[int]) -> "_Layout":
        """Return the layout with only those copied columns that are among the columns `numbers`."""
        copied = tuple(each for number, each in enumerate(self.copied, start=self.num_fixed) if number in numbers)
        return replace(self, copied=copied)

    @property
    def num_fixed(self) -> int:
        """Number of columns of images and labels, which come first."""
        return len(self.images) + (self.label is not None)


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
    """Open Parquet files in the order given. Their images are not read, unless the statistics say that one is missing.

    Args:
        files: absolute paths.
        columns: other names for the columns, or a selection of them.
        root: a folder that contains all files, or a URL. Their common parent by default.

    Memory: a few thousand rows without their images.

    Raises:
        ArgumentError: there is no column of images, a file's columns differ from the first file's, or an image or
            number is null.
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

    found = layout.columns(type_)
    chosen, numbers = choose_columns(found, columns)
    wanted = layout.chosen(numbers)
    made = [number for number in range(len(found)) if number < layout.num_fixed or number in numbers]
    images = [image for number, image in enumerate(layout.images) if number in numbers]
    places = [made.index(number) for number in numbers]
    left_out = LeftOut()
    for name in layout.unknown:
        left_out.add(Reason.NO_TEXT, name)

    def cells(file: str) -> Iterator[list[Cell]]:
        path = prefix + file[len(parent) :].lstrip("/")
        if _layout(file, parquet=type_ is ColumnType.ROW) != layout:
            raise ArgumentError(f"{printable(file)}: has other columns than {printable(files[0])}. Index it separately")
        is_parquet = type_ is ColumnType.ROW
        try:
            for row in _parquet_cells(file, path, wanted, images) if is_parquet else _arrow_cells(file, path, wanted):
                yield [row[place] for place in places]
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _broken(file, error) from error

    return Rows(
        columns=chosen,
        root=base,
        cells=chain.from_iterable(map(cells, files)),
        classes=layout.classes,
        left_out=left_out,
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
                    values = _values(part, layout, file, first + start)
                    for row in range(part.num_rows):
                        yield [*(Span(path, *span[row]) for span in spans), *(column[row] for column in values)]
                first += batch.num_rows


def _parquet_cells(file: str, path: str, layout: _Layout, images: Sequence[tuple[str, ...]]) -> Iterator[list[Cell]]:
    names = [".".join(image) for image in layout.images]
    others = ([] if layout.label is None else [layout.label]) + [name for name, _ in layout.copied]
    with pq.ParquetFile(file) as table:
        first = 0
        for row_group in range(table.num_row_groups):
            num_rows = table.metadata.row_group(row_group).num_rows
            for image in images:
                refuse_missing_images(table, row_group, file, first, image)
            values = (
                zip(*_values(batch, layout, file, start), strict=True)
                for start, batch in _slices(table, row_group, others, first)
            )
            rows = chain.from_iterable(values) if others else repeat((), num_rows)
            for row, cells in enumerate(rows):
                yield [*(RowValue(path, row_group, row, name) for name in names), *cells]
            first += num_rows


def _slices(
    table: pq.ParquetFile, row_group: int, names: list[str], first: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the columns `names` of a row group in parts, with the number of each part's first row in the file."""
    for batch in table.iter_batches(_SLICE_ROWS, row_groups=[row_group], columns=names, use_threads=False):
        yield first, batch
        first += batch.num_rows


def _spans(
    batch: pa.RecordBatch, image: tuple[str, ...], file: str, first: int, address: int, num_bytes: int
) -> list[tuple[int, int]]:
    """Return the offset and length of each value in the file."""
    values: Any = batch.column(image[0])
    if len(image) > 1:
        values = values.flatten()[values.type.get_field_index(image[1])]
    refuse_missing_image(values, file, first, image[0])
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


def _values(batch: pa.RecordBatch, layout: _Layout, file: str, first: int) -> list[list[Cell]]:
    """Return the values of the label column, if there is one, and of each copied column."""
    columns: list[list[Cell]] = []
    if layout.label is not None:
        labels: Any = batch.column(layout.label)
        refuse_missing_number(labels, file, first, layout.label)
        columns.append(labels.to_pylist())
    for name, type_ in layout.copied:
        values = batch.column(name)
        if type_ is ColumnType.INT:
            refuse_missing_number(values, file, first, name)
        columns.append(cells_of(values, type_))
    return columns


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
    plain = _identifier(name)
    return "label_image" if plain == "label" else plain


def _identifier(name: str) -> str:
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in name)
    return f"_{plain}" if plain[:1].isdigit() else plain or "column"
