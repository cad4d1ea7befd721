"""A value of any form as bytes in shared memory: arrays and tensors as they are, the rest pickled.

A parcel passes only between processes of one loader, through their own memory. It is laid out as

    int64 [2 + n]: n, size of the pickle, size of each buffer      the pickle      the data of n arrays and tensors

Each part begins at a multiple of 64 bytes. The pickle says where each array belongs, and holds all that is no array.
Arrays can be written to when they arrive, even if they are read-only here, as those that a DataLoader passes on.
"""

import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.transport.pickling import is_importable
from mpload.transport.slots import ALIGN_BYTES, round_up

__all__ = ["pack", "unpack"]

_WORD_BYTES = 8


def pack(value: Any, room: Callable[[int], NDArray[np.uint8]]) -> None:
    """Write a value to memory.

    Args:
        value: what to write. Classes and functions that cannot be imported by name are written by value.
        room: returns memory for that many bytes, uint8 [num_bytes], which begins at a multiple of 64 bytes.

    Raises:
        ArgumentError: the value holds a tensor that cannot cross processes.
        Exception: the value cannot be pickled.
    """
    buffers: list[memoryview] = []
    file = io.BytesIO()
    _Pickler(file, buffers).dump(value)
    parts = [file.getbuffer(), *buffers]
    head = np.array([len(buffers), *[part.nbytes for part in parts]], np.int64)
    starts, start = [], round_up(head.nbytes, ALIGN_BYTES)
    for part in parts:
        starts.append(start)
        start = round_up(start + part.nbytes, ALIGN_BYTES)
    target = room(start)
    target[: head.nbytes] = head.view(np.uint8)
    for start, part in zip(starts, parts, strict=True):
        target[start : start + part.nbytes] = np.frombuffer(part, np.uint8)


def unpack(parcel: NDArray[np.uint8]) -> Any:
    """Return the value that `pack` wrote. Its arrays and tensors are views of `parcel`."""
    num_buffers = int(parcel[:_WORD_BYTES].view(np.int64)[0])
    sizes = parcel[_WORD_BYTES : _WORD_BYTES * (2 + num_buffers)].view(np.int64).tolist()
    parts, start = [], round_up(_WORD_BYTES * (2 + num_buffers), ALIGN_BYTES)
    for size in sizes:
        parts.append(parcel[start : start + size].data)
        start = round_up(start + size, ALIGN_BYTES)
    # The bytes come from a worker of our own, through the loader's own memory, so it is safe to unpickle them.
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves the data of arrays and tensors to `buffers`. Classes that can be found by name are pickled by name."""

    def __init__(self, file: io.BytesIO, buffers: list[memoryview]) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and not value.flags.writeable and not value.dtype.hasobject:
            return _writable(value).__reduce_ex__(5)
        if isinstance(value, memoryview):
            return _memoryview, (np.asarray(value), value.readonly)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            reduced = _reduced_tensor(torch, value)
            if reduced is not None:
                return reduced
        # Written by value, a class of the script would become another class in the process of the loader.
        if isinstance(value, type | FunctionType) and is_importable(value):
            return NotImplemented
        return super().reducer_override(value)


class _Alias:
    """The memory of a read-only array, as NumPy takes it from other libraries: one that may be written to."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # kept alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {"shape": (array.nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as one that may be written to; its memory is only read here.

    Pickle notes that the data of a read-only one is read-only, and so would be the array that is made of it.
    """
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    if not array.nbytes or not array.flags.forc:
        return array.copy()
    return np.asarray(_Alias(array)).view(array.dtype).reshape(array.shape, order=order)


def _memoryview(array: NDArray[Any], is_readonly: bool) -> memoryview:
    return array.data.toreadonly() if is_readonly else array.data


def _reduced_tensor(torch: Any, tensor: Any) -> tuple[Any, ...] | None:
    """Return how to make a tensor again from its memory; None leaves unusual ones, such as sparse ones, to torch."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise ArgumentError(
            f"a tensor of shape {list(tensor.shape)} requires grad, which cannot cross processes. Call detach() on it"
        )
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_nested:
        return None
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    order = sorted(range(plain.dim()), key=plain.stride, reverse=True)  # of memory, so that channels_last stays so
    plain = plain.permute(order)
    shape = tuple(plain.shape)
    data = np.empty(0, np.uint8)
    if plain.numel():
        flat = plain.contiguous().reshape(-1)
        # A single number counts as contiguous, whatever its stride is.
        data = (flat if plain.numel() > 1 else flat.as_strided((1,), (1,))).view(torch.uint8).numpy()
    own = None if type(tensor) is torch.Tensor else (type(tensor), dict(tensor.__dict__))
    return _tensor, (pickle.PickleBuffer(data.data), tensor.dtype, shape, order, tensor.requires_grad, own)


def _tensor(data: Any, dtype: Any, shape: tuple[int, ...], order: list[int], requires_grad: bool, own: Any) -> Any:
    torch = sys.modules["torch"]  # it is loaded, because `dtype` is one of its objects
    if data.nbytes:
        tensor = torch.frombuffer(data, dtype=dtype).view(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
    tensor = tensor.permute(sorted(range(len(order)), key=order.__getitem__))
    if own is not None:
        kind, attributes = own
        tensor = tensor.as_subclass(kind)
        tensor.__dict__.update(attributes)
    return tensor.requires_grad_() if requires_grad else tensor
