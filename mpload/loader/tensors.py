"""Converts the values of a sample or batch to tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["as_tensor", "tensors_of"]


def as_tensor(value: Any, *, are_images: bool, is_batch: bool = False) -> Any:
    """Return a value of a sample, or a column of a batch, as a tensor that shares its memory.

    Images [..., H, W, C] are viewed as [..., C, H, W], but those with one channel [H, W] stay. Lists are converted item
    by item. Values other than arrays are returned unchanged.

    Args:
        value: the value or column.
        are_images: whether its arrays are images.
        is_batch: whether the first axis of an array counts the samples of a batch.
    """
    if isinstance(value, list):
        if not any(issubclass(kind, list | np.ndarray) for kind in {*map(type, value)}):  # strings, nearly always
            return value
        return [as_tensor(each, are_images=are_images) for each in value]
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value if value.flags.writeable else value.copy())  # np.frombuffer: read-only
    return tensor.movedim(-1, -3) if are_images and value.ndim - is_batch >= 3 else tensor


def tensors_of(value: Any, *, are_images: bool) -> Any:
    """Return a value of a sample with its arrays as tensors, also those inside dicts, tuples and lists."""
    if isinstance(value, torch.Tensor):  # images are [..., H, W, C] inside a pipeline
        return value.movedim(-1, -3) if are_images and value.ndim >= 3 else value
    if isinstance(value, Mapping):
        return {key: tensors_of(inner, are_images=are_images) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        items = [tensors_of(inner, are_images=are_images) for inner in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return as_tensor(value, are_images=are_images)
