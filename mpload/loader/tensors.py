"""Values of a sample or batch as torch shows them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

__all__ = ["as_named_tensors", "as_tensors"]


def as_tensors(columns: Iterable[Any], *, are_images: bool) -> Any:
    """Show the columns of a batch, or the values of a sample, as tensors: a tuple, or the bare one where there is one.

    Arrays become tensors of the same memory; where they are images, [..., H, W, C] is shown as [..., C, H, W]. Lists
    are gone through; other values stay as they are.
    """
    values = tuple(_as_tensors(column, are_images) for column in columns)
    return values[0] if len(values) == 1 else values


def as_named_tensors(names: Iterable[str], columns: Iterable[Any], *, are_images: bool) -> dict[str, Any]:
    """Show the columns of a batch, or the values of a sample, as tensors by the names of the columns."""
    return {name: _as_tensors(column, are_images) for name, column in zip(names, columns, strict=True)}


def _as_tensors(column: Any, are_images: bool) -> Any:
    if isinstance(column, list):
        return [_as_tensor(value, are_images) for value in column]
    return _as_tensor(column, are_images)


def _as_tensor(value: Any, are_images: bool) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value if value.flags.writeable else value.copy())  # np.frombuffer gives such arrays
    return tensor.movedim(-1, -3) if are_images and value.ndim >= 3 else tensor
