"""Writes samples made of nested containers into arrays, leaf by leaf, and reads batches back out of these."""

import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.samples.leaves import Leaf, LeafKind, leaves_of, pairs, put

__all__ = ["LeafWriter", "columns_of_leaves", "local_arrays"]


class LeafWriter:
    """Writes samples into the arrays of a slot, or into those of `local_arrays`.

    Args:
        template: The template of the samples.
        arrays: The array of each leaf, by the leaf's name.
        pairing: Finds the leaf of each value: `pairs`, or `exact_pairs`.
        in_place_keys: Keys of the samples whose value is an array, or a dict of arrays, that are made in `outs`.
    """

    def __init__(
        self,
        template: Any,
        arrays: Mapping[str, Any],
        *,
        pairing: Callable[[Any, Any], Iterable[tuple[Leaf, Any]]] = pairs,
        in_place_keys: Collection[str] = (),
    ) -> None:
        self._pairing = pairing
        self._template = template
        self._arrays = [arrays[leaf.name] for leaf in leaves_of(template)]
        self._in_place = {key: template[key] for key in in_place_keys}
        self._numbers_in_place = frozenset(leaf.number for leaf in leaves_of(self._in_place))

    def outs(self, place: int) -> dict[str, Any]:
        """Return the arrays that hold the values of `in_place_keys` of the sample at `place`, by key."""
        return {key: self._outs(inner, place) for key, inner in self._in_place.items()}

    def _outs(self, template: Any, place: int) -> Any:
        if isinstance(template, Leaf):
            return self._arrays[template.number][place, ...]
        return {key: self._outs(inner, place) for key, inner in template.items()}

    def rooms(self, place: int) -> None:  # noqa: ARG002  a decoder gets the bytes of its file, wherever they are
        """Return None: no bytes are read into the arrays."""
        return

    def store(self, place: int, sample: Any) -> None:
        """Write the sample at `place`, except what is in place.

        Raises:
            ArgumentError: The sample's containers or values differ from the template.
        """
        for leaf, value in self._pairing(self._template, sample):
            if leaf.number not in self._numbers_in_place:
                put(self._arrays[leaf.number], place, leaf, value)


class _Values:
    """Stands for a `RaggedArray` in this process: holds values of any shape."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def put(self, place: int, value: bytes | NDArray[Any]) -> None:
        """Set the value at `place`, a copy of `value` as in a slot, and drop those that follow it."""
        if not isinstance(value, bytes):
            copy = np.empty(value.shape, value.dtype)
            copy[...] = value
            value = copy
        self._values[place:] = [value]

    def strings(self, kept: NDArray[np.int64] | None, *, as_text: bool) -> list[Any]:
        """Return the values, which are bytes."""
        del kept, as_text
        return self._values

    def stacked(self, kept: NDArray[np.int64] | None) -> NDArray[Any] | list[Any]:
        """Return the values, which are arrays, as one array if all have one shape."""
        del kept
        return np.stack(self._values) if len({value.shape for value in self._values}) == 1 else self._values


def local_arrays(template: Any, num_samples: int) -> dict[str, Any]:
    """Return arrays for so many samples that are made in this process, one after another."""
    return {
        leaf.name: _Values() if leaf.is_ragged else np.empty((num_samples, *leaf.shape), leaf.dtype)
        for leaf in leaves_of(template)
    }


def columns_of_leaves(
    template: Any, arrays: Mapping[str, Any], kept: NDArray[np.int64] | None, *, but: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of each leaf but some, by the leaf's name: of all samples, or of those in `kept`.

    They are an array [n, ...] if all values have one shape, otherwise a list of arrays; a list of texts, bytes or other
    objects.
    """
    columns: dict[str, Any] = {}
    for leaf in leaves_of(template):
        if leaf.name in but:
            continue
        array = arrays[leaf.name]
        if not leaf.is_ragged:
            columns[leaf.name] = array if kept is None else array[kept]
        elif leaf.kind is LeafKind.ARRAY:
            stacked = array.stacked(kept)
            columns[leaf.name] = stacked if len(stacked) else np.empty((0, *leaf.shape), leaf.dtype)
        else:
            columns[leaf.name] = _objects(leaf.kind, array.strings(kept, as_text=False))
    return columns


def _objects(kind: LeafKind, values: Sequence[bytes]) -> list[Any]:
    match kind:
        case LeafKind.TEXT:
            return [value.decode("utf-8", "surrogatepass") for value in values]
        case LeafKind.LIST | LeafKind.OBJECT:  # our own workers wrote these bytes, so it is safe to unpickle them
            return [pickle.loads(value) for value in values]  # noqa: S301
        case _:
            return list(values)
