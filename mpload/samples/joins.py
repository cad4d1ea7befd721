"""Joins the arrays of a batch's samples, which differ in size, to one array: padded, or end to end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpload.transport.slots import RaggedField

__all__ = ["Join", "JoinedColumn", "flat_shape", "join_flat", "offsets_of", "pad_into", "padded_shape"]


class JoinedColumn(NamedTuple):
    """The arrays of all samples as one array."""

    values: NDArray[Any]
    """[n, ...] if they are padded; [total, ...] if they are end to end."""
    offsets: NDArray[np.int64] | None
    """int64 [n + 1]: where each sample begins and the last one ends; None if they are padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """How the last step of a batch joins the arrays in a ragged field of its slot.

    What it declines, because an argument of the user does not fit, is left to the process of the loader, which raises
    the error.
    """

    source: str
    """Name of the field."""
    into: RaggedField
    """The field of the slot that holds the joined array."""
    fill: NDArray[Any] | None
    """Fills what padded arrays do not cover. None joins arrays end to end."""

    def write(self, arrays: Mapping[str, Any], places: NDArray[np.int64]) -> None:
        """Join the arrays of the samples at some places, at least one."""
        source, into = arrays[self.source], arrays[self.into.name]
        shapes = source.shapes[places]
        into.begin(0, 1)
        shape = flat_shape(shapes) if self.fill is None else padded_shape(shapes)
        if shape is None or not into.fits(shape):
            return
        out = into.room(0, shape)
        values = [source[place] for place in places.tolist()]
        if self.fill is not None:
            pad_into(out, values, self.fill)
        else:
            join_flat(values, shape, out)

    def read(self, arrays: Mapping[str, Any], kept: NDArray[np.int64] | None) -> JoinedColumn | None:
        """Return what `write` has joined; None if it declined, or nothing is in the joined array."""
        values = arrays[self.into.name][0]
        if not len(values):
            return None
        if self.fill is not None:
            return JoinedColumn(values, None)
        lengths = arrays[self.source].shapes[:, 0]
        return JoinedColumn(values, offsets_of(lengths if kept is None else lengths[kept]))


def padded_shape(shapes: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the shape [n, ...] of padded arrays that have these shapes, int64 [n, num_dims]."""
    return (len(shapes), *shapes.max(axis=0).tolist())


def pad_into(out: NDArray[Any], arrays: Sequence[NDArray[Any]], fill: NDArray[Any]) -> None:
    """Write each array to the beginning of its row of `out`, [n, ...], and `fill` to the rest of the row."""
    for row, array in zip(out, arrays, strict=True):
        inside: tuple[slice, ...] = ()
        for length in array.shape:
            row[(*inside, slice(length, None))] = fill
            inside = (*inside, slice(length))
        row[inside] = array


def flat_shape(shapes: NDArray[np.int64]) -> tuple[int, ...] | None:
    """Return the shape [total, ...] of arrays end to end; None if they differ in another axis than the first.

    If any array has rows, those without rows may differ from it in the other axes.

    Args:
        shapes: The shapes of the arrays, int64 [n, num_dims].
    """
    with_rows = shapes[shapes[:, 0] > 0]
    compared = with_rows if len(with_rows) else shapes
    if (compared[:, 1:] != compared[0, 1:]).any():
        return None
    return (int(shapes[:, 0].sum()), *compared[0, 1:].tolist())


def join_flat(arrays: Sequence[NDArray[Any]], shape: tuple[int, ...], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return arrays end to end, in `out` if it is given. `shape` is their `flat_shape`."""
    return np.concatenate([array.reshape(len(array), *shape[1:]) for array in arrays], out=out)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where arrays of these lengths begin if they are end to end, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
