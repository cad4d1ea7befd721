"""Fields whose shape varies: one byte area per slot, with the start and shape of each sample."""

import math
import resource
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpload.errors import ArgumentError
from mpload.native import native_module
from mpload.transport.slots import ALIGN_BYTES, RaggedField, round_up
from mpload.units import MIB, format_bytes

__all__ = ["RaggedArray", "batch_room_bytes", "sample_room_bytes"]


class _Native(Protocol):
    """The module `mpload.transport._ragged`."""

    def put(
        self,
        data: bytes | NDArray[Any],
        bounds: NDArray[Any],
        area: NDArray[Any],
        max_bytes: int,
        starts: NDArray[Any],
        sizes: NDArray[Any],
    ) -> int: ...

    def gather(self, area: NDArray[Any], starts: NDArray[Any], sizes: NDArray[Any], out: NDArray[Any]) -> None: ...

    def values(self, area: NDArray[Any], starts: NDArray[Any], sizes: NDArray[Any], is_text: bool) -> list[Any]: ...


_NATIVE: Final[_Native | None] = native_module("transport._ragged")

_ADDRESS_BYTES = 1 << 45
"""Maximum address space that a loader reserves: a quarter of a process's address space on x86-64 and ARM."""
_SAMPLES_UNDER_WAY = 1 << 14
"""Samples in flight besides four batches: 64 for each of 256 workers."""
_LIMITED_BYTES, _LIMITED_SAMPLES = 256 * MIB, 4
_SMALL_BYTES = 1024
"""Samples of at most this size, on average, are copied out of their slot if they differ only in length."""


def sample_room_bytes(*, batch_size: int, num_fields: int = 1) -> int:
    """Return the maximum size of a sample in a ragged field, so that the batches of all workers fit the address space.

    It is about 2 GiB for batches of up to a thousand samples, and 40 MiB for batches of 200,000. If `RLIMIT_AS` limits
    the address space, it is at most 256 MiB.
    """
    room_bytes = _ADDRESS_BYTES // ((_SAMPLES_UNDER_WAY + 4 * batch_size) * max(1, num_fields))
    return max(1, min(room_bytes, _LIMITED_BYTES) if _is_limited() else room_bytes)


def batch_room_bytes(*, batch_size: int, num_fields: int) -> int:
    """Return the maximum size of a ragged field's only value, which belongs to a whole batch.

    It is the same as for all samples of a batch together. If `RLIMIT_AS` limits the address space, it is at most 1 GiB.
    """
    num_samples = min(batch_size, _LIMITED_SAMPLES) if _is_limited() else batch_size
    return num_samples * sample_room_bytes(batch_size=batch_size, num_fields=num_fields)


def _is_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


class RaggedArray:
    """The values of a ragged field in one slot: `values[i]` is a view of sample `i`'s array.

    A worker writes the samples of its chunk one after another into the chunk's own part of the area, so different
    processes can write chunks at the same time. But a sample of the field's usual shape has a place of its own, after
    all these parts and right after that of the sample before it. A sample that was not written has the shape
    (0, ..., 0).
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
        if self._is_usual(shape):
            usual_bytes = self.field.usual_bytes
            num_samples = len(self._area) // (self.field.room_bytes + usual_bytes)
            start = num_samples * self.field.room_bytes + sample * usual_bytes
            self._starts[sample], self._shapes[sample], self._newest = start, shape, -1
            return self[sample]
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

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether `room` has room for a sample of this shape."""
        return self._is_usual(shape) or math.prod(shape) * self._dtype.itemsize <= min(
            self.field.max_sample_bytes, len(self.unused)
        )

    def _is_usual(self, shape: Sequence[int]) -> bool:
        return self.field.usual_shape is not None and tuple(shape) == self.field.usual_shape

    @property
    def shapes(self) -> NDArray[np.int64]:
        """The shape of each sample, int64 [n, num_dims]."""
        return self._shapes

    @property
    def written(self) -> list[int]:
        """The numbers of the samples that have a value of at least one byte."""
        return np.flatnonzero(self._shapes.all(axis=1)).tolist() if self._shapes.any() else []

    @property
    def area(self) -> NDArray[np.uint8]:
        """The memory of all samples, uint8 [num_bytes]."""
        return self._area

    @property
    def unused(self) -> NDArray[np.uint8]:
        """The part of `area` that the samples begun, and not yet written, may use."""
        return self._area[self._next_bytes : self._end_bytes]

    def use(self, num_bytes: int) -> int:
        """Take the first bytes of `unused`, a multiple of 64, for samples to `accept`; return where they are."""
        start = self._next_bytes
        self._next_bytes += num_bytes
        self._newest = -1
        return start

    def accept(
        self, first: int, starts: NDArray[np.int64], shapes: NDArray[np.int64], *, made: NDArray[np.bool_]
    ) -> None:
        """Set start and shape of samples that were written to `area`: of sample `first + i` where `made[i]` is true."""
        np.copyto(self._starts[first : first + len(made)], starts, where=made)
        np.copyto(self._shapes[first : first + len(made)], shapes, where=made[:, np.newaxis])

    def has_room(self, num_samples: int) -> bool:
        """Whether so many samples of the greatest size still fit."""
        return self._next_bytes + num_samples * self.field.room_bytes <= self._end_bytes

    def put_many(
        self, first: int, data: bytes | NDArray[Any], bounds: NDArray[np.int64], *, row_shape: tuple[int, ...] = ()
    ) -> NDArray[np.bool_]:
        """Write many samples, and return which were written; the others have no bounds, or are too large.

        Args:
            first: the first sample.
            data: the bytes of all samples, among others, or a C-contiguous array of the field's dtype.
            bounds: int64 [n, 2], C-contiguous: where the bytes of each sample start and end in `data`; -1 for none.
            row_shape: the shape of a sample without its first dimension.
        """
        starts, sizes = np.full((2, len(bounds)), -1, np.int64)
        if _NATIVE is not None:
            used_bytes = _NATIVE.put(data, bounds, self.unused, self.field.max_sample_bytes, starts, sizes)
            starts += self.use(used_bytes)
        made = sizes >= 0
        shapes = np.empty((len(sizes), 1 + len(row_shape)), np.int64)
        shapes[:, 0], shapes[:, 1:] = sizes // (self._dtype.itemsize * math.prod(row_shape)), row_shape
        self.accept(first, starts, shapes, made=made)
        return made

    def strings(self, kept: NDArray[np.int64] | None, *, as_text: bool) -> list[Any]:
        """Return all samples, or those in `kept`, as `bytes`, or as `str` (from UTF-8, surrogateescape)."""
        starts, sizes = self._starts, self._shapes[:, 0]
        if kept is not None:
            starts, sizes = starts[kept], sizes[kept]
        if _NATIVE is not None:
            return _NATIVE.values(self._area, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), as_text)
        parts = zip(starts.tolist(), sizes.tolist(), strict=True)
        values = [self._area[start : start + size].tobytes() for start, size in parts]
        return [value.decode("utf-8", "surrogateescape") for value in values] if as_text else values

    def memoryviews(self, kept: NDArray[np.int64] | None) -> list[memoryview]:
        """Return the bytes of all samples, or of those in `kept`, without a copy."""
        numbers = range(len(self)) if kept is None else kept.tolist()
        return [self[number].data for number in numbers]

    def stacked(self, kept: NDArray[np.int64] | None) -> NDArray[Any] | list[NDArray[Any]]:
        """Return all samples, or those in `kept`: as one array if all have one shape, else as a list.

        The array is a view of the slot if they lie end to end, otherwise a copy. The list holds views. But small
        samples that have one shape or differ only in length are copies, which the user may keep without the slot.
        """
        starts, shapes = self._starts, self._shapes
        if kept is not None:
            starts, shapes = starts[kept], shapes[kept]
        if not len(starts):
            return []
        first, sizes = shapes[0], shapes.prod(axis=1) * self._dtype.itemsize
        if (shapes == first).all():
            step, num_bytes = int(sizes[0]), int(sizes.sum())
            if num_bytes > len(starts) * _SMALL_BYTES and self._dtype.isnative and (np.diff(starts) == step).all():
                return self._view(int(starts[0]), (len(starts), *first.tolist()))
            return self._copied(starts, shapes, sizes).reshape(len(starts), *first.tolist())
        if sizes.sum() <= len(starts) * _SMALL_BYTES and (shapes[:, 1:] == first[1:]).all():
            stops = [*accumulate(shapes[:, 0].tolist(), initial=0)]
            values = self._copied(starts, shapes, sizes).reshape(stops[-1], *first[1:].tolist())
            return [values[start:stop] for start, stop in pairwise(stops)]
        return list(map(self._view, starts.tolist(), shapes.tolist()))

    def _copied(self, starts: NDArray[np.int64], shapes: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values of samples end to end, in one dimension and in this machine's byte order."""
        if _NATIVE is None or not self._dtype.isnative:
            views = map(self._view, starts.tolist(), shapes.tolist())
            return np.concatenate([view.reshape(-1) for view in views])
        values = np.empty(int(sizes.sum()) // self._dtype.itemsize, self._dtype)
        _NATIVE.gather(self._area, np.ascontiguousarray(starts), sizes, values.view(np.uint8))
        return values

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
