"""Pins host memory, so that an accelerator can copy from it directly, without a staging copy."""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.errors import warn

__all__ = ["Pinner"]

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices


class Pinner:
    """Registers the memory of a loader's slots with the driver: each slot when its first tensor arrives.

    So physical memory is committed only to slots that are used, and the time for registration is spread over the first
    batches. The memory is kept alive until `release`.

    Args:
        device: the device to copy to.
        cudart: returns the functions of the CUDA runtime; None uses those of `device`, which only CUDA devices have.
    """

    def __init__(self, device: torch.device, *, cudart: Callable[[], Any] | None = None) -> None:
        self._cudart = cudart or getattr(torch.get_device_module(device), "cudart", None)
        self._device = device
        self._registered: dict[int, NDArray[Any]] = {}
        # Memory must be unregistered with the driver before it is freed, even if `release` is never called.
        self._release = partial(_unregister, self._registered, self._cudart, device, os.getpid())
        weakref.finalize(self, self._release)

    def pin(self, tensor: torch.Tensor, lock: Callable[[int], NDArray[Any] | None]) -> bool:
        """Pin the slot that contains a CPU tensor, and return whether that succeeded.

        Args:
            tensor: a tensor that is not pinned yet.
            lock: returns the page-aligned part of the slot that contains an address; None for memory outside slots.
        """
        if self._cudart is None or (memory := lock(tensor.data_ptr())) is None:
            return False
        if any(other.base is not memory.base for other in self._registered.values()):
            self.release()  # the loader has new slots
        address = memory.ctypes.data
        try:
            _check(self._cudart().cudaHostRegister(address, memory.nbytes, _PORTABLE), self._cudart, self._device)
        except RuntimeError as error:
            self._cudart = None
            warn(f"slots cannot be pinned, so each batch is copied once more on the host: {error}")
            return False
        self._registered[address] = memory
        return True

    def release(self) -> None:
        """Unpin and release the memory once the device no longer copies from it. May be called more than once."""
        self._release()


def _unregister(
    registered: dict[int, NDArray[Any]], cudart: Callable[[], Any] | None, device: torch.device, owner_pid: int
) -> None:
    if not registered or cudart is None or os.getpid() != owner_pid:  # a forked child has no driver
        return
    torch.get_device_module(device).synchronize(device)  # another prefetcher may copy from the same slots
    while registered:
        address, memory = registered.popitem()
        _check(cudart().cudaHostUnregister(address), cudart, device)
        del memory  # only after it is unregistered


def _check(error: Any, cudart: Callable[[], Any], device: torch.device) -> None:
    if int(error):
        with suppress(RuntimeError):  # clears the error, which torch would otherwise attribute to the next kernel
            torch.zeros((), device=device)
        raise RuntimeError(f"the driver reports {cudart().cudaGetErrorString(error)}")
