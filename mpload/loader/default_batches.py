"""Batches as `default_collate` makes them: of samples, or of the leaves that workers wrote into a slot."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.collate import collate

from mpload.errors import FAILURES, ArgumentError, cause_of
from mpload.loader.leaf_tensors import tensor_of_leaf
from mpload.loader.sample_errors import sample_error
from mpload.samples.leaf_arrays import LeafWriter, local_arrays
from mpload.samples.leaves import NUMBER_TYPES, Leaf, LeafKind, mapped, template_of
from mpload.transport.ragged import RaggedArray

__all__ = ["batch_of_leaves", "batch_of_samples", "collate_on_cpu", "convert_on_cpu", "sample_of_leaves"]


def collate_on_cpu(samples: Any) -> Any:
    """Return what `default_collate` makes of samples, with new tensors on the CPU, whatever the default device is."""
    with torch.device("cpu"):
        return default_collate(samples)


def convert_on_cpu(sample: Any) -> Any:
    """Return what `default_convert` makes of a sample, with new tensors on the CPU."""
    with torch.device("cpu"):
        return default_convert(sample)  # type: ignore[no-untyped-call]


def batch_of_samples(samples: Sequence[Any], *, describe: Callable[[int, str], str]) -> Any:
    """Return what `default_collate` makes of samples.

    Args:
        samples: the samples, at least one.
        describe: returns the message for the sample at a place, given the cause.

    Raises:
        SampleError: they do not fit into one batch. It is also of the class that `default_collate` raises.
    """
    try:
        return collate_on_cpu(list(samples))
    except FAILURES as error:
        place, cause = _misfit(samples) or (0, f"default_collate: {cause_of(error)}")
        raise sample_error(describe(place, cause), error) from error


def _misfit(samples: Sequence[Any]) -> tuple[int, str] | None:
    """Return the place of the first sample that cannot be in a batch with those before it, and why; None if unknown."""
    place = 0
    try:
        template = template_of(samples[0])
        writer = LeafWriter(template, local_arrays(template, len(samples)))
        for place, sample in enumerate(samples):
            writer.store(place, sample)
    except (ArgumentError, OverflowError) as error:
        return place, str(error)
    return None


def batch_of_leaves(template: Any, arrays: Mapping[str, Any]) -> Any:
    """Return a batch, with the containers of a sample converted as by `default_collate`.

    Args:
        template: the template of the samples.
        arrays: the values of each leaf, by the leaf's name.
    """

    def batch_of(leaves: list[Leaf] | tuple[Leaf, ...], **_: Any) -> Any:
        (leaf,) = leaves
        array = arrays[leaf.name]
        match leaf.kind:  # for text and bytes default_collate gives a tuple inside a sequence, else a list
            case LeafKind.TEXT:
                return type(leaves)(value.decode("utf-8", "surrogatepass") for value in _strings(array))
            case LeafKind.BYTES:
                return type(leaves)(_strings(array))
            case LeafKind.NUMBER if array.dtype.names:
                return collate_on_cpu([_number(kind, bits) for kind, bits in array.tolist()])
            case LeafKind.ARRAY if isinstance(array, RaggedArray):
                return collate_on_cpu([tensor_of_leaf(value, leaf) for value in array])
        return tensor_of_leaf(array, leaf)

    return collate([template], collate_fn_map={Leaf: batch_of})


def _strings(array: Any) -> list[Any]:
    """Return the values of texts or bytes. In an empty batch, these are an empty array."""
    values: list[Any] = array.strings(None, as_text=False) if isinstance(array, RaggedArray) else []
    return values


def sample_of_leaves(template: Any, arrays: Mapping[str, Any], place: int) -> Any:
    """Return the sample at `place`. Its arrays and tensors are views. The arguments are as above."""

    def value(leaf: Leaf) -> Any:
        array = arrays[leaf.name][place]
        match leaf.kind:
            case LeafKind.TEXT:
                return array.tobytes().decode("utf-8", "surrogatepass")
            case LeafKind.BYTES:
                return array.tobytes()
            case LeafKind.NUMBER if array.dtype.names:
                return _number(*array.tolist())
        if leaf.is_number:
            return array.item()
        if leaf.made_of in {"numpy.ndarray", "numpy.memmap"}:
            return np.asarray(array)
        # Any other class of NumPy is one of its numbers, which is what an array of them has at a place.
        return array if leaf.made_of.startswith("numpy.") else tensor_of_leaf(np.asarray(array), leaf)

    return mapped(template, value)


def _number(kind: int, bits: int) -> bool | int | float:
    """Return the number that a worker stored as a type and 64 bits."""
    return float(np.int64(bits).view(np.float64)) if NUMBER_TYPES[kind] is float else NUMBER_TYPES[kind](bits)
