"""Batches as trees of values, and the memory of their tensors."""

import dataclasses
import math
import weakref
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = [
    "CHANNELS_LAST",
    "Allotment",
    "Arena",
    "BatchMemory",
    "TensorSpec",
    "is_plain",
    "map_leaves",
    "map_tensors",
    "tensors_of",
]

_ALIGN_BYTES = 256
"""Alignment of tensors: that of accelerator allocators, on which wide loads rely."""
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
"""Types that contain no tensors. Batches contain many such values, so they are skipped first."""
CHANNELS_LAST = (0, 2, 3, 1)
"""`TensorSpec.order` of images in `channels_last`."""
_CARRIED_OF_PACKED = "data", "sorted_indices", "unsorted_indices"


def map_tensors(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Return `batch` with each tensor replaced by `function(tensor)`, in a fixed order; see `map_leaves`."""
    return map_leaves(batch, function, is_leaf=lambda value: isinstance(value, torch.Tensor))


def map_leaves(batch: Any, function: Callable[[Any], Any], *, is_leaf: Callable[[Any], bool]) -> Any:
    """Return `batch` with each leaf replaced by `function(leaf)`.

    Tuples, named tuples, lists, mappings and dataclasses are traversed recursively. Other values stay unchanged.
    Subclasses of dict and list keep their class and extra attributes, like BatchEncoding of transformers. Dataclasses
    are copied without calling `__init__` or `__post_init__` again. A `PackedSequence` keeps its `batch_sizes`, which
    torch requires on the host.
    """
    if type(batch) in _PLAIN:
        return batch
    if is_leaf(batch):
        return function(batch)
    if isinstance(batch, torch.Tensor):
        return batch
    # Not a recursive closure: its reference cycle would keep `function`, and its tensors, until garbage collection.
    mapped = partial(map_leaves, function=function, is_leaf=is_leaf)
    if type(batch) is tuple:  # the most frequent container, before slower checks
        return tuple(map(mapped, batch))
    if isinstance(batch, dict | UserDict):
        mapping = copy(batch)
        for key, value in batch.items():
            mapping[key] = mapped(value)  # not `update`, which adds in a Counter
        return mapping
    if isinstance(batch, Mapping):
        return {key: mapped(value) for key, value in batch.items()}
    if isinstance(batch, list):
        items = copy(batch)
        items[:] = map(mapped, batch)
        return items
    if isinstance(batch, PackedSequence):
        return batch._replace(**{name: mapped(getattr(batch, name)) for name in _CARRIED_OF_PACKED})
    if isinstance(batch, tuple):
        return type(batch)(*map(mapped, batch)) if hasattr(batch, "_fields") else tuple(map(mapped, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        copied = object.__new__(type(batch))  # `copy` fails if a field has no value
        if hasattr(batch, "__dict__"):
            vars(copied).update(vars(batch))
        for name, value in _values_of(batch).items():
            object.__setattr__(copied, name, mapped(value))  # works for frozen ones too
        return copied
    return batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, in the same order as `map_tensors`."""
    if type(batch) in _PLAIN:
        return []
    if isinstance(batch, torch.Tensor):
        return [batch]
    values: Iterable[Any]
    if type(batch) is tuple:
        values = batch
    elif isinstance(batch, Mapping):
        values = batch.values()
    elif isinstance(batch, PackedSequence):
        values = [getattr(batch, name) for name in _CARRIED_OF_PACKED]
    elif isinstance(batch, list | tuple):
        values = batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        values = _values_of(batch).values()
    else:
        return []
    return [tensor for value in values for tensor in tensors_of(value)]


def _values_of(batch: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that have a value."""
    return {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch) if hasattr(batch, each.name)}


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense and no subclass: fully described by shape, dtype and values."""
    is_dense = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    return is_dense and type(tensor) in {torch.Tensor, torch.nn.Parameter}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape, dtype and memory order of a dense tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    """The dimensions, from the outermost in memory to the innermost: see `CHANNELS_LAST`."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        """Return the spec of `tensor`, or of a contiguous copy if there are gaps in its memory.

        The copy to the device is then one transfer. A change of order would be made on the host first, and slowly.
        """
        order = tuple(range(tensor.ndim))
        if tensor.is_contiguous():
            pass
        elif tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            order = CHANNELS_LAST
        else:
            by_stride = tuple(sorted(order, key=tensor.stride, reverse=True))
            order = by_stride if tensor.permute(by_stride).is_contiguous() else order
        return cls(shape=tuple(tensor.shape), dtype=tensor.dtype, order=order)

    @property
    def num_bytes(self) -> int:
        """Size of the values in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """For each dimension, the distance in memory from one index to the next, in values."""
        strides, distance = [1] * len(self.shape), 1
        for dim in reversed(self.order):
            strides[dim] = distance
            distance *= max(self.shape[dim], 1)
        return tuple(strides)

    def over(self, storage: torch.UntypedStorage, start: int) -> torch.Tensor:
        """Return a tensor of this spec over the memory of `storage` from byte `start`, a multiple of the item size."""
        values = torch.empty(0, dtype=self.dtype, device=storage.device)
        return values.set_(storage, start // self.dtype.itemsize, self.shape, self.strides)

    def empty(self, device: torch.device) -> torch.Tensor:
        """Return an uninitialised tensor of this spec in new memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)


class BatchMemory(Protocol):
    """Memory for the tensors of one batch at a time."""

    @property
    def num_bytes(self) -> int:
        """Memory in use."""

    @property
    def is_held(self) -> bool:
        """Whether the tensors of the last `cut` are still referenced."""

    def replace(self) -> None:
        """Leave the memory of the last `cut` to its holders."""

    def reclaim(self) -> None:
        """Count the memory of the last `cut` as free, even if still referenced."""

    def cut(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Return an uninitialised tensor for each of `specs`."""


class Allotment:
    """Allocates new tensors from torch's allocator for each batch. They are freed with their last view.

    The tensors belong to the stream that is current at `cut`; as with any tensor, `record_stream` tells the allocator
    about other streams. A batch counts as held while its largest tensor is referenced: if the user collects labels,
    the images do not count as held.

    Memory: `num_bytes`; zero once the largest tensor is freed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cut_bytes = 0
        self._lease: weakref.ref[torch.UntypedStorage] | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of the tensors of the last `cut`; zero if they are no longer held."""
        return self._cut_bytes if self.is_held else 0

    @property
    def is_held(self) -> bool:
        """Whether the largest tensor of the last `cut` is referenced: directly, by a view or by autograd."""
        return self._lease is not None and self._lease() is not None

    def replace(self) -> None:
        """Leave the tensors to their holders."""
        self._lease = None

    reclaim = replace

    def cut(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Return an uninitialised tensor for each of `specs`."""
        tensors = [spec.empty(self._device) for spec in specs]
        largest = max(tensors, key=lambda tensor: tensor.nbytes, default=None)
        self._lease = None if largest is None else weakref.ref(largest.untyped_storage())
        self._cut_bytes = sum(tensor.nbytes for tensor in tensors)
        return tensors


class Arena:
    """A block of memory that holds the tensors of one batch after another, one tensor behind the other.

    Tensors with the same shapes, requested in the same order, get the same addresses each time. The block grows when a
    batch needs more memory, and never shrinks.

    Memory: `num_bytes`, the size of the largest batch so far.
    """

    def __init__(self, device: torch.device, *, pin_memory: bool = False) -> None:
        self._device = device
        self._pin_memory = pin_memory
        self._lease: weakref.ref[torch.UntypedStorage] | None = None
        self.replace()

    @property
    def num_bytes(self) -> int:
        """Size of the block."""
        return self._block.numel()

    @property
    def is_held(self) -> bool:
        """Whether any tensor of the last `cut` is referenced: directly, by a view or by autograd."""
        return self._lease is not None and self._lease() is not None

    def replace(self) -> None:
        """Leave the block to its holders, and start a new, empty one."""
        self._block = torch.empty(0, dtype=torch.uint8, device=self._device)
        self.reclaim()

    def reclaim(self) -> None:
        """Count the block as free, even if still referenced."""
        self._lease = None

    def cut(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Return an uninitialised tensor for each of `specs`."""
        starts, end = [], 0
        for spec in specs:
            starts.append(end)
            end += -(-spec.num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        if end > self._block.numel():
            self._block = self._block.new_empty(0)  # so that the old and new block never coexist
            self._block = torch.empty(end, dtype=torch.uint8, device=self._device, pin_memory=self._pin_memory)
        # A slice of a storage is a storage object of its own, which keeps the block alive. It is freed together with
        # the last tensor, so a weak reference to it shows whether any tensor is held.
        storage = self._block.untyped_storage()[:end]
        self._lease = weakref.ref(storage)
        return [spec.over(storage, start) for spec, start in zip(specs, starts, strict=True)]
