"""Batches as trees of values, and the memory that their tensors lie in."""

import dataclasses
import weakref
from collections import UserDict
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = ["Allotment", "Arena", "BatchMemory", "TensorSpec", "is_plain", "map_leaves", "map_tensors", "tensors_of"]

_ALIGN_BYTES = 256
"""Where tensors start: what accelerators' own allocators keep to, which wide loads count on."""


_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
"""Classes that hold no tensors. Batches contain many of them, so they are skipped."""
_CARRIED_OF_PACKED = "data", "sorted_indices", "unsorted_indices"


def map_tensors(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Return `batch` with `function(tensor)` for each tensor, always in the same order; see `map_leaves`."""
    return map_leaves(batch, function, is_leaf=lambda value: isinstance(value, torch.Tensor))


def map_leaves(batch: Any, function: Callable[[Any], Any], *, is_leaf: Callable[[Any], bool]) -> Any:
    """Return `batch` with `function(value)` for each value that is a leaf.

    Tuples, named tuples, lists, mappings and dataclasses are gone through, whatever they hold; other values stay as
    they are. Dicts and lists of other classes stay of these, with what else they have, as transformers' BatchEncoding.
    Dataclasses are copied: their `__post_init__` has run. A `PackedSequence` keeps its `batch_sizes`, which torch wants
    on the host.
    """
    if type(batch) in _PLAIN:
        return batch
    if is_leaf(batch):
        return function(batch)
    # No closure: one that calls itself would keep `function`, and the tensors it knows, until garbage is collected.
    mapped = partial(map_leaves, function=function, is_leaf=is_leaf)
    if isinstance(batch, dict | UserDict):
        mapping = copy(batch)
        for key, value in batch.items():
            mapping[key] = mapped(value)  # `update` adds in a Counter
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
        copied = object.__new__(type(batch))  # `copy` fails where a field has no value
        if hasattr(batch, "__dict__"):
            vars(copied).update(vars(batch))
        for name, value in _values_of(batch).items():
            object.__setattr__(copied, name, mapped(value))  # frozen or not
        return copied
    return batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, in the order of `map_tensors`."""
    if type(batch) in _PLAIN:
        return []
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        values = list(batch.values())
    elif isinstance(batch, PackedSequence):
        values = [getattr(batch, name) for name in _CARRIED_OF_PACKED]
    elif isinstance(batch, list | tuple):
        values = list(batch)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        values = list(_values_of(batch).values())
    else:
        return []
    return [tensor for value in values for tensor in tensors_of(value)]


def _values_of(batch: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that have a value."""
    return {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch) if hasattr(batch, each.name)}


def is_plain(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is dense and of torch's own class: nothing more than a shape, a dtype and values."""
    is_dense = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    return is_dense and type(tensor) in {torch.Tensor, torch.nn.Parameter}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and dtype of a dense tensor, and whether its channels lie innermost."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        """Return the spec of a tensor like this one."""
        is_last = tensor.ndim == 4 and not tensor.is_contiguous()
        channels_last = is_last and tensor.is_contiguous(memory_format=torch.channels_last)
        return cls(shape=tuple(tensor.shape), dtype=tensor.dtype, channels_last=channels_last)

    @property
    def num_bytes(self) -> int:
        """Memory that the values take."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def over(self, block: torch.Tensor, start: int) -> torch.Tensor:
        """Show `block` (uint8 [n]) from `start` on as such a tensor."""
        values = block[start : start + self.num_bytes].view(self.dtype)
        if self.channels_last:
            num, channels, height, width = self.shape
            return values.view(num, height, width, channels).permute(0, 3, 1, 2)
        return values.view(self.shape)

    def empty(self, device: torch.device) -> torch.Tensor:
        """Return such a tensor in memory of its own."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return torch.empty(self.shape, dtype=self.dtype, device=device, memory_format=layout)


class BatchMemory(Protocol):
    """Where the tensors of one batch lie while it is held; then those of another."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes now."""

    @property
    def is_held(self) -> bool:
        """Whether what was cut last is still in use."""

    def replace(self) -> None:
        """Leave what was cut last to those who hold it."""

    def reclaim(self) -> None:
        """Count what was cut last as free, whoever still holds it."""

    def cut(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Return a tensor for each of `specs`, its values whatever was there."""


class Allotment:
    """Tensors that torch's allocator is asked for anew each time, and has back when their last view has died.

    They belong to the stream that is current at `cut`, and `record_stream` tells the allocator of others, as with any
    tensor. They count as held while the largest one is: labels that somebody collects hold no images.

    Memory: `num_bytes`, none once the largest tensor has died.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cut_bytes = 0
        self._lease: weakref.ref[torch.UntypedStorage] | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of the tensors that were cut last, while they are held."""
        return self._cut_bytes if self.is_held else 0

    @property
    def is_held(self) -> bool:
        """Whether the largest of the tensors that were cut last, a view or what autograd keeps of it, is alive."""
        return self._lease is not None and self._lease() is not None

    def replace(self) -> None:
        """Leave the tensors to those who still hold them."""
        self._lease = None

    reclaim = replace

    def cut(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Return a tensor for each of `specs`, its values whatever was there."""
        tensors = [spec.empty(self._device) for spec in specs]
        largest = max(tensors, key=lambda tensor: tensor.nbytes, default=None)
        self._lease = None if largest is None else weakref.ref(largest.untyped_storage())
        self._cut_bytes = sum(tensor.nbytes for tensor in tensors)
        return tensors


class Arena:
    """A block of memory from which a batch's tensors are cut, one behind the other, again and again.

    Tensors of the same shapes, asked for in the same order, lie at the same addresses each time. The block grows when a
    batch needs more, and never shrinks.

    Memory: `num_bytes`, the most that a batch has needed.
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
        """Whether anything that was cut last, a view of it or what autograd keeps of it, is still alive."""
        return self._lease is not None and self._lease() is not None

    def replace(self) -> None:
        """Leave the block to those who still hold it, and go on with another."""
        self._block = torch.empty(0, dtype=torch.uint8, device=self._device)
        self.reclaim()

    def reclaim(self) -> None:
        """Count the block as free, whoever still holds it."""
        self._lease = None

    def cut(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Return a tensor for each of `specs`, its values whatever was there."""
        starts, end = [], 0
        for spec in specs:
            starts.append(end)
            end += -(-spec.num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        if end > self._block.numel():
            self._block = self._block.new_empty(0)  # so that old and new are never there together
            self._block = torch.empty(end, dtype=torch.uint8, device=self._device, pin_memory=self._pin_memory)
        # A part of a storage is a storage of its own, which keeps the whole one: it dies with the last of its tensors.
        storage = self._block.untyped_storage()[:end]
        self._lease = weakref.ref(storage)
        block = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        return [spec.over(block, start) for spec, start in zip(specs, starts, strict=True)]
