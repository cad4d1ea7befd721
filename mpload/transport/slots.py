"""The layout of a slot: the fields of a batch side by side, placed by arithmetic alone."""

import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from mpload.errors import ArgumentError
from mpload.units import MIB

__all__ = ["ALIGN_BYTES", "Field", "Part", "RaggedField", "SlotLayout", "round_up"]

ALIGN_BYTES = 64
"""Alignment of arrays in a slot: a cache line, and enough for any SIMD load."""


def round_up(num_bytes: int, step_bytes: int) -> int:
    """Return the smallest multiple of `step_bytes` that is at least `num_bytes`."""
    return -(-num_bytes // step_bytes) * step_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A value with the same shape and dtype in every sample: an array [B, *shape] in the slot."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: DTypeLike
    is_packed: bool = False
    """Whether the samples of a batch lie end to end, however small they are. Failed ones keep any value."""

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise ArgumentError(f"field {self.name!r}: sizes must not be negative, got shape {self.shape}")
        object.__setattr__(self, "dtype", _plain_dtype(self.name, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedField:
    """A value whose shape varies from sample to sample: bytes, text (as UTF-8), images of different sizes.

    Memory: a slot reserves `max_sample_bytes` of address space per sample. Memory is used only for what is written, and
    a worker writes the samples of its chunk one after another. So be generous: the limit catches corrupt samples, and
    need not be close to the average size.
    """

    name: str
    dtype: DTypeLike = "uint8"
    num_dims: int = 1
    max_sample_bytes: int = 64 * MIB
    is_input: bool = False
    """Whether the parent writes it, as part of the task; workers only read it."""
    is_whole: bool = False
    """Whether a batch has one value, at place 0, in place of one for each sample. It is written last."""
    usual_shape: tuple[int, ...] | None = None
    """A shape that most samples may have. Those that do lie end to end, so that they need not be copied to be stacked.

    None if no shape is likelier than others. One without values becomes None.
    """

    def __post_init__(self) -> None:
        if self.num_dims < 1:
            raise ArgumentError(f"field {self.name!r}: num_dims must be at least 1, got {self.num_dims}")
        if self.max_sample_bytes < 1:
            raise ArgumentError(
                f"field {self.name!r}: max_sample_bytes must be at least 1, got {self.max_sample_bytes}"
            )
        object.__setattr__(self, "dtype", _plain_dtype(self.name, self.dtype))
        if self.usual_shape is not None and not all(self.usual_shape):
            object.__setattr__(self, "usual_shape", None)

    @property
    def room_bytes(self) -> int:
        """Address space that a slot reserves for each sample that has another shape than the usual one."""
        return round_up(self.max_sample_bytes, ALIGN_BYTES)

    @property
    def usual_bytes(self) -> int:
        """Size of a sample of the usual shape; 0 if there is none."""
        return 0 if self.usual_shape is None else math.prod(self.usual_shape) * np.dtype(self.dtype).itemsize


def _plain_dtype(name: str, dtype: DTypeLike) -> np.dtype[np.generic]:
    plain = np.dtype(dtype)
    if plain.hasobject:
        raise ArgumentError(f"field {name!r}: dtype {plain} contains Python objects, which shared memory cannot hold")
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One array of a slot, at `offset_bytes` from the start of the slot."""

    offset_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def end_bytes(self) -> int:
        """Offset of the array's end from the start of the slot."""
        return self.offset_bytes + math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLayout:
    """The position of each field in a slot for at most `num_samples` samples. Slots are whole pages.

    Fields of fixed shape come first, so that they can be pinned without the address space that ragged fields reserve.
    """

    num_samples: int
    fields: tuple[Field | RaggedField, ...]
    meaning: bytes = field(default=b"", repr=False)
    """What the fields stand for. Only the work and the parent know how to read it."""
    parts: dict[str, tuple[Part, ...]] = field(init=False, repr=False, compare=False)
    """By field: its array. A ragged field has three: starts int64 [B], shapes int64 [B, num_dims], uint8 [num_bytes].

    If it is whole, B is 1. Of its bytes, the first B * room are for samples of any shape, the others for those of the
    usual shape.
    """
    fixed_bytes: int = field(init=False)
    """Size of the whole pages at the start of a slot that hold all fields of fixed shape; 0 if there are none."""
    slot_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ArgumentError(f"num_samples must be at least 1, got {self.num_samples}")
        names = [each.name for each in self.fields]
        if len(set(names)) != len(names) or not names:
            raise ArgumentError(f"a slot needs at least one field, and each name once, got {names}")
        offset = fixed_bytes = 0
        parts: dict[str, tuple[Part, ...]] = {}
        for each in sorted(self.fields, key=lambda each: isinstance(each, RaggedField)):
            placed = []
            for shape, dtype in _arrays(each, self.num_samples):
                placed.append(Part(offset_bytes=offset, shape=shape, dtype=dtype))
                offset = round_up(placed[-1].end_bytes, ALIGN_BYTES)
            parts[each.name] = tuple(placed)
            if isinstance(each, Field):
                fixed_bytes = round_up(offset, mmap.PAGESIZE)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "fixed_bytes", fixed_bytes)
        object.__setattr__(self, "slot_bytes", round_up(max(offset, 1), mmap.PAGESIZE))


def _arrays(each: Field | RaggedField, num_samples: int) -> Iterable[tuple[tuple[int, ...], np.dtype[np.generic]]]:
    if isinstance(each, Field):
        yield (num_samples, *each.shape), np.dtype(each.dtype)
    else:
        num_values = 1 if each.is_whole else num_samples
        yield (num_values,), np.dtype(np.int64)
        yield (num_values, each.num_dims), np.dtype(np.int64)
        yield (num_values * (each.room_bytes + each.usual_bytes),), np.dtype(np.uint8)
