"""Stacks samples into a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.index.columns import Column, ColumnType

__all__ = ["DTYPES", "Batch", "Sample", "columns_of_samples", "listed_samples", "stack"]

DTYPES: dict[ColumnType, type[np.number[Any]]] = {ColumnType.INT: np.int64, ColumnType.FLOAT: np.float64}
"""The dtype of each numeric column type."""

Sample = Any
"""A tuple with one value per column of the index: the decoded and transformed source, or the cell itself.

With a decoder for each column, a dict of values.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples stacked column by column.

    A column is an array [n, ...] if all its values have the same shape (images: uint8 [n, H, W, 3]; int: int64 [n];
    float: float64 [n]), otherwise a list of n values (bytes, strings, arrays of various shapes).
    """

    sample_ids: NDArray[np.int64]
    """int64 [n]: the samples in the batch, after bad ones were skipped or substituted."""
    columns: tuple[NDArray[Any] | list[Any], ...]


def columns_of_samples(samples: Sequence[Sample], columns: Sequence[Column]) -> list[NDArray[Any] | list[Any]]:
    """Return the samples stacked column by column."""
    return [
        stack([sample[number] for sample in samples], DTYPES.get(column.type)) for number, column in enumerate(columns)
    ]


def stack(values: list[Any], dtype: type[np.number[Any]] | None) -> NDArray[Any] | list[Any]:
    """Return a column's values as one array if they share a shape and dtype, otherwise return the list itself."""
    if dtype is not None:
        return np.array(values, dtype)
    alike = {(value.shape, value.dtype) if isinstance(value, np.ndarray) else None for value in values}
    return np.stack(values) if len(alike) == 1 and None not in alike else values


def listed_samples(indices: Sequence[Any]) -> str:
    """Return the first samples of a batch for a message: `samples 7, 3, 12`, or `no samples`."""
    if not len(indices):
        return "no samples"
    shown = ", ".join(f"{index!r:.20}" for index in indices[:8])
    return f"samples {shown}{', ...' if len(indices) > 8 else ''}"
