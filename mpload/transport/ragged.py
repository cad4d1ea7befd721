"""Fields whose shape varies: one byte area per slot, with the start and shape of each sample."""

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
"""Maximum address space that a loader reserves: a quarter of a process's address space on x86-64 and ARM."""
_SAMPLES_UNDER_WAY = 1 << 14
"""Samples in flight besides four batches: 64 for each of 256 workers."""
_LIMITED_BYTES = 256 * MIB


def sample_room_bytes(*, batch_size: int, num_fields: int = 1) -> int:
    """Return the maximum size of a sample in a ragged field, so that the batches of all workers fit the address space.

    It is about 2 GiB for batches of up to a thousand samples, and 40 MiB for batches of 200,000. If `RLIMIT_AS` limits
    the address space, it is at most 256 MiB.
    """
    room_bytes = _ADDRESS_BYTES // ((_SAMPLES_UNDER_WAY + 4 * batch_size) * max(1, num_fields))
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return max(1, min(room_bytes, _LIMITED_BYTES) if is_limited else room_bytes)


class RaggedArray:
    """The values of a ragged field in one slot: `values[i]` is a view of sample `i`'s array.

    A worker writes the samples of its chunk one after another into the chunk's own part of the area, so different
    processes can write chunks at the same time. A sample that was not written has the shape (0, ..., 0).
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
        """Start writing samples `first` to `last` (exclusive), and drop their previous values."""
        self._next_bytes, self._end_bytes = first * self.field.room_bytes, last * self.field.room_bytes
        self._starts[first:last] = self._next_bytes
        self._shapes[first:last] = 0
        self._newest = -1

    def room(self, sample: int, shape: Sequence[int]) -> NDArray[Any]:
        """Return an array of this shape for sample `sample`, to be written in place. A second call replaces the first.

        Raises:
            ArgumentError: it is larger than the field's `max_sample_bytes`, or has the wrong number of dimensions.
        """
        num_bytes = math.prod(shape) * self._dtype.itemsize
        if len(shape) != self.field.num_dims:
            raise ArgumentError(f"field {self.field.name!r} has {self.field.num_dims} dimensions, got shape {shape}")
        start = int(self._starts[sample]) if sample == self._newest else self._next_bytes
        if num_bytes > self.field.max_sample_bytes or start + num_bytes > self._end_bytes:
            raise ArgumentError(
                f"field {self.field.name!r}: a sample of {format_bytes(num_bytes)} does not fit; a batch of "
                f"{len(self)} allows {format_bytes(self.field.max_sample_bytes)} for each. "
                "Make samples or batches smaller"
            )
        self._starts[sample], self._shapes[sample], self._newest = start, shape, sample
        self._next_bytes = start + round_up(num_bytes, ALIGN_BYTES)
        return self[sample]

    def put(self, sample: int, value: bytes | ArrayLike) -> None:
        """Write sample `sample` from an array of the field's dtype, or from bytes."""
        array = np.frombuffer(value, self._dtype) if isinstance(value, bytes) else np.asarray(value)
        if array.dtype != self._dtype:
            raise ArgumentError(f"field {self.field.name!r} holds {self._dtype}, got an array of {array.dtype}")
        np.copyto(self.room(sample, array.shape), array)

    def copy(self) -> "RaggedArray":
        """Return a copy with its own memory, which holds only the values."""
        sizes = self._shapes.prod(axis=1) * self._dtype.itemsize
        starts = np.cumsum(sizes) - sizes
        area = np.empty(int(sizes.sum()), np.uint8)
        for start, size, old in zip(starts.tolist(), sizes.tolist(), self._starts.tolist(), strict=True):
            area[start : start + size] = self._area[old : old + size]
        return RaggedArray(self.field, starts=starts, shapes=self._shapes.copy(), area=area)
