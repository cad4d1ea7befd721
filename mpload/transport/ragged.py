"""Fields whose shape varies: one byte area a slot, with where each sample starts and what shape it has."""

import math
import resource
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpload.errors import ArgumentError
from mpload.transport.slots import ALIGN_BYTES, RaggedField, round_up
from mpload.units import MIB, format_bytes

__all__ = ["RaggedArray", "sample_room_bytes"]

_ADDRESS_BYTES = 1 << 45
"""Address space that a loader reserves at most: a quarter of what a process has on x86-64 and ARM."""
_SAMPLES_UNDER_WAY = 1 << 14
"""Beside four batches: 64 for each of 256 workers."""
_LIMITED_BYTES = 256 * MIB


def sample_room_bytes(*, batch_size: int, num_fields: int = 1) -> int:
    """Return how large samples of ragged fields may be: as large as batches of all workers fit the address space.

    Some 2 GiB in batches of up to a thousand, 40 MiB in batches of 200,000. Where `RLIMIT_AS` limits the address space,
    256 MiB at most.
    """
    room_bytes = _ADDRESS_BYTES // ((_SAMPLES_UNDER_WAY + 4 * batch_size) * max(1, num_fields))
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return max(1, min(room_bytes, _LIMITED_BYTES) if is_limited else room_bytes)


class RaggedArray:
    """The values of a ragged field in one slot: `values[i]` is a view of sample `i`'s array.

    A worker writes samples of its chunk one behind the other into the chunk's own part of the area, so chunks may be
    written at once by different processes. A sample that was not written has the shape (0, ..., 0).
    """

    def __init__(
        self, field: RaggedField, *, starts: NDArray[np.int64], shapes: NDArray[np.int64], area: NDArray[np.uint8]
    ) -> None:
        self.field = field
        self._dtype = np.dtype(field.dtype)
        self._starts = starts
        self._shapes = shapes
        self._area = area
        self._next_bytes = 0
        self._end_bytes = 0
        self._newest = -1

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, sample: int) -> NDArray[Any]:
        return self._view(int(self._starts[sample]), self._shapes[sample].tolist())

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return map(self._view, self._starts.tolist(), self._shapes.tolist())

    def _view(self, start: int, shape: Sequence[int]) -> NDArray[Any]:
        return np.ndarray(shape, self._dtype, self._area, start)

    def begin(self, first: int, last: int) -> None:
        """Start writing samples `first` to `last` (exclusive); what they held is forgotten."""
        self._next_bytes, self._end_bytes = first * self.field.room_bytes, last * self.field.room_bytes
        self._starts[first:last] = self._next_bytes
        self._shapes[first:last] = 0
        self._newest = -1

    def room(self, sample: int, shape: Sequence[int]) -> NDArray[Any]:
        """Return sample `sample`'s array, of this shape, to be written in place; asked again, it starts anew.

        Raises:
            ArgumentError: it is larger than the field's `max_sample_bytes`, or has another number of dimensions.
        """
        num_bytes = math.prod(shape) * self._dtype.itemsize
        if len(shape) != self.field.num_dims:
            raise ArgumentError(f"field {self.field.name!r} has {self.field.num_dims} dimensions, got shape {shape}")
        start = int(self._starts[sample]) if sample == self._newest else self._next_bytes
        if num_bytes > self.field.max_sample_bytes or start + num_bytes > self._end_bytes:
            raise ArgumentError(
                f"field {self.field.name!r}: a sample of {format_bytes(num_bytes)} does not fit; a batch of "
                f"{len(self)} keeps {format_bytes(self.field.max_sample_bytes)} for each. "
                "Make samples or batches smaller"
            )
        self._starts[sample], self._shapes[sample], self._newest = start, shape, sample
        self._next_bytes = start + round_up(num_bytes, ALIGN_BYTES)
        return self[sample]

    def put(self, sample: int, value: bytes | ArrayLike) -> None:
        """Write sample `sample`: an array of the field's dtype, or bytes."""
        array = np.frombuffer(value, self._dtype) if isinstance(value, bytes) else np.asarray(value)
        if array.dtype != self._dtype:
            raise ArgumentError(f"field {self.field.name!r} holds {self._dtype}, got an array of {array.dtype}")
        np.copyto(self.room(sample, array.shape), array)

    def copy(self) -> "RaggedArray":
        """Return the same values in memory of their own, no larger than they need."""
        sizes = self._shapes.prod(axis=1) * self._dtype.itemsize
        starts = np.cumsum(sizes) - sizes
        area = np.empty(int(sizes.sum()), np.uint8)
        for start, size, old in zip(starts.tolist(), sizes.tolist(), self._starts.tolist(), strict=True):
            area[start : start + size] = self._area[old : old + size]
        return RaggedArray(self.field, starts=starts, shapes=self._shapes.copy(), area=area)
