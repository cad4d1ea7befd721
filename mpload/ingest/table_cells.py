"""The values of an Arrow column as cells of an index: texts and numbers as they are, lists and structs as JSON."""

import json
from typing import Any

import pyarrow as pa

from mpload.index.columns import Cell, ColumnType

__all__ = ["cell_type", "cells_of"]


def cell_type(kind: pa.DataType) -> ColumnType | None:
    """Return the type of an index column for values of an Arrow type; None if they cannot be written as text."""
    types = pa.types
    if types.is_integer(kind) or types.is_boolean(kind):
        return ColumnType.INT
    if types.is_floating(kind):
        return ColumnType.FLOAT
    return ColumnType.STR if _is_writable(kind) else None


def cells_of(values: "pa.Array[Any]", type_: ColumnType) -> list[Cell]:
    """Return the values of a column as cells. `type_` is what `cell_type` returned for the type of the column.

    A missing text is empty, a missing number is NaN, and a missing list is the JSON `null`. There must be no missing
    integers.
    """
    if type_ is ColumnType.STR and not _is_nested(values.type):
        return ["" if text is None else text for text in values.cast(pa.string()).to_pylist()]
    found: list[Any] = values.to_pylist()
    if type_ is ColumnType.INT:
        return found if pa.types.is_integer(values.type) else [int(value) for value in found]
    if type_ is ColumnType.FLOAT:
        return [float("nan") if value is None else value for value in found]
    return [json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str) for value in found]


def _is_writable(kind: pa.DataType) -> bool:
    types = pa.types
    if _is_nested(kind):
        inner = (
            [kind.key_type, kind.item_type]
            if types.is_map(kind)
            else [kind.field(number).type for number in range(kind.num_fields)]
        )
        # Python's times have no nanoseconds.
        return all(_is_writable(each) and getattr(each, "unit", "") != "ns" for each in inner)
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return (
        _is_text(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_nested(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_struct(kind)
        or types.is_map(kind)
    )
