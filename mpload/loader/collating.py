"""Turns the columns of a batch's leaves into the batch: the containers of a sample, with tensors in them."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.loader.tensors import as_tensor, tensors_of
from mpload.samples.leaves import Leaf, LeafKind

__all__ = ["batch_of_columns", "tensor_of_leaf"]


def batch_of_columns(
    template: Mapping[str, Any], columns: Mapping[str, Any], *, image_keys: Collection[str]
) -> dict[str, Any]:
    """Return a batch of samples that column decoders make.

    Args:
        template: The template of the samples.
        columns: The values of each leaf, by the leaf's name: see `columns_of_leaves`.
        image_keys: Keys whose arrays of three or more dimensions [..., H, W, C] are shown as [..., C, H, W].
    """
    return {key: _batch_of(inner, columns, are_images=key in image_keys) for key, inner in template.items()}


def _batch_of(template: Any, columns: Mapping[str, Any], *, are_images: bool) -> Any:
    if isinstance(template, Leaf):
        return _shown(columns[template.name], template, are_images=are_images)
    if isinstance(template, Mapping):
        return {key: _batch_of(inner, columns, are_images=are_images) for key, inner in template.items()}
    items = [_batch_of(inner, columns, are_images=are_images) for inner in template]
    return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)


def _shown(column: Any, leaf: Leaf, *, are_images: bool) -> Any:
    if leaf.kind is LeafKind.OBJECT:
        return [tensors_of(value, are_images=are_images) for value in column]
    are_images = are_images and len(leaf.shape) >= 3  # not an array [H, W] of each sample
    if not leaf.torch_dtype:
        return as_tensor(column, are_images=are_images)
    if isinstance(column, list):
        return [_shown(value, leaf, are_images=are_images) for value in column]
    tensor = tensor_of_leaf(column, leaf)
    return tensor.movedim(-1, -3) if are_images else tensor


def tensor_of_leaf(array: NDArray[Any], leaf: Leaf) -> torch.Tensor:
    """Return the values of a leaf as a tensor of the leaf's dtype, which NumPy may lack."""
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, leaf.torch_dtype)) if leaf.torch_dtype else tensor
