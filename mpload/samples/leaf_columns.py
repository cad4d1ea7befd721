"""Writes small samples into the arrays of a slot several at a time: one column of values for each leaf."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import FAILURES
from mpload.samples.leaves import NUMBER_TYPES, Leaf, LeafKind, as_array, class_of, leaves_of

__all__ = ["ColumnWriter", "are_small"]

_MAX_SAMPLES = 256
"""Samples that are written at a time, at most. They stay in memory until then."""
_MAX_SAMPLE_BYTES = 16 << 10
"""To write larger samples together saves little: most of the time is needed to copy their values."""
_NUM_WATCHED = 8
"""First samples that are written one by one, to see whether the dataset uses its memory again for each."""
_MAX_INT = (1 << 63) - 1
_NUMBER_DTYPES = dict(zip(NUMBER_TYPES, map(np.dtype, (np.bool_, np.int64, np.float64)), strict=True))
_KINDS = {kind: number for number, kind in enumerate(NUMBER_TYPES)}


def are_small(template: Any) -> bool:
    """Return whether samples of this template can be written several at a time, and whether that may be faster.

    The sizes of texts and bytes are unknown, so these do not count.
    """
    leaves = leaves_of(template)
    if any(leaf.varies or leaf.torch_dtype or leaf.kind in {LeafKind.LIST, LeafKind.OBJECT} for leaf in leaves):
        return False
    return sum(np.dtype((leaf.dtype, leaf.shape)).itemsize for leaf in leaves) <= _MAX_SAMPLE_BYTES


class ColumnWriter:
    """Writes samples into the arrays of slots, for a template whose samples are small.

    Some datasets return the same array again and again, with other values each time. Then each sample must be written
    before the next one is made. So the first samples are written alone, while those before them are kept: if two of
    them lie in the same memory, all are written alone.

    Args:
        template: the template of the samples.
    """

    def __init__(self, template: Any) -> None:
        self._template = template
        self._has_texts = any(leaf.is_ragged for leaf in leaves_of(template))
        self._num_allowed = 1 if self._has_texts else _MAX_SAMPLES
        """Grows as long as texts are short."""
        self._uses_memory_again: bool | None = None
        """Whether the dataset does; None while the first samples are watched."""
        self._watched: list[Any] = []
        self._addresses: set[int] = set()
        """Where these lie."""

    @property
    def num_at_once(self) -> int:
        """Samples to write next."""
        return self._num_allowed if self._uses_memory_again is False else 1

    def store(self, arrays: Mapping[str, Any], first: int, samples: Sequence[Any]) -> bool:
        """Write the samples at place `first` and those after it.

        Args:
            arrays: the array of each leaf, by the leaf's name.
            first: the place of the first sample.
            samples: one sample or more.

        Returns:
            Whether that was possible. If not, they must be written one by one: some of them may differ in form from the
            template, and their places may hold anything.
        """
        try:
            if self._uses_memory_again is None:
                self._watch(samples[0])
            texts: list[tuple[Any, list[bytes]]] = []
            for leaf, values in _columns(self._template, samples):
                if leaf.is_ragged:
                    if not _are_all(values, leaf.made_of):
                        return False
                    texts.append((arrays[leaf.name], _encoded(leaf, values)))
                elif not _is_written(leaf, values, arrays[leaf.name][first : first + len(samples)]):
                    return False
            # What is written to a ragged field uses its room up, so they come when all else has been written.
            return not self._has_texts or self._are_put(first, len(samples), texts)
        except FAILURES:  # which one is to blame turns out when they are written one by one
            return False

    def _watch(self, sample: Any) -> None:
        """Compare one of the first samples with those before it."""
        addresses = set(_addresses(sample))
        if addresses & self._addresses:
            self._uses_memory_again = True
        else:
            self._addresses |= addresses
            self._watched.append(sample)  # else its memory would be free for the next one
            if len(self._watched) < _NUM_WATCHED:
                return
            self._uses_memory_again = False
        self._watched.clear()
        self._addresses.clear()

    def _are_put(self, first: int, num_samples: int, texts: Sequence[tuple[Any, list[bytes]]]) -> bool:
        """Write texts and bytes to their ragged fields. Return whether all had room."""
        stops = [[*accumulate(map(len, values), initial=0)] for _, values in texts]
        mean_bytes = sum(each[-1] for each in stops) // num_samples
        num_in_budget = _MAX_SAMPLES * _MAX_SAMPLE_BYTES // (mean_bytes + 1)
        self._num_allowed = max(1, min(2 * self._num_allowed, _MAX_SAMPLES, num_in_budget))
        return all(
            array.put_many(first, b"".join(values), np.array([ends[:-1], ends[1:]]).T.copy()).all()
            for (array, values), ends in zip(texts, stops, strict=True)
        )


def _addresses(sample: Any) -> Iterator[int]:
    """Yield the address of each container and array in a sample that can be changed."""
    torch = sys.modules.get("torch")
    if isinstance(sample, dict | list | tuple):
        if not isinstance(sample, tuple):
            yield id(sample)
        for value in sample.values() if isinstance(sample, dict) else sample:
            yield from _addresses(value)
    elif type(sample) is np.ndarray and sample.size:
        yield sample.__array_interface__["data"][0]
    elif torch is not None and type(sample) is torch.Tensor and sample.numel():
        yield sample.data_ptr()


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


def _encoded(leaf: Leaf, values: Sequence[Any]) -> list[bytes]:
    return [value.encode("utf-8", "surrogatepass") for value in values] if leaf.kind is LeafKind.TEXT else [*values]


def _is_written(leaf: Leaf, values: Sequence[Any], out: NDArray[Any]) -> bool:
    """Write the values of a leaf to `out`, unless they are not all of its form; return whether they were."""
    first, kind = values[0], type(values[0])
    if leaf.kind is LeafKind.NUMBER:
        kinds = np.array([_KINDS[type(value)] for value in values])
        ints = np.array([0 if type(value) is float else value for value in values], np.int64)
        floats = np.array([value if type(value) is float else 0.0 for value in values])
        out["kind"], out["bits"] = kinds, np.where(kinds == _KINDS[float], floats.view(np.int64), ints)
        return True
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
