"""Turns the columns of a batch's leaves into the batch: the containers of a sample, with tensors in them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.loader.collate import Collate, Flat, FlatValues, Pad, join_in_workers, join_of
from mpload.loader.tensors import as_tensor, tensors_of
from mpload.samples.joins import Join, JoinedColumn
from mpload.samples.leaves import Leaf, LeafKind, leaves_of
from mpload.samples.targets import Target

__all__ = ["batch_of_columns", "joins_of_leaves", "samples_of_columns", "tensor_of_leaf", "unstacked"]


def batch_of_columns(
    template: Mapping[str, Any],
    columns: Mapping[str, Any],
    *,
    targets: Mapping[str, Target],
    collate: Collate | None = None,
) -> dict[str, Any]:
    """Return a batch of samples that column decoders make.

    Args:
        template: The template of the samples.
        columns: The values of each leaf, by the leaf's name: see `columns_of_leaves`. Or a `JoinedColumn` of them.
        targets: What the values of each key are. Images [..., H, W, C] are shown as [..., C, H, W].
        collate: How arrays of different shapes are joined.
    """
    if isinstance(collate, Mapping) and not collate.keys() <= template.keys():
        raise ArgumentError(f"collate has keys {list(collate)}, but the keys of a sample are {list(template)}")
    batch = {}
    for key, inner in template.items():
        join = _join_of_key(collate, key, targets)
        are_images = key in targets and targets[key].shows_images
        batch[key] = _batch_of(inner, columns, are_images=are_images, join=join)
    return batch


def joins_of_leaves(
    template: Mapping[str, Any],
    fields: Mapping[str, Any],
    *,
    targets: Mapping[str, Target],
    collate: Collate,
    max_bytes: int,
) -> list[Join]:
    """Return what workers join. They get up to `max_bytes` for each array; `fields` are those of the leaves, by name.

    The other arguments are as above.
    """
    found = []
    for key, inner in template.items():
        if (join := _join_of_key(collate, key, targets)) is not None:
            found += [
                join_in_workers(join, fields[leaf.name], max_bytes=max_bytes, torch_dtype=leaf.torch_dtype)
                for leaf in leaves_of(inner)
                if leaf.varies
            ]
    return [join for join in found if join is not None]


def _join_of_key(collate: Collate | None, key: str, targets: Mapping[str, Target]) -> Pad | Flat | None:
    join = join_of(collate, key)
    is_shown = key in targets and (targets[key].shows_images or targets[key] is Target.MASK)
    return None if isinstance(join, Flat) and is_shown else join


def samples_of_columns(
    template: Mapping[str, Any], columns: Mapping[str, Any], *, targets: Mapping[str, Target]
) -> list[dict[str, Any]]:
    """Return the samples of a batch, each as if it had been made alone. The arguments are as above."""
    num_samples = len(next(iter(columns.values()), ()))
    image_keys = {key for key, target in targets.items() if target.shows_images}
    whole = {key: _unstacked(inner, columns, num_samples, key in image_keys) for key, inner in template.items()}
    return _rows(whole, num_samples)


def _rows(values: Mapping[Any, Sequence[Any]], num_samples: int) -> list[dict[Any, Any]]:
    return [{key: column[place] for key, column in values.items()} for place in range(num_samples)]


def _unstacked(template: Any, columns: Mapping[str, Any], num_samples: int, are_images: bool) -> list[Any]:
    if isinstance(template, Leaf):
        column = _shown(columns[template.name], template, are_images=are_images)
        return [*unstacked(column, is_number=template.is_number)]
    if isinstance(template, Mapping):
        inner = {key: _unstacked(each, columns, num_samples, are_images) for key, each in template.items()}
        return _rows(inner, num_samples)
    items = [_unstacked(each, columns, num_samples, are_images) for each in template]
    rows = ([item[place] for item in items] for place in range(num_samples))
    return [type(template)(*row) if hasattr(template, "_fields") else type(template)(row) for row in rows]


def unstacked(column: Any, *, is_number: bool) -> Sequence[Any]:
    """Return the values in a column of a batch: tensors, Python's numbers, or what else a list has."""
    if not isinstance(column, torch.Tensor):
        values: Sequence[Any] = column
        return values
    return column.tolist() if is_number else column.unbind()


def _batch_of(template: Any, columns: Mapping[str, Any], *, are_images: bool, join: Pad | Flat | None) -> Any:
    if isinstance(template, Leaf):
        column = columns[template.name]
        if join is None or not template.varies:
            return _shown(column, template, are_images=are_images)
        if not isinstance(column, JoinedColumn):
            column = JoinedColumn(*join.joined(column, key=template.path, torch_dtype=template.torch_dtype))
        values, offsets = _shown(column.values, template, are_images=are_images), column.offsets
        return values if offsets is None else FlatValues(values=values, offsets=torch.from_numpy(offsets))
    if isinstance(template, Mapping):
        return {key: _batch_of(inner, columns, are_images=are_images, join=join) for key, inner in template.items()}
    items = [_batch_of(inner, columns, are_images=are_images, join=join) for inner in template]
    return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)


def _shown(column: Any, leaf: Leaf, *, are_images: bool) -> Any:
    if leaf.kind is LeafKind.OBJECT:
        return column
    if leaf.kind is LeafKind.LIST:
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
