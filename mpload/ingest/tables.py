"""Arrow and Parquet files of images as sources, as written by Hugging Face. They are indexed in place.

Images are columns of bytes, or of structs with a field `bytes`. The label is the integer column that the Hugging Face
metadata declares a ClassLabel, whose names become the classes, or else one with a name such as `label`
(`mpload.ingest.table_layout`).

An uncompressed Arrow file contains its values verbatim, so their cells are spans, and reading them does not need
pyarrow. The values of a Parquet file are encoded, so their cells give the row group and the row.

All other columns are copied to the text: texts and numbers as they are, lists and structs as JSON
(`mpload.ingest.table_cells`).
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mpload.errors import ArgumentError, StorageError
from mpload.index.columns import Cell, ColumnType
from mpload.index.dialects import Header
from mpload.ingest.missing_values import (
    refuse_large_number,
    refuse_missing_image,
    refuse_missing_images,
    refuse_missing_number,
)
from mpload.ingest.rows import LeftOut, Reason, Rows, choose_columns, root_and_prefix
from mpload.ingest.table_cells import cells_of
from mpload.ingest.table_layout import Layout, texts_in
from mpload.storage.ranges import RowValue, Span
from mpload.units import printable

__all__ = ["open_arrows", "open_parquets"]

_SLICE_ROWS = 1 << 14
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_COPY = "Is it a complete copy? Copy or write it again"


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
    yield _rows(files, ColumnType.SPAN, columns, root)


@contextmanager
def open_parquets(
    files: Sequence[str], *, columns: str | None = None, root: str | os.PathLike[str] | None = None
) -> Iterator[Rows]:
    """Open Parquet files in the order given. Their images are not read, unless the statistics say that one is missing.

    Args:
        files: absolute paths.
        columns: other names for the columns, or a selection of them. Integers may be declared as text, `NAME:str`.
        root: a folder that contains all files, or a URL. Their common parent by default.

    Memory: a few thousand rows without their images.

    Raises:
        ArgumentError: there is no column of images, two columns have the same name, a file's columns differ from the
            first file's, an image or number is null, or an integer does not fit into 64 bits.
        StorageError: a file is truncated, damaged or cannot be read.
    """
    yield _rows(files, ColumnType.ROW, columns, root)


def _rows(files: Sequence[str], type_: ColumnType, columns: str | None, root: str | os.PathLike[str] | None) -> Rows:
    parent = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    base, prefix = root_and_prefix(parent, root)
    texts = texts_in(columns)
    layout = _layout(files[0], type_, texts)
    chosen, numbers = choose_columns(layout.columns, columns)
    wanted = layout.chosen(numbers)
    made = [number for number in range(len(layout.columns)) if number < len(layout.images) or number in numbers]
    images = [image for number, image in enumerate(layout.images) if number in numbers]
    places = [made.index(number) for number in numbers]
    left_out = LeftOut()
    for name in layout.unknown:
        left_out.add(Reason.NO_TEXT, name)

    def cells(file: str) -> Iterator[list[Cell]]:
        path = prefix + file[len(parent) :].lstrip("/")
        if _layout(file, type_, texts) != layout:
            raise ArgumentError(f"{printable(file)}: has other columns than {printable(files[0])}. Index it separately")
        is_parquet = type_ is ColumnType.ROW
        try:
            for row in _parquet_cells(file, path, wanted, images) if is_parquet else _arrow_cells(file, path, wanted):
                yield [row[place] for place in places]
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _broken(file, error) from error

    names = layout.names(chosen, numbers)
    label_column = Header(columns=chosen).label_column
    label = "" if label_column is None else chosen[label_column].name
    others = [name for name in names if name != label]
    notice = ""
    if label in names and others:
        notice = (
            f"column {label!r} names the classes. --classes-from NAME, or build_index(classes_from=...), chooses "
            f"another: {', '.join(map(repr, others))}"
        )
    return Rows(
        columns=chosen,
        root=base,
        cells=chain.from_iterable(map(cells, files)),
        classes=names.get(label, ()),
        names=names,
        left_out=left_out,
        notice=notice,
    )


def _layout(file: str, type_: ColumnType, texts: Collection[str]) -> Layout:
    schema = _schema(file, parquet=type_ is ColumnType.ROW)
    try:
        return Layout.of(schema, file, type_, texts)
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


def _arrow_cells(file: str, path: str, layout: Layout) -> Iterator[list[Cell]]:
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


def _parquet_cells(file: str, path: str, layout: Layout, images: Sequence[tuple[str, ...]]) -> Iterator[list[Cell]]:
    names = [".".join(image) for image in layout.images]
    others = [name for name, _ in layout.values]
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
    if not pa.types.is_dictionary(values.type):
        return _places(values, file, address, num_bytes)
    found = _places(values.dictionary, file, address, num_bytes)
    return [found[number] for number in values.indices.to_pylist()]


def _places(values: Any, file: str, address: int, num_bytes: int) -> list[tuple[int, int]]:
    """Return the offset and length in the file of each value of an array of bytes."""
    if pa.types.is_fixed_size_binary(values.type):
        data = values.buffers()[1]
        ends = (values.offset + np.arange(len(values) + 1)) * values.type.byte_width
    else:
        _, offsets, data = values.buffers()
        wide = pa.types.is_large_binary(values.type)
        ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    starts = ends.astype(np.int64) + (0 if data is None else data.address - address)
    if len(starts) and data is not None and data.size and not 0 <= starts[0] <= starts[-1] <= num_bytes:
        raise ArgumentError(
            f"{printable(file)}: is compressed, so it does not contain images verbatim. Write it without compression, "
            "or as Parquet"
        )
    return list(zip(starts[:-1].tolist(), np.diff(starts).tolist(), strict=True))


def _values(batch: pa.RecordBatch, layout: Layout, file: str, first: int) -> list[list[Cell]]:
    """Return the values of each column that is copied."""
    columns: list[list[Cell]] = []
    for name, type_ in layout.values:
        values: Any = batch.column(name)
        if type_ is ColumnType.INT:
            refuse_missing_number(values, file, first, name)
        cells = cells_of(values, type_)
        if type_ is ColumnType.INT and pa.types.is_uint64(values.type):
            refuse_large_number(cells, file, first, name, layout.declared_as_text(name))
        columns.append(cells)
    return columns
