"""Refuses tables in which an image, a label or another integer is missing, or an integer is too large."""

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from mpload.errors import ArgumentError
from mpload.units import KIB, printable

__all__ = ["refuse_large_number", "refuse_missing_image", "refuse_missing_images", "refuse_missing_number"]

_CHEAP_BYTES = 64 * KIB
_BATCH_ROWS = 64  # of images, which may be large


def refuse_missing_number(values: Any, file: str, first: int, column: str) -> None:
    """Raise `ArgumentError` if one of the values is null. The arguments are those of `refuse_missing_image`."""
    if values.null_count:
        raise ArgumentError(
            f"{_place(values, file, first, column)}. Remove the row, or leave the column out: columns='image:row'"
        )


def refuse_large_number(cells: Sequence[Any], file: str, first: int, column: str, columns: str) -> None:
    """Raise `ArgumentError` if one of the cells does not fit into a signed integer of 64 bits.

    Args:
        cells: integers.
        file: the name of the table.
        first: number of the first cell's row in the table.
        column: the name of the column.
        columns: the columns of the index, with text in this one.
    """
    for row, value in enumerate(cells, first):
        if value >= 1 << 63:
            raise ArgumentError(
                f"{printable(file)}: row {row} has {value} in column {column!r}, which does not fit into a signed "
                f'integer of 64 bits. Keep it as text: --columns "{columns}", or build_index(columns=...)'
            )


def refuse_missing_image(values: Any, file: str, first: int, column: str) -> None:
    """Raise `ArgumentError` if one of the values is null.

    Args:
        values: an Arrow array.
        file: the name of the table.
        first: number of the first value's row in the table.
        column: the name of the column.
    """
    if values.null_count:
        raise ArgumentError(
            f"{_place(values, file, first, column)}. If images are given as paths of files, index these files: "
            "mpload index FOLDER, or a CSV with the paths and labels. Otherwise remove the row"
        )


def refuse_missing_images(table: pq.ParquetFile, row_group: int, file: str, first: int, image: Sequence[str]) -> None:
    """Raise `ArgumentError` if an image of a row group is missing, as far as that is known without reading images.

    The statistics of the row group say whether one is missing. Without statistics, the images of the first row group
    are read if they take up to 64 KiB in all: those of a table that has only paths take next to nothing.

    Args:
        table: the table.
        row_group: number of the row group.
        file: the name of the table.
        first: number of the row group's first row.
        image: the name of the column of images, and of its field of bytes if it is a struct.
    """
    name = ".".join(image)
    group = table.metadata.row_group(row_group)
    chunk = next((each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == name), None)
    if chunk is None:  # the file is damaged
        return
    num_missing = None if chunk.statistics is None else chunk.statistics.null_count
    is_cheap = row_group == 0 and chunk.total_uncompressed_size <= _CHEAP_BYTES
    if num_missing == 0 or (num_missing is None and not is_cheap):
        return
    for batch in table.iter_batches(_BATCH_ROWS, row_groups=[row_group], columns=[name], use_threads=False):
        values: Any = batch.column(0)
        refuse_missing_image(values.flatten()[0] if len(image) > 1 else values, file, first, image[0])
        first += len(values)


def _place(values: Any, file: str, first: int, column: str) -> str:
    row = first + values.is_null().to_pylist().index(True)
    return f"{printable(file)}: row {row} has no value in column {column!r}"
