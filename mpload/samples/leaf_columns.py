"""Writes small samples into the arrays of a slot several at a time: one column of values for each leaf."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import FAILURES
from mpload.samples.leaves import NUMBER_TYPES, Leaf, LeafKind, as_array, class_of, leaves_of

__all__ = ["MAX_SAMPLES", "ColumnWriter", "are_small"]

MAX_SAMPLES = 256
"""Samples that are written at a time: those before them need their memory until then."""
_MAX_SAMPLE_BYTES = 16 << 10
"""Of a larger sample, what its values cost weighs more than what it costs to write it alone."""
_MAX_INT = (1 << 63) - 1
_NUMBER_DTYPES = dict(zip(NUMBER_TYPES, map(np.dtype, (np.bool_, np.int64, np.float64)), strict=True))


def are_small(template: Any) -> bool:
    """Return whether samples of this template are worth writing several at a time, and can be."""
    leaves = leaves_of(template)
    if any(leaf.kind is not LeafKind.ARRAY or leaf.is_ragged or leaf.torch_dtype for leaf in leaves):
        return False
    return sum(np.dtype((leaf.dtype, leaf.shape)).itemsize for leaf in leaves) <= _MAX_SAMPLE_BYTES


class ColumnWriter:
    """Writes samples into the arrays of a slot, for a template whose samples are small.

    Args:
        template: the template of the samples.
        arrays: the array of each leaf, by the leaf's name.
    """

    def __init__(self, template: Any, arrays: Mapping[str, Any]) -> None:
        self._template = template
        self._arrays = arrays

    def store(self, first: int, samples: Sequence[Any]) -> bool:
        """Write the samples at place `first` and those after it.

        Returns:
            Whether that was possible. If not, they must be written one by one: some of them may differ in form from the
            template, and their places may hold anything.
        """
        try:
            return all(
                _is_written(leaf, values, self._arrays[leaf.name][first : first + len(samples)])
                for leaf, values in _columns(self._template, samples)
            )
        except FAILURES:  # which one is to blame turns out when they are written one by one
            return False


class _DiffersError(Exception):
    """A sample has other containers than the template."""


def _columns(template: Any, values: Sequence[Any]) -> Iterator[tuple[Leaf, Sequence[Any]]]:
    """Yield each leaf with its values, if containers are of Python's own classes, and the same as the template's."""
    if isinstance(template, Leaf):
        yield template, values
        return
    is_dict = type(template) is dict
    if not (is_dict or type(template) is list or isinstance(template, tuple)):
        raise _DiffersError
    if not _are_all(values, class_of(template)):
        raise _DiffersError
    if is_dict:
        keys = list(template)
        if any(list(value) != keys for value in values):
            raise _DiffersError
    else:
        keys = list(range(len(template)))
        if any(len(value) != len(keys) for value in values):
            raise _DiffersError
    for key in keys:
        yield from _columns(template[key], [value[key] for value in values])


def _are_all(values: Sequence[Any], name: str) -> bool:
    """Return whether all values are of one class, which has this name."""
    return len(set(map(type, values))) == 1 and class_of(values[0]) == name


def _is_written(leaf: Leaf, values: Sequence[Any], out: NDArray[Any]) -> bool:
    """Write the values of a leaf to `out`, unless they are not all of its form; return whether they were."""
    first, kind = values[0], type(values[0])
    if leaf.is_number:
        if kind not in NUMBER_TYPES or not _are_all(values, class_of(first)) or _NUMBER_DTYPES[kind] != out.dtype:
            return False
        if kind is int and not -_MAX_INT - 1 <= min(values) <= max(values) <= _MAX_INT:
            return False
        out[...] = values
        return True
    if not _are_all(values, leaf.made_of):
        return False
    found = as_array(first, leaf.path)
    if found is None or found[1] or found[0].dtype != out.dtype or found[0].shape != leaf.shape:
        return False
    if isinstance(first, np.generic):
        out[...] = values
        return True
    if any(value.dtype != first.dtype or value.shape != first.shape for value in values):
        return False
    if kind is np.ndarray:
        np.stack(values, out=out)
        return True
    torch = sys.modules["torch"]
    if kind is not torch.Tensor or any(value.requires_grad or value.device.type != "cpu" for value in values):
        return False
    torch.stack(values, out=torch.from_numpy(out))
    return True
