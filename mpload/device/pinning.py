"""Host memory that an accelerator copies from directly, without a copy of its own on the way."""

import os
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.errors import MploadWarning

__all__ = ["Pinner"]

_PORTABLE = 1  # pinned for all devices


class Pinner:
    """Registers the memory of a loader's slots with the driver, each when the first tensor comes from it.

    So only slots that are used are taken for real and stay so, and nobody waits for all of them at once. Keeps their
    memory alive until `release`.

    Args:
        device: where copies go.
        cudart: returns functions of the CUDA runtime; None: as `device` has them, which are none unless it is CUDA's.
    """

    def __init__(self, device: torch.device, *, cudart: Callable[[], Any] | None = None) -> None:
        self._cudart = cudart or getattr(torch.get_device_module(device), "cudart", None)
        self._device = device
        self._registered: dict[int, NDArray[Any]] = {}
        # The driver must hear of it before the memory goes, also when nobody calls `release`.
        self._release = partial(_unregister, self._registered, self._cudart, device, os.getpid())
        weakref.finalize(self, self._release)

    def pin(self, tensor: torch.Tensor, lock: Callable[[int], NDArray[Any] | None]) -> bool:
        """Pin the slot that holds a tensor of the CPU's, and return whether it is.

        Args:
            tensor: one that is not pinned yet.
            lock: returns the page-aligned part of a slot that holds an address; None for memory that is no slot's.
        """
        if self._cudart is None or (memory := lock(tensor.data_ptr())) is None:
            return False
        if any(other.base is not memory.base for other in self._registered.values()):
            self.release()  # the loader has other slots now
        address = memory.ctypes.data
        try:
            _check(self._cudart().cudaHostRegister(address, memory.nbytes, _PORTABLE), self._cudart, self._device)
        except RuntimeError as error:
            self._cudart = None
            warnings.warn(f"batches are copied once more on the host: {error}", MploadWarning, stacklevel=7)
            return False
        self._registered[address] = memory
        return True

    def release(self) -> None:
        """Let go of the memory when nothing on the device copies from it any more. May be called again."""
        self._release()


def _unregister(
    registered: dict[int, NDArray[Any]], cudart: Callable[[], Any] | None, device: torch.device, owner_pid: int
) -> None:
    if not registered or cudart is None or os.getpid() != owner_pid:  # a forked child has no driver to talk to
        return
    torch.get_device_module(device).synchronize(device)  # another prefetcher may copy from the same slots
    while registered:
        address, memory = registered.popitem()
        _check(cudart().cudaHostUnregister(address), cudart, device)
        del memory  # not before the driver has heard of it


def _check(error: Any, cudart: Callable[[], Any], device: torch.device) -> None:
    if int(error):
        with suppress(RuntimeError):  # torch would blame the next kernel for it
            torch.zeros((), device=device)
        raise RuntimeError(f"the driver says {cudart().cudaGetErrorString(error)}")
